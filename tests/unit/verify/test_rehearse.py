"""Rehearsals of everything but Python packages, and of cells as a whole."""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manifest_samples import record
from rehearse_samples import (
    library,
    outcomes,
    sample_rehearsal,
    shipped,
    step,
    tar_of,
    wheel,
    workspace,
)
from samples import ROOT, block, compare_with_golden, image, recipe, shipped_project

from builder.build.listings import decisions, explanation, explanation_json
from builder.cli import main, rehearse
from builder.compile import spec
from builder.compile.lint.reading import read
from builder.model import LockedSource, Plan, Selection, Spec
from builder.model.errors import MissingPrerequisite
from builder.model.exact_json import streamed
from builder.model.manifest import manifest_text
from builder.model.records import write
from builder.plan import make_plan
from builder.system.home import Home
from builder.verify.rehearse import rehearsal
from builder.verify.rehearse.imports import (
    LibraryTrials,
    import_trials,
    modules_of_distribution,
    modules_of_packages,
    modules_of_source,
    needed_outside,
)
from builder.verify.rehearse.python_packages import CondaTrials
from builder.verify.rehearse.rehearsal import (
    flag_trials,
    read_channel,
    rehearsal_here,
    toolkit_trials,
)
from builder.verify.rehearse.resolution import Resolved
from builder.verify.rehearse.servers import Answer, Servers, SourceTrials, Unavailable
from builder.verify.rehearse.steps import steps_of
from builder.verify.rehearse.trials import (
    FAILED,
    NOT_TRIED,
    PASSED,
    CellTrials,
    Trial,
    as_json,
    as_text,
    failed,
    in_order,
    not_tried,
    passed,
    read_record,
    seen_of,
    write_record,
)
from builder.verify.rehearse.workspace import SourceWorkspace, write_file

OWNER = "https://github.com/owner"
SETUP = "ext('a', extra_compile_args=['-O2', '--std=c++14'])\n  # '-std=c++20'\n"


def followed(space: SourceWorkspace, *commands: str, folder: str = "/var/tmp") -> SourceWorkspace:
    for command in commands:
        space.follow(step(command, folder=folder))
    return space


def copied(root: Path, **repositories: Mapping[str, str]) -> SourceWorkspace:
    """A workspace where the files of the repository `code` were copied to /opt/code."""
    space = workspace(root, **repositories)
    return followed(space, f"git clone {OWNER}/code.git code", "cp -r code/. /opt/code")


# Steps.


def test_steps_know_their_folder_and_their_variables(tmp_path: Path) -> None:
    commands = ["cd /opt/a", "A=1 B='x y' make -C sub", "cd -", "export C=2 D", "E=3", "cd"]
    commands += ["{ false 1; || false 2 ; }", "{ false || true; }"]
    planned = image(tmp_path, recipes=[recipe(development=(block("shell", commands=commands),))])
    results = steps_of(read(spec.compile_spec(planned, run_checks=""), locked=False))
    sample = next(each for each in results if each.program == "make")
    assert (sample.folder, sample.variables) == ("/opt/a", {"A": "1", "B": "x y"})
    assert sample.path("sub") == "/opt/a/sub"
    *group, first, last = results[-4:]
    assert [(each.argv, each.has_fallback) for each in group] == [
        (("false", "1"), True),
        (("false", "2"), False),
    ]
    assert (last.argv, last.folder, last.variables) == (("true",), "/", {"C": "2", "E": "3"})
    assert (first.program, first.has_fallback, last.has_fallback) == ("false", True, False)


def test_a_folder_and_variables_last_until_the_next_run(tmp_path: Path) -> None:
    blocks = [block("shell", commands=[*first, "make"]) for first in (["cd /a", "export B=1"], [])]
    planned = image(tmp_path, recipes=[recipe(development=tuple(blocks))])
    steps = steps_of(read(spec.compile_spec(planned, run_checks=""), locked=False))
    made = [(each.folder, each.variables) for each in steps if each.program == "make"]
    assert made == [("/a", {"B": "1"}), ("/", {})]


# Source trees, and edits of them.


def test_an_edit_of_a_clone_is_tried_on_its_files(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"sub/setup.py": SETUP})
    followed(
        space,
        f"git clone {OWNER}/code.git code",
        "cp -r code/sub/. /opt/code",
        "sed -i s/--std=c++14/-std=c++11/ /opt/code/setup.py",
        "sed s/not-there/x/ -i /opt/code/setup.py",
        "sed -i s/a/b/ /opt/code/lost.py",
        "sed -i s/a/b/ /etc/hosts",
        "sed s/O2/O3/ /opt/code/setup.py",  # prints
        "grep -i O2 /opt/code/setup.py",
    )
    code = "/opt/code/setup.py"
    assert space.trials == [
        passed("clones", f"git clone {OWNER}/code.git HEAD", "the commit is there", 1),
        passed("patches", f"sed -e s/--std=c++14/-std=c++11/ {code}", "it changes the source", 1),
        failed("patches", f"sed -e s/not-there/x/ {code}", "it changes nothing in the source", 1),
        failed("patches", "sed -e s/a/b/ /opt/code/lost.py", "the source has no such file", 1),
    ]
    assert "-std=c++11" in (space.read("/opt/code/setup.py") or "")
    assert "--std=c++14" in (space.read("/var/tmp/code/sub/setup.py") or "")


def test_an_edit_may_have_several_expressions_and_files(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"a": "one two\n", "b": "one\n"})
    edit = "sed -i -E -e s/one/1/ -e s/(two)/2/ code/a code/b"
    followed(space, f"git clone {OWNER}/code.git code", edit, folder="/opt")
    assert outcomes(space.trials) == [PASSED] * 3
    assert space.trials[1].subject == "sed -E -e s/one/1/ -e s/(two)/2/ /opt/code/a"
    assert (space.read("/opt/code/a"), space.read("/opt/code/b")) == ("1 2\n", "1\n")


def test_a_repository_that_is_not_at_hand_is_not_tried(tmp_path: Path) -> None:
    space = followed(workspace(tmp_path), f"git clone {OWNER}/lost.git lost")
    assert [(each.outcome, each.text) for each in space.trials] == [(NOT_TRIED, "no copy of it")]


def test_an_archive_of_the_store_is_unpacked(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar.gz", {"a-1.0/configure.ac": "AC_INIT\n"})
    space = workspace(tmp_path)
    space.stored = {"a.tar.gz": tmp_path / "a.tar.gz"}
    followed(space, "tar -x -f /var/tmp/a.tar.gz -C /opt -z", "tar -f a.tar.gz -C /srv -x")
    followed(space, "tar -x -f other.tar -C /opt")
    for place in ("/opt", "/srv"):
        followed(space, "sed -i -e s/AC_INIT/X/ a-1.0/configure.ac", folder=place)
    assert outcomes(space.trials) == [PASSED, PASSED]


def test_sed_runs_nothing(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"a": "b\n"})
    space.follow(step(f"git clone {OWNER}/code.git code", folder="/opt"))
    followed(space, "sed -i 1e\\ touch\\ /tmp/x /opt/code/a".replace("\\ ", "_"))
    assert outcomes(space.trials) == [PASSED, NOT_TRIED]


# Options of compilers.


def test_a_setup_py_may_ask_for_more_than_the_compiler_takes(tmp_path: Path) -> None:
    """NVIDIA's Transformer of MLPerf asks gcc 4.8 for C++14."""
    space = workspace(tmp_path, code={"setup.py": SETUP})
    followed(space, f"git clone {OWNER}/code.git /opt/code")
    (tmp_path / "opt/code/setup.py").write_bytes(SETUP.encode() + b"# \xff\n")
    planned = shipped("cuda-base-1.0-centos7-cuda10.1-openmpi1.10-ppc64le")
    build = step("/opt/v/bin/python setup.py build_ext --inplace", folder="/opt/code")
    [trial] = flag_trials(planned, build, space)
    assert (trial.outcome, trial.subject) == (FAILED, "--std=c++14 in /opt/code/setup.py:1")
    assert "the image has gcc 4.8, and gcc supports -std=c++14 since 5" in trial.text
    followed(space, "sed -i s/--std=c++14/-std=c++11/ /opt/code/setup.py")
    assert outcomes(flag_trials(planned, build, space)) == [PASSED]


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("gcc -std=c11 a.c", PASSED),
        ("g++ -std=gnu++17 a.cc", FAILED),
        ("nvcc -std=c++11 a.cu", PASSED),
        ("nvcc -std=c++17 a.cu", FAILED),
    ],
)
def test_an_option_of_a_command_is_tried(command: str, outcome: str, tmp_path: Path) -> None:
    planned = shipped("cuda-base-1.0-centos7-cuda10.1-openmpi1.10-ppc64le")
    assert outcomes(flag_trials(planned, step(command), workspace(tmp_path))) == [outcome]


@pytest.mark.parametrize("name", ["CFLAGS", "CXXFLAGS", "CPPFLAGS", "FFLAGS", "FCFLAGS"])
def test_options_in_variables_are_tried(name: str, tmp_path: Path) -> None:
    planned = shipped("hpc-base-1.0-centos7-openmpi1.10-ppc64le")
    configure = dataclasses.replace(step("./configure"), variables={name: "-O2 -std=c++14"})
    assert outcomes(flag_trials(planned, configure, workspace(tmp_path))) == [FAILED]
    compilers = ["cc", "c++", "gcc", "g++", "gfortran", "mpicc", "mpicxx", "mpic++", "mpifort"]
    for compiler in compilers:
        [trial] = flag_trials(planned, step(f"{compiler} --std=c++14", line=3), workspace(tmp_path))
        source = "https://gcc.gnu.org/projects/cxx-status.html"
        text = f"the image has gcc 4.8, and gcc supports -std=c++14 since 5 ({source})"
        assert trial == failed("flags", f"--std=c++14 in {compiler}", text, 3)
    first = dataclasses.replace(planned, base=dataclasses.replace(planned.base, gcc=("5",)))
    assert outcomes(flag_trials(first, configure, workspace(tmp_path))) == [PASSED]
    unknown = dataclasses.replace(planned, base=dataclasses.replace(planned.base, gcc=()))
    [trial] = flag_trials(unknown, step("gcc -std=c++14"), workspace(tmp_path))
    reason = "unknown version of gcc in centos7"
    assert trial == not_tried("flags", "-std=c++14 in gcc", reason, 1)


def test_a_setup_py_that_is_not_at_hand_is_said(tmp_path: Path) -> None:
    planned = shipped("hpc-base-1.0-centos7-openmpi1.10-ppc64le")
    for command, trials in (
        ("pip3 install .", 1),
        ("python3 setup.py install", 1),
        ("pip3 install x", 0),
        ("pip3 wheel .", 0),
        ("cp install .", 0),
    ):
        found = [*flag_trials(planned, step(command, folder="/opt/x"), workspace(tmp_path))]
        subject, reason = "options in /opt/x/setup.py", "its sources are not available"
        assert found == [not_tried("flags", subject, reason, 1)] * trials
    space = followed(workspace(tmp_path, x={}), f"git clone {OWNER}/x.git x", folder="/opt")
    assert [*flag_trials(planned, step("pip3 install .", folder="/opt/x"), space)] == []


# Where the toolkit is.


BARE = "configure looks for /usr/local/cuda, but the distribution's toolkit is in /usr"
NVIDIAS = "/usr/local/cuda does not exist: the distribution's toolkit is in /usr"
THERE = "the toolkit's headers and stubs are there"
STUBS = "/usr/lib/powerpc64le-linux-gnu/stubs"


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("./configure --with-cuda", [(FAILED, "--with-cuda", BARE)]),
        ("./configure --with-cuda=yes", [(FAILED, "--with-cuda=yes", BARE)]),
        (
            "./configure --with-cuda=/usr/local/cuda",
            [(FAILED, "--with-cuda=/usr/local/cuda", NVIDIAS)],
        ),
        ("ln -s /usr/local/cuda /opt", [(FAILED, "ln", NVIDIAS)]),
        (
            "./configure --with-cuda=/usr --with-cuda",
            [(FAILED, "--with-cuda=/usr --with-cuda", BARE)],
        ),
        ("CUDA=/usr/local/cuda make", [(FAILED, "make", NVIDIAS)]),
        ("make CUDA=/usr/local/cuda-12.4 TO=/opt/usr/local/cuda", []),
        ("./configure --with-cuda=/usr", [(PASSED, "--with-cuda=/usr", THERE)]),
        (
            "ln -s /usr/lib64/stubs/libcuda.so /usr/lib64/stubs/libcuda.so.1",
            [
                (
                    FAILED,
                    "ln",
                    f"/usr/lib64/stubs does not exist: the toolkit's stubs are in {STUBS}",
                )
            ],
        ),
        ("make", []),
        *((f"{word} /usr/local/cuda", []) for word in ("for", "if", "then", "do", "test", "[")),
        (
            "cd /var/tmp/ucx-1.18.1 && ./configure --with-cuda=/usr",
            [
                (
                    FAILED,
                    "--with-cuda=/usr",
                    f"UCX looks for stubs only below lib64, but they are in {STUBS}",
                )
            ],
        ),
        (
            f"cd /var/tmp/ucx-1.18.1 && ./configure --with-cuda=/usr LDFLAGS=-L{STUBS}",
            [(PASSED, "--with-cuda=/usr", THERE)],
        ),
    ],
)
def test_the_distributions_toolkit_is_not_where_nvidias_is(
    command: str, outcome: list[tuple[str, str, str]]
) -> None:
    debian = shipped("cuda-base-1.0-debian13-cuda12.4-openmpi5.0-ppc64le")
    nvidias = shipped("cuda-base-1.0-ubuntu22.04-cuda12.4-openmpi4.1-x86_64")
    folder, _, configure = command.rpartition(" && ")
    name, equals, rest = configure.partition(" ")[0].partition("=")
    variables = {name: rest} if equals else {}
    configure = configure.partition(" ")[2] if equals else configure
    sample = step(configure, folder=folder.removeprefix("cd ") or "/", line=4)
    sample = dataclasses.replace(sample, variables=variables)
    lists = "https://packages.debian.org/trixie/amd64/nvidia-cuda-dev/filelist"
    assert [*toolkit_trials(debian, sample)] == [
        passed("toolkit", subject, text, 4)
        if result == PASSED
        else failed("toolkit", subject, f"{text} ({lists})", 4)
        for result, subject, text in outcome
    ]
    assert [*toolkit_trials(nvidias, sample)] == []


# What Python sources import.


SETUP_OF_TWO = "import builds_it\nExtension(name='fast')\nextension('SSD._C')\n"
PROGRAM = (
    "import os, torch\nfrom package import part\nimport own\n"
    "try:\n    import maybe\nexcept:\n    0\n"
)


def test_a_module_that_nothing_installs_is_a_failure(tmp_path: Path) -> None:
    """Mask R-CNN of MLPerf imports tqdm, which nothing installed."""
    files = {
        "train.py": PROGRAM,
        "own.py": "",
        "package/__init__.py": "",
        "package/part.py": "from tqdm import tqdm\nfrom . import other\n",
        "package/other.py": "import package.compiled\n",
        "package/unused.py": "import h5py\n",
        "test_train.py": "import pytest\n",
    }
    space = copied(tmp_path, code=files)
    [trial] = import_trials(space, "/opt/code", {"torch"})
    assert trial.outcome == FAILED
    assert trial.text == "nothing installs tqdm (package/part.py:1)"
    assert trial.subject == "imports of 5 files in /opt/code"
    assert outcomes(import_trials(space, "/opt/code", {"torch", "tqdm"})) == [PASSED]
    followed(space, "rm /opt/code/package/part.py")
    assert outcomes(import_trials(space, "/opt/code", {"torch"})) == [PASSED]


def test_what_setup_py_compiles_is_a_module(tmp_path: Path) -> None:
    files = {"train.py": "import fast\nimport SSD\n", "setup.py": SETUP_OF_TWO}
    space = copied(tmp_path, code=files)
    assert outcomes(import_trials(space, "/opt/code", ())) == [PASSED]


@pytest.mark.parametrize(
    ("package", "modules"),
    [("cupy-cuda12x", {"cupy", "cupyx"}), ("Pillow", {"PIL"}), ("a-b", {"a_b"})],
)
def test_packages_have_modules_of_other_names(package: str, modules: set[str]) -> None:
    assert {*modules_of_packages([package])} == modules
    installed = ["make", f"python3-{package}", f"not-python3-{package}"]
    assert {*modules_of_distribution(installed)} == modules


@pytest.mark.parametrize(
    ("url", "modules"),
    [
        (f"{OWNER}/vision", ("torchvision",)),
        (f"git+{OWNER}/vision.git/", ("torchvision",)),
        (f"git+{OWNER}/x.git#subdirectory=compliance", ("mlperf_compliance",)),
        (f"{OWNER}/unknown", ()),
    ],
)
def test_modules_of_a_repository(url: str, modules: tuple[str, ...]) -> None:
    assert modules_of_source(url) == modules


def test_which_files_of_a_folder_are_programs_and_what_they_bring_in(tmp_path: Path) -> None:
    """Programs are at the top and in tools; tests and setup.py are none."""
    files = dict.fromkeys(["a.py", "tools/b.py"], "import lost\nimport other.part, lost\n")
    no_programs = ("setup.py", "test.py", "test_a.py", "a_test.py", "more/c.py", "tools/more/d.py")
    files |= dict.fromkeys(no_programs, "import odd\n")
    files |= {
        "run.py": "import package.sub\n",
        "package/sub/__init__.py": "from ..deep import part\nfrom . import near\n",
        "package/deep.py": "\nimport h5py.x\n",
        "package/sub/near.py": "from tqdm import tqdm\nfrom .far import y\n",
        "package/near.py": "import odd\n",
        "broken.py": "print 'of Python 2'\nimport odd\n",
    }
    [trial] = import_trials(copied(tmp_path, code=files), "/opt/code", ())
    missing = "h5py (package/deep.py:2), lost (a.py:1), other (a.py:2)"
    hint = "add the packages that have these modules"
    subject = "imports of 7 files in /opt/code"
    text = f"nothing installs {missing}, tqdm (package/sub/near.py:1)"
    assert trial == failed("imports", subject, text, hint=hint)


def test_a_fork_has_to_be_the_one_that_is_installed(tmp_path: Path) -> None:
    """COCO(use_ext=True) is in NVIDIA's pycocotools, and not in the package of that name."""
    files = {"train.py": "from pycocotools.coco import COCO\nCOCO(use_ext=True)\n"}
    space = copied(tmp_path, code=files, cocoapi={})
    results = [*import_trials(space, "/opt/code", {"pycocotools"})]
    assert outcomes(results) == [FAILED, PASSED]
    fork = "github.com/NVIDIA/cocoapi"
    text = f"only the pycocotools of {fork} has this option (https://{fork}/commit/4bb5a0f)"
    subject = "use_ext=True in /opt/code/train.py"
    assert results[0] == failed("imports", subject, text)
    followed(space, "git clone https://github.com/NVIDIA/cocoapi.git cocoapi")
    results = [*import_trials(space, "/opt/code", {"pycocotools"})]
    assert results == [
        passed("imports", subject, f"pycocotools is that of {fork}"),
        passed("imports", "imports of 1 file in /opt/code", "every module is installed"),
    ]


# Libraries that wheels leave to the host.

NEEDY = wheel(cv2=library("libSM.so.6", "libc.so.6", "own.so"), own=library("libstdc++.so.6"))


def resolved(name: str = "cv-1-cp36-cp36m-manylinux1_x86_64.whl") -> Resolved:
    return Resolved(name="cv", version="1", url=f"https://index.example/{name}")


def test_a_library_that_no_package_brings_is_a_failure() -> None:
    """opencv-python wants libSM and others of X11, which no image has by itself."""
    trials, name = LibraryTrials(lambda _: NEEDY), posixpath.basename(resolved().url)
    text = "no package of the image provides libSM.so.6 (libsm6; libSM)"
    lacking = failed("libraries", name, text, 7, "name the packages under runtime")
    assert [*trials.of([resolved()], {"python3"}, 7)] == [lacking]
    found = passed("libraries", name, "it finds its libraries; libSM.so.6 come with packages", 7)
    for package in ("libsm6", "libSM"):
        assert [*trials.of([resolved()], {package}, 7)] == [found]
    alone = passed("libraries", name, "it finds its libraries", 7)
    assert [*LibraryTrials(lambda _: wheel()).of([resolved()], (), 7)] == [alone]


def test_only_what_is_outside_of_a_wheel_is_needed() -> None:
    assert needed_outside(NEEDY) == {"libSM.so.6"}
    assert needed_outside(wheel(text=b"no ELF")) == set()


def test_wheels_without_programs_are_passed_over() -> None:
    def unread(_: str) -> bytes:
        raise AssertionError

    trials = LibraryTrials(unread)
    assert [*trials.of([resolved("cv-1-py3-none-any.whl")], (), 1)] == []


def test_what_is_not_known_of_a_wheel_is_said() -> None:
    def read_large(_: str) -> bytes:
        raise Unavailable("cv.whl is larger than 64 MiB")

    large = LibraryTrials(read_large)
    strange = LibraryTrials(lambda _: wheel(a=library("libodd.so.1")))
    for trials, reason in (
        (large, "cv.whl is larger than 64 MiB"),
        (strange, "no table lists packages that provide libodd.so.1"),
    ):
        [trial] = trials.of([resolved()], (), 1)
        assert (trial.outcome, trial.text) == (NOT_TRIED, reason)


# Conda.

CHANNEL = {
    "packages": {"a": {"name": "tensorflow", "version": "2.12.0"}, "b": {"name": "x"}},
    "packages.conda": {"c": {"name": "tensorflow", "version": "2.11.0"}},
}


LACKS = "the channels have 2.11.0, 2.12.0 for linux-ppc64le"
VALUES = "-n lost=1 --name lost=1 -p lost=1 --prefix lost=1 -f lost=1 --file lost=1"


@pytest.mark.parametrize(
    ("words", "outcome", "text"),
    [
        ("-y tensorflow=2.12", PASSED, "https://c.example has it for linux-ppc64le"),
        ("-y tensorflow=2.12.0", PASSED, "https://c.example has it for linux-ppc64le"),
        ("-y tensorflow=2.1", FAILED, LACKS),
        # TensorFlow for ppc64le is in one of two channels, of which one may be gone.
        ("-y tensorflow=2.1 || other", NOT_TRIED, f"{LACKS}; if it fails, another command is run"),
        ("-c gone tensorflow=2.12", PASSED, "https://c.example has it for linux-ppc64le"),
        ("-c gone --channel lost a=1", NOT_TRIED, "gone: no route; lost: no route"),
        (f"{VALUES} tensorflow=2.12", PASSED, "https://c.example has it for linux-ppc64le"),
    ],
)
def test_a_pin_is_looked_up_in_the_channels_index(words: str, outcome: str, text: str) -> None:
    def read(channel: str, subdir: str) -> Any:
        return (
            CHANNEL if (channel, subdir) == ("https://c.example", "linux-ppc64le") else "no route"
        )

    command, _, fallback = words.partition(" || ")
    install = dataclasses.replace(step(f"conda install {command}"), has_fallback=bool(fallback))
    config = step("conda config --add channels https://c.example")
    [trial] = CondaTrials(read).of([config, install], "ppc64le")
    assert (trial.outcome, trial.text) == (outcome, text)
    for arch, subdir in (("x86_64", "linux-64"), ("aarch64", "linux-aarch64")):
        told = CondaTrials(lambda _, name: f"no {name}").of([config, install], arch)
        assert [f"https://c.example: no {subdir}" in trial.text for trial in told] == [True]


def test_a_channels_index_is_read_from_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linux-64").mkdir()
    (tmp_path / "linux-64/repodata.json").write_text(json.dumps(CHANNEL))
    assert read_channel(f"file://{tmp_path}/", "linux-64") == CHANNEL
    assert read_channel(f"file://{tmp_path}", "noarch") == "it has no repodata.json"
    (tmp_path / "linux-64/repodata.json").write_text("{")
    assert "Expecting" in str(read_channel(f"file://{tmp_path}", "linux-64"))
    url = "https://conda.anaconda.org/conda-forge/noarch/repodata.json"
    monkeypatch.setattr(rehearsal, "read_url", {url: b"{}"}.__getitem__)
    assert read_channel("conda-forge", "noarch") == {}


# Sources.


@pytest.mark.parametrize(
    ("url", "outcome", "text"),
    [
        ("https://has.example/a-1.0.tar.gz", PASSED, "its server has it"),
        ("https://lost.example/a-1.0.tar.gz", FAILED, "text"),
        ("https://silent.example/a-1.0.tar.gz", NOT_TRIED, "text"),
        ("http://has.example/a-1.0.tar.gz", FAILED, "it is not fetched by https"),
        ("https://has.example/None/a.tar.gz", FAILED, "a part of it has no value"),
        ("https://has.example/{version/a.tar.gz", FAILED, "a part of it has no value"),
        ("https://has.example/version}/a.tar.gz", FAILED, "a part of it has no value"),
        ("https://has.example/$VERSION/a.tar.gz", FAILED, "a part of it has no value"),
        ("https://has.example//a.tar.gz", FAILED, "a part of it has no value"),
        ("https://has.example/folder/", FAILED, "it names a folder, not a file"),
        ("https://has/a-1.0.tar.gz", FAILED, "it names no server"),
    ],
)
def test_a_download_is_asked_for(url: str, outcome: str, text: str, tmp_path: Path) -> None:
    def ask(asked: str) -> Answer:
        has = {"has": True, "lost": False}.get(asked.split("/")[2].partition(".")[0])
        return Answer(has=has, text="text")

    trials = SourceTrials(ask, lambda _: tmp_path)
    for fetch in ("wget -q -nc -P /var/tmp", "curl -fsSL -o 'a'"):
        [trial] = trials.of([step(f"{fetch} {url}", line=3)])
        assert trial == Trial(kind="sources", subject=url, outcome=outcome, text=text, line=3)
    assert [*trials.of([step(f"git clone {url}")])] == []


def test_the_stores_file_is_the_locked_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of `abc`
    source = LockedSource(url="https://a.example/f", file="f", sha256=good, size=3)
    trials = SourceTrials(lambda _: Answer(has=None), lambda _: path)
    lost = not_tried("sources", source.url, "it is not in the store")
    assert {lost.line, passed("", "", "").line, failed("", "", "").line} == {0}
    assert [*trials.locked([source])] == [lost]
    for text, judged, words in (("abc", passed, "matches"), ("abd", failed, "differs from")):
        path.write_text(text)
        told = f"the file in the store {words} the lock"
        assert [*trials.locked([source])] == [judged("sources", source.url, told)]


# A cell as a whole.


@pytest.mark.parametrize(
    "identifier",
    [
        "mlperf-ssd-1.0-centos7-cuda10.1-x86_64",
        "biggan-1.0-ubuntu18.04-cuda10.1-ppc64le",
        "mpi-source-1.0-debian13-openmpi5.0-x86_64",
        "horovod-1.0-debian12-cuda11.8-openmpi4.1-ppc64le",
    ],
)
def test_no_shipped_cell_fails_by_what_is_known_without_a_server(
    identifier: str,
) -> None:
    planned = shipped(identifier)
    cell = sample_rehearsal().of(spec.compile_spec(planned, run_checks="#!/bin/sh\n"))
    known = [trial for trial in cell.of(FAILED) if trial.kind not in {"packages", "python"}]
    assert known == []
    assert {trial.kind for trial in cell.trials} >= {"packages", "flags", "sources"}
    assert cell.content_key == planned.content_key
    printed = "\n".join(as_text([cell], with_passed=True)) + "\n"
    compare_with_golden(printed, f"rehearsals/{identifier}.txt")


@pytest.mark.parametrize(("stage", "outcome"), [(1, FAILED), (2, PASSED)])
def test_libraries_of_wheels_come_with_packages_of_the_last_stage(stage: int, outcome: str) -> None:
    commands = ["", "make", "ldconfig"]
    commands[stage] = "apt-get install libsm6"
    text = f"FROM a AS dev\nRUN {commands[1]} && pip3 install cffi==1.15.1\n"
    sample = Spec(
        image=shipped("hpc-base-1.0-ubuntu18.04-openmpi2.1-x86_64"),
        dockerfile=f"{text}FROM a\nRUN {commands[2]}\n",
        singularity="",
        files={},
    )
    needy = dataclasses.replace(sample_rehearsal(), libraries=LibraryTrials(lambda _: NEEDY))
    [trial] = [trial for trial in needy.of(sample).trials if trial.kind == "libraries"]
    assert (trial.outcome, trial.line) == (outcome, 2)


def test_a_bare_with_cuda_is_found_in_a_cell() -> None:
    """Before the toolkit's folder was named, this ended Open MPI's build."""
    bare = ["cd /var/tmp/openmpi && ./configure --with-cuda"]
    sample = recipe("aware", development=(block("cuda"), block("shell", line=9, commands=bare)))
    project = dataclasses.replace(shipped_project(), recipes={"aware": sample})
    selection = Selection(images=("aware-1.0-debian13-cuda12.4-x86_64",))
    planned = make_plan(project, selection, compiler="").images[0]
    cell = sample_rehearsal().of(spec.compile_spec(planned, run_checks="#!/bin/sh\n"))
    [trial] = [trial for trial in cell.of(FAILED) if trial.kind == "toolkit"]
    assert "in /usr" in trial.text


def test_a_rehearsal_on_this_machine_has_what_is_copied_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_MIRROR", "http://a.example/debian")
    monkeypatch.setattr(rehearsal, "own_index", lambda _: "")
    home = Home(path=tmp_path / "home")
    with pytest.raises(MissingPrerequisite, match="this machine's pip names no package index"):
        rehearsal_here(tmp_path, (), home, Servers())
    monkeypatch.setattr(rehearsal, "own_index", lambda _: "https://index.example/simple")
    here = rehearsal_here(tmp_path, [tmp_path / "own"], home, Servers())
    stored, lost = (
        LockedSource(url=f"https://a.example/{file}", file=file, sha256=digit * 64, size=1)
        for file, digit in (("a.tar", "a"), ("b.tar", "b"))
    )
    write_file(home.source(stored.sha256), b"")
    sample = Spec(
        image=shipped("hpc-base-1.0-debian13-openmpi5.0-x86_64"),
        dockerfile="FROM a\nCOPY files/x /opt/x\n",
        singularity="",
        files={"files/x": "text"},
        sources=(stored, lost),
    )
    clones = [tmp_path / "own/o/a.git", home.path / "clones/o/b.git"]
    for clone in clones:
        clone.mkdir(parents=True)
    with here.workspace_of(sample) as space:
        assert space.read("/opt/x") == "text"
        assert space.root.name.startswith("build-images-")
        assert space.stored == {"a.tar": home.source(stored.sha256)}
        told = [space.check_out(f"https://g.example/o/{one}", "v1", tmp_path) for one in "ab"]
    assert told == [f"the copy in {clone} has no v1, or not all of its files" for clone in clones]
    assert not space.root.exists()
    locked = dict(zip((stored, lost), here.sources.locked((stored, lost)), strict=True))
    assert [trial.outcome for trial in locked.values()] == [FAILED, NOT_TRIED]


# Results.

CELL = CellTrials(
    image="a-1.0-x86_64",
    content_key="k",
    trials=(
        passed("sources", "a", "there"),
        failed("python", "b", "wrong", 7, "pin it"),
        not_tried("conda", "c", "no route"),
    ),
)


def test_results_as_text() -> None:
    assert list(as_text([CELL], with_passed=False)) == [
        "a-1.0-x86_64: 1 passed, 1 failed, 1 not tried",
        "    failed: python: b (Dockerfile:7)",
        "        wrong",
        "        hint: pin it",
        "    not tried: conda: c",
        "        no route",
        "1 cell rehearsed, 1 with failures",
    ]
    assert "    passed: sources: a" in list(as_text([CELL], with_passed=True))


@pytest.mark.parametrize(("trials", "code"), [(CELL.trials, 1), (CELL.trials[:1], 0)])
def test_the_command_ends_with_1_if_anything_failed(
    trials: tuple[Trial, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = dataclasses.replace(CELL, trials=trials)
    rehearsal = SimpleNamespace(of=lambda _: cell)
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    monkeypatch.setattr(rehearse, "rehearsal_here", lambda *_: rehearsal)
    image = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
    words = ("rehearse", f"--project={ROOT}", f"--image={image}")
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out.splitlines() == list(as_text([cell], with_passed=False))
    assert f"1 of 1: {image}\n" in err
    assert main([*words, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(as_json([cell])))
    assert read_record(tmp_path / "rehearsals", "k") is not None


def test_results_as_json() -> None:
    trial = {
        "kind": "python",
        "subject": "b",
        "outcome": "failed",
        "text": "wrong",
        "line": 7,
        "hint": "pin it",
    }
    one = dataclasses.replace(CELL, trials=CELL.trials[1:2])
    assert as_json([one]) == {
        "schema": "build-images/rehearsal/v1",
        "cells": [
            {"image": "a-1.0-x86_64", "content_key": "k", "asked": one.asked, "trials": [trial]}
        ],
    }


def test_a_rehearsal_holds_for_one_content_key(tmp_path: Path) -> None:
    write_record(tmp_path / "rehearsals", CELL, "2026-11-24")
    results = read_record(tmp_path / "rehearsals", "k")
    assert str(results) == "rehearsed on 2026-11-24: 2 trials, 1 failed; 1 could not be tried"
    assert json.loads((tmp_path / "rehearsals/k.json").read_text()) == {
        "content_key": "k",
        "date": "2026-11-24",
        "passed": 1,
        "failed": 1,
        "not_tried": 1,
    }
    fine = dataclasses.replace(CELL, content_key="fine", trials=CELL.trials[:1])
    write_record(tmp_path / "rehearsals", fine, "2026-11-24")
    told = "rehearsed on 2026-11-24: 1 trials, none failed; 0 could not be tried"
    assert str(read_record(tmp_path / "rehearsals", "fine")) == told
    (tmp_path / "rehearsals/fine.json").write_text("{")
    assert read_record(tmp_path / "rehearsals", "fine") is None
    (tmp_path / "rehearsals/other.json").write_text(json.dumps(write(results)))
    assert read_record(tmp_path / "rehearsals", "other") is None
    assert read_record(tmp_path / "rehearsals", "another") is None
    another = dataclasses.replace(CELL, content_key="another")  # of another project
    write_record(tmp_path / "rehearsals", another, "2026-11-24")
    assert read_record(tmp_path / "rehearsals", "k") == results
    assert read_record(tmp_path / "rehearsals", "another") is not None


@pytest.mark.parametrize(
    ("outcome", "more", "text"),
    [
        ("verified", {}, "built and proven here, without a GPU"),
        ("verified", {"emulated": True}, "built and proven here, emulated, without a GPU"),
        ("verified", {"proven_on_gpu": True}, "built and proven here"),
        ("failed", {}, "built here: failed"),
    ],
)
def test_explain_never_says_more_than_was_seen(
    outcome: str, more: dict[str, bool], text: str, tmp_path: Path
) -> None:
    """What was built counts before what was rehearsed, and neither for another content key."""
    planned = shipped("cuda-base-1.0-debian13-cuda12.4-openmpi5.0-ppc64le")
    changed = dataclasses.replace(planned, content_key="another")
    home = Home(path=tmp_path)
    assert seen_of(tmp_path, home, planned) == "compiled only: neither built nor rehearsed here"
    cell = dataclasses.replace(CELL, image=planned.identifier, content_key=planned.content_key)
    write_record(home.rehearsals, cell, "2026-11-24")
    assert seen_of(tmp_path, home, planned).startswith("rehearsed on 2026-11-24: ")
    assert seen_of(tmp_path, home, changed) == "compiled only: neither built nor rehearsed here"
    folder = tmp_path / planned.identifier
    folder.mkdir()
    manifest = record(
        {
            "image": planned.identifier,
            "content_key": planned.content_key,
            "outcome": outcome,
            **more,
        }
    )
    (folder / "manifest.json").write_text(manifest_text(manifest))
    assert seen_of(tmp_path, home, planned) == text
    assert seen_of(tmp_path, home, changed) == "compiled only: neither built nor rehearsed here"


def test_explain_shows_what_was_seen() -> None:
    planned = shipped("hpc-base-1.0-debian13-openmpi5.0-ppc64le")
    plan = Plan(images=(planned,), left_out=())
    text = explanation(plan, decisions, seen=lambda _: "rehearsed")
    assert text.endswith("\n    seen: rehearsed")
    document = explanation_json(plan, decisions, seen=lambda _: "rehearsed")
    [shown] = json.loads("".join(streamed(document)))["in"]
    assert shown["seen"] == "rehearsed"


def test_equal_trials_are_shown_once() -> None:
    trials = [
        passed("flags", "x", "y", 3),
        passed("sources", "a", "b"),
        passed("flags", "x", "y", 3),
    ]
    assert [trial.kind for trial in in_order(trials)] == ["sources", "flags"]
    assert isinstance(trials[0], Trial)


KINDS = (
    *("sources", "clones", "packages", "python", "conda"),  # answers of servers
    *("patches", "flags", "toolkit", "imports", "libraries", "steps"),
)


def test_trials_are_in_the_order_of_their_kinds_and_lines() -> None:
    trials = [passed(kind, "x", "y", line) for kind in KINDS for line in (1, 2)]
    assert list(CELL.with_more(reversed(trials)).trials) == list(in_order([*CELL.trials, *trials]))
    assert list(in_order(trials[::-1])) == trials


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_asked_of_servers_is_told_apart(kind: str) -> None:
    same = CELL.with_more([failed(kind, "c", "no route")])
    more = CELL.with_more([passed(kind, "another", "there")])
    assert (more.asked != CELL.asked) == (kind in KINDS[:5])
    assert (same.asked == CELL.asked) == (kind == "conda" or kind not in KINDS[:5])
