"""Rehearsals of Python packages: wheels for a target, what is compiled, and with what."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from packaging.requirements import Requirement
from rehearse_samples import (
    BIONIC,
    CENTOS,
    python_trials,
    sample_index,
    sample_pip,
    shipped,
    step,
)
from samples import a_file, a_link, tar_bytes

from builder.system.process import Completed, Processes
from builder.verify.rehearse import python_packages
from builder.verify.rehearse.python_packages import PythonTrials
from builder.verify.rehearse.resolution import (
    Resolver,
    SourceDistribution,
    StandInWheels,
    Unresolvable,
    pip_of_this_machine,
    stand_in_of,
)
from builder.verify.rehearse.servers import Answer, Index, Unavailable, served
from builder.verify.rehearse.steps import PythonTarget, Step, pip_installs, target_of
from builder.verify.rehearse.trials import FAILED, NOT_TRIED, PASSED, Trial, not_tried

VENV = step("python3 -m venv /opt/v")
UPGRADE = step("/opt/v/bin/pip install --upgrade pip", line=2)
TOOLS = "setuptools==49.1.3 wheel==0.35.1 cython==0.29.36"


def trial_of(*commands: str, target: PythonTarget = BIONIC) -> Trial:
    """The trial of the last command, after others in an environment with the newest pip."""
    steps = [VENV, UPGRADE, *(step(f"/opt/v/bin/pip {text}", line=9) for text in commands)]
    return [*python_trials().of(steps, target)][-1]


@pytest.mark.parametrize(
    ("words", "is_newer"), [("-U pip", True), ("-U six", False), ("pip", False)]
)
def test_pip_is_newer_after_its_upgrade(words: str, is_newer: bool) -> None:
    steps = [VENV, *(step(f"/opt/v/bin/pip install {text}") for text in (words, "plain"))]
    _, command = pip_installs(steps, BIONIC)
    assert (command.target.pip != BIONIC.pip) is is_newer


WITHOUT_ISOLATION = "install --no-build-isolation pyyaml==5.4.1"
ELSEWHERE = "install --extra-index-url https://developer.example/x six==1.16.0"
COMPILED = "compiled with pinned requirements"
PIN = "use a version with a wheel, or pin its build requirements and add --no-build-isolation"


@pytest.mark.parametrize(
    ("commands", "outcome", "text"),
    [
        (
            (f"install {TOOLS} pyyaml==5.4.1",),
            FAILED,
            (
                "Python 3.6, glibc 2.27, ppc64le: pyyaml 5.4.1 has no wheel and is compiled with "
                "setuptools, wheel, Cython: the newest version at build time is used"
            ),
        ),
        (
            (f"install {TOOLS}", WITHOUT_ISOLATION),
            PASSED,
            f"{BIONIC.short}: 0 wheels; {COMPILED}: pyyaml 5.4.1",
        ),
        (
            ("install setuptools==49.1.3", WITHOUT_ISOLATION),
            FAILED,
            (
                f"{BIONIC.short}: pyyaml 5.4.1 has no wheel and is compiled with wheel, Cython: "
                "no earlier command pins that"
            ),
        ),
        # It is legacy: pip of Python 3.6 builds it with what is installed.
        (("install plain==1.0",), PASSED, f"{BIONIC.short}: 1 wheel; {COMPILED}: plain 1.0"),
        (
            ("install pyyaml==5.4.2",),
            FAILED,
            f"{BIONIC.short}: the index has no version that matches pyyaml==5.4.2",
        ),
        (("install silent==1.0",), NOT_TRIED, "index.example cannot be reached: no route"),
        (
            (ELSEWHERE,),
            NOT_TRIED,
            (
                "the index https://developer.example/x is not available: "
                "developer.example cannot be reached: no route"
            ),
        ),
        (
            ("install https://example.org/a.zip",),
            NOT_TRIED,
            "its requirements are in files or at URLs, not in an index",
        ),
    ],
)
def test_packages_that_a_command_installs(
    commands: tuple[str, ...], outcome: str, text: str
) -> None:
    """PyYAML 5.4.1 has no wheel for ppc64le, and does not compile with Cython 3."""
    trial = trial_of(*commands)
    assert (trial.outcome, trial.text, trial.line) == (outcome, text, 9)
    assert trial.hint == (PIN if "is compiled with" in text else "")


def test_where_there_is_a_wheel_nothing_is_compiled() -> None:
    trial = trial_of("install pyyaml==5.4.1", target=CENTOS)
    assert (trial.outcome, trial.text) == (PASSED, f"{CENTOS.short}: 1 wheel")


@pytest.mark.parametrize(
    ("pip", "outcome"), [("9.0.1", PASSED), ("23.0.1", PASSED), ("23.1", FAILED), ("24.0", FAILED)]
)
def test_pip_isolates_legacy_distributions_since_23_1(pip: str, outcome: str) -> None:
    target = PythonTarget(arch="x86_64", python="3.11.2", pip=pip, glibc="2.36")
    [*_, trial] = python_trials().of([step("pip3 install plain==1.0")], target)
    assert trial.outcome == outcome
    isolated = "setuptools>=40.8.0, wheel: the newest version"
    assert (isolated in trial.text) == (outcome == FAILED)


@pytest.mark.parametrize(("python", "outcome"), [("3.11.2", PASSED), ("3.12.3", FAILED)])
def test_an_environment_has_no_setuptools_since_python_3_12(python: str, outcome: str) -> None:
    target = PythonTarget(arch="x86_64", python=python, pip="9.0.1", glibc="2.36")
    [*_, trial] = python_trials().of([VENV, step("/opt/v/bin/pip install plain==1.0")], target)
    assert trial.outcome == outcome
    [*_, trial] = python_trials().of([step("pip3 install plain==1.0")], target)
    assert trial.outcome == PASSED  # the distribution's own Python has it


@pytest.mark.parametrize(
    ("marker", "applies"),
    [
        ('python_version == "3.6"', True),
        ('python_version < "3.6"', False),
        ('python_full_version == "3.6.9"', True),
        ('platform_machine == "ppc64le"', True),
        ('platform_machine == "x86_64"', False),
        ('platform_python_implementation == "CPython"', True),
        ('platform_python_implementation == "PyPy"', False),
        ('sys_platform == "linux"', True),
        ('sys_platform == "win32"', False),
        ('platform_system == "Linux"', True),
        ('platform_system == "Windows"', False),
        ('extra == "docs"', False),
        ('extra == ""', True),
    ],
)
def test_what_is_for_another_machine_is_not_asked_for(marker: str, applies: bool) -> None:
    requirement = Requirement(f"cython ; {marker}")
    assert python_packages._applies(requirement, BIONIC) == applies
    [command] = pip_installs([step("pip3 install a==1")], BIONIC)
    assert python_packages._is_installed(requirement, command) != applies
    assert python_packages._applies(Requirement("cython"), BIONIC)


BUILT_WITH = "a 1 has no wheel and is compiled with"
NEWEST = "the newest version at build time is used"
REDIST = "https://developer.download.nvidia.com/compute/redist"


@pytest.mark.parametrize(
    ("index", "package", "is_there"),
    [
        (REDIST, "nvidia-dali==0.9.1", False),
        (REDIST, "NVIDIA_DALI>1", False),
        (REDIST, "nvidia-dali==0.23", True),
        (REDIST, "nvidia-dali-cuda100==0.23", True),
        (f"{REDIST}/cuda/10.0", "nvidia-dali==0.9.1", True),
    ],
)
def test_a_publishers_own_index_has_to_be_named(index: str, package: str, is_there: bool) -> None:
    """DALI 0.8 to 0.22 are in an index of their own for each CUDA."""
    steps = [step(f"pip3 install --extra-index-url {index} {package}")]
    [trial] = python_trials(silent="nvidia.com").of(steps, CENTOS)
    assert trial.outcome == (NOT_TRIED if is_there else FAILED)
    named = f"{package} is in an index such as {REDIST}/cuda/10.0 (https://docs.nvidia.com/"
    assert trial.text.startswith(named) is not is_there


@pytest.mark.parametrize(
    ("requires", "text"),
    [
        ("setuptools==49.1.3, wheel===0.35.1", "0 wheels; compiled with pinned requirements: a 1"),
        ("setuptools==49.1.3, wheel>=0.3", f"{BUILT_WITH} wheel>=0.3: {NEWEST}"),
    ],
)
def test_requirements_that_a_source_itself_pins_are_the_same_on_another_day(
    requires: str, text: str
) -> None:
    project = f"[build-system]\nrequires = {requires.split(', ')}\n"
    link = a_link("a-1/PKG-INFO", "nowhere")
    source = gzip.compress(tar_bytes(a_file("a-1/pyproject.toml", project), link))
    files = [{"filename": "a-1.tar.gz", "url": "https://index.example/a-1.tar.gz"}]
    page = json.dumps({"files": files}).encode()
    index = Index("", lambda url, **_: source if url.endswith(".gz") else page)
    trials = PythonTrials(
        Resolver(index=index, run_pip=sample_pip(index)), lambda _: Answer(has=True)
    )
    [trial] = trials.of([step("pip3 install a==1")], BIONIC)
    assert trial.text == f"{BIONIC.short}: {text}"


def test_what_is_from_no_index_has_no_trial_without_dependencies() -> None:
    steps = [step("pip3 install --no-deps --target /opt/a .")]
    assert [*python_trials().of(steps, CENTOS)] == []
    steps = [step("pip3 install -U pip"), step("pip3 install six==1.16.0 ./a -e b", line=3)]
    [_, trial] = python_trials().of(steps, None)
    reason = "the tables of facts do not say which Python the distribution has"
    assert trial == not_tried("python", "pip install six==1.16.0 ./a -e b", reason, 3)
    [trial, other] = python_trials().of([step("pip3 install six==1.16.0 ./a -e b")], CENTOS)
    reason = "its requirements are in files or at URLs, not in an index"
    assert trial == not_tried("python", "pip install ./a -e b", reason, 1)
    assert other.outcome == PASSED


def test_equal_commands_are_resolved_once() -> None:
    index, calls = sample_index(), []

    def run(arguments: Sequence[str]) -> Completed:
        calls.append(arguments)
        return sample_pip(index)(arguments)

    trials = python_trials()
    trials._resolver = Resolver(index=index, run_pip=run)
    for line in (1, 2):
        [*trials.of([step("pip3 install six==1.16.0", line=line)], CENTOS)]
    assert len(calls) == 1


def test_pip_is_asked_for_the_target_and_with_the_commands_options() -> None:
    calls, asked = list[Sequence[str]](), list[str]()

    def run(arguments: Sequence[str]) -> Completed:
        calls.append(arguments)
        return Completed(argv=(), returncode=1)

    def ask(url: str) -> Answer:
        asked.append(url)
        return Answer(has=True)

    trials = PythonTrials(Resolver(index=sample_index(), run_pip=run), ask)
    indexes = "--index-url https://a/s/ --extra-index-url https://b/s"
    [trial] = trials.of([step(f"pip3 install --no-deps {indexes} six==1.16.0 b")], BIONIC)
    assert trial.text == f"{BIONIC.short}: pip ended with exit status 1"
    assert asked == ["https://a/s/", "https://b/s/"]
    [argv] = calls
    folder = Path(argv[argv.index("--target") + 1]).parent
    own = argv[argv.index("--extra-index-url") + 1]
    assert argv == [
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-cache-dir", "--use-feature=fast-deps"),
        *("--only-binary=:all:", "--target", f"{folder}/target", "--python-version", "3.6.9"),
        *("--implementation", "cp", "--abi", "cp36m", "--platform", "linux_ppc64le"),
        *("--extra-index-url", own, "--report", f"{folder}/report.json"),
        *("--no-deps", *indexes.split(), "six==1.16.0", "b"),
    ]
    assert folder.name.startswith("build-images-")
    assert not folder.exists()
    assert own.startswith("http://127.0.0.1:")
    [*trials.of([step("pip3 install six")], BIONIC)]
    assert calls[1][-3:-1] == ["--report", calls[1][-2]]


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        ("ERROR: a and b conflict\n", "a and b conflict"),
        ("WARNING: old\nERROR: a\n\nERROR: b\nc\nd\ne\n", "a; b; c; d"),
        ("WARNING: old\n", "pip ended with exit status 7"),
        (
            "x\nERROR: No matching distribution found for a<2,>=1 (from b)\n",
            "the index has no version that matches a<2,>=1",
        ),
    ],
)
def test_a_resolution_that_pip_refuses_says_why(stderr: str, text: str) -> None:
    def run(_: Sequence[str]) -> Completed:
        return Completed(argv=(), returncode=7, stderr=stderr)

    with pytest.raises(Unresolvable) as raised:
        Resolver(index=sample_index(), run_pip=run).resolve(["six"], CENTOS)
    assert str(raised.value) == text


# Targets: which wheels the pip of a distribution takes.


@pytest.mark.parametrize(
    ("python", "pip", "abi"),
    [
        ("3.6.9", "21.3.1", "cp36m"),
        ("3.7.3", "24.0", "cp37m"),
        ("3.8.10", "25.0.1", "cp38"),
        ("3.9.2", "25.1", "cp39"),
        ("3.13", "25.1", "cp313"),
    ],
)
def test_the_last_pip_for_a_python(python: str, pip: str, abi: str) -> None:
    target = PythonTarget(arch="x86_64", python=python, pip="9.0.1", glibc="2.27")
    upgraded = target.upgraded()
    assert upgraded == PythonTarget(arch="x86_64", python=python, pip=pip, glibc="2.27")
    assert (target.abi, upgraded.abi) == (abi, abi)
    series = ".".join(python.split(".")[:2])
    assert target.short == f"Python {series}, glibc 2.27, x86_64"


PERENNIAL = tuple(f"manylinux_2_{minor}" for minor in range(17, 4, -1))


@pytest.mark.parametrize(
    ("arch", "pip", "glibc", "platforms"),
    [
        ("x86_64", "18.1", "2.4", ()),
        ("x86_64", "18.1", "2.5", ("manylinux1",)),
        ("x86_64", "18.1", "2.17", ("manylinux1",)),
        ("x86_64", "19.0", "2.11", ("manylinux1",)),
        ("x86_64", "19.0", "2.12", ("manylinux2010", "manylinux1")),
        ("x86_64", "19.2", "2.17", ("manylinux2010", "manylinux1")),
        ("x86_64", "19.3", "2.16", ("manylinux2010", "manylinux1")),
        ("x86_64", "20.2", "2.17", ("manylinux2014", "manylinux2010", "manylinux1")),
        ("x86_64", "20.3", "2.17", (*PERENNIAL, "manylinux2014", "manylinux2010", "manylinux1")),
        ("ppc64le", "19.2", "2.17", ()),
        ("ppc64le", "19.3", "2.16", ()),
        ("ppc64le", "19.3", "2.17", ("manylinux2014",)),
        ("ppc64le", "9.0.1", "2.27", ()),
        ("aarch64", "20.3", "2.18", ("manylinux_2_18", "manylinux_2_17", "manylinux2014")),
    ],
)
def test_the_wheels_that_a_pip_takes(
    arch: str, pip: str, glibc: str, platforms: tuple[str, ...]
) -> None:
    target = PythonTarget(arch=arch, python="3.6.9", pip=pip, glibc=glibc)
    assert target.platforms == tuple(f"{name}_{arch}" for name in (*platforms, "linux"))
    tags = {str(tag) for tag in target.tags}
    assert {"py3-none-any", "cp36-none-any", f"cp36-cp36m-linux_{arch}"} <= tags
    assert ("cp36-cp36m-manylinux1_x86_64" in tags) == ("manylinux1" in platforms)


def test_what_is_not_known_of_a_distribution_has_no_target() -> None:
    planned = shipped("hpc-base-1.0-centos7-openmpi1.10-ppc64le")
    assert target_of(planned) == dataclasses.replace(CENTOS, arch="ppc64le")
    assert planned.system
    bare = dataclasses.replace(planned.system, python="")
    assert target_of(dataclasses.replace(planned, system=bare)) is None
    assert target_of(dataclasses.replace(planned, system=None)) is None


# Commands.


def commands(*steps: Step) -> list[tuple[str, tuple[str, ...], str]]:
    return [
        (each.environment, each.requirements, each.target.python)
        for each in pip_installs(steps, BIONIC)
    ]


def test_environments_are_told_apart() -> None:
    conda = step("bash /var/tmp/Miniconda3-py310_23.11.0-2-Linux-ppc64le.sh -b -p /opt/conda")
    results = commands(
        VENV,
        conda,
        step("/opt/v/bin/pip install a==1"),
        step("/opt/conda/bin/pip install b==2"),
        step("pip3 install --user c==3"),
        step("python3 -m pip install d==4"),
        step("pip3 freeze"),
    )
    assert results == [
        ("/opt/v", ("a==1",), "3.6.9"),
        ("/opt/conda", ("b==2",), "3.10.0"),
        ("", ("c==3",), "3.6.9"),
        ("", ("d==4",), "3.6.9"),
    ]


def test_options_between_requirements_are_no_requirements() -> None:
    line = "pip3 --no-cache-dir install a==1 --target /opt/x --global-option=--cpp b==2 -r c.txt ."
    [command] = pip_installs([step(line)], BIONIC)
    assert command.requirements == ("a==1", "b==2")
    assert command.others == (".", "-r c.txt")


VALUES = (
    *("--config-settings", "--global-option", "--build-option", "--install-option", "--prefix"),
    *("--root", "--src", "--progress-bar", "--cache-dir", "--cert", "--proxy", "--log"),
    *("--timeout", "--retries", "--trusted-host", "--report", "--no-binary", "--only-binary"),
    *("--target", "-t", "--find-links", "-f"),
)
FLAGS = ("--no-cache-dir", "--user", "--ignore-installed", "--quiet", "-q", "--no-compile", "--")


@pytest.mark.parametrize("option", [*(f"{name} value" for name in VALUES), *FLAGS])
def test_what_belongs_to_an_option_is_no_requirement(option: str) -> None:
    [command] = pip_installs([step(f"pip3 install a==1 {option} b")], BIONIC)
    assert (command.requirements, command.others) == (("a==1", "b"), ())
    assert (command.is_isolated, command.with_dependencies, command.upgrades) == (True, True, False)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--index-url https://i/s", {"index": "https://i/s"}),
        ("-i https://i/s", {"index": "https://i/s"}),
        ("--extra-index-url https://a --extra-index-url=https://b", {"extra_indexes": 2}),
        ("--constraint c.txt -c d.txt", {"others": 0}),
        ("--requirement a.txt -r b.txt", {"others": 2}),
        ("--editable ./a -e ./b", {"others": 2}),
        ("--no-build-isolation", {"is_isolated": False}),
        ("--no-deps", {"with_dependencies": False}),
        ("--upgrade", {"upgrades": True}),
        ("-U", {"upgrades": True}),
        ("a@https://a.example/a.zip ./b", {"others": 2}),
        ("c.whl d.zip e.tar.gz f.tgz g.tar.bz2 h.tar.xz", {"others": 6}),
    ],
)
def test_options_of_pip_that_count(words: str, changes: dict[str, Any]) -> None:
    for program in ("pip", "pip3", "pip3.11", "python3 -m pip", "/usr/bin/pip3"):
        [command] = pip_installs([step(f"{program} install {words} six==1")], BIONIC)
        assert command.environment == ""
        assert command.requirements == ("six==1",)
        for name, value in changes.items():
            results = getattr(command, name)
            assert (len(results) if isinstance(results, tuple) else results) == value
    for program in ("pip3x", "python2 -m pip", "python3 -m pipx", "conda"):
        assert not [*pip_installs([step(f"{program} install {words} six==1")], BIONIC)]


# The index, and source distributions.


ROWS: list[dict[str, Any]] = [
    {"filename": "a-1.0-py3-none-any.whl"},
    {"filename": "a-2.0.tar.gz", "requires-python": ">=3.8"},
    {"filename": "A-2.1.zip", "requires-python": "not a version"},
    {"filename": "a-3.0.tar.gz", "yanked": "broken"},
    {"filename": "a-4.0rc1.tar.gz"},
    {"filename": "a-5!1.0+local.tar.gz"},
    {"filename": "a-5.0-py3.6.egg"},
    {"filename": "a-5.0.exe"},
    {"filename": "a-5.0-py3.whl"},
    {"filename": "nothing.tar.gz"},
    {"filename": "a-1.0.tar.gz"},  # there is a wheel of it
    {"filename": "a-6.0-cp39-cp39-win_amd64.whl"},
]


def test_versions_without_a_wheel_have_a_stand_in() -> None:
    """What pip needs to choose is that of the source distribution."""
    rows = [{"url": f"https://index.example/{row['filename']}", **row} for row in ROWS]
    stand_ins = StandInWheels(
        Index("", lambda *_, **__: json.dumps({"files": rows}).encode()), BIONIC
    )
    page = json.loads(stand_ins.answer("/a/") or b"")
    files: list[dict[str, Any]] = [
        {
            "filename": (name := f"a-{version}-py3-none-any.whl"),
            "url": f"/{name}",
            "hashes": {},
            "yanked": yanked,
            "requires-python": python,
        }
        for version, python, yanked in (
            ("2.0", ">=3.8", False),
            ("2.1", "not a version", False),
            ("3.0", None, True),
            ("4.0rc1", None, False),
            ("5!1.0+local", None, False),
        )
    ]
    assert page == {"meta": {"api-version": "1.0"}, "name": "a", "files": files}
    for file in (page["files"][0], page["files"][-1]):
        assert stand_ins.answer(quote(file["url"])) is None
    shown = [str(problem) for problem in stand_ins.problems]
    assert "the source of a-2.0-py3-none-any.whl is damaged" in shown[0]
    assert "the source of a-5!1.0+local-py3-none-any.whl is damaged" in shown[1]


@pytest.mark.parametrize("length", [0, 60])
def test_a_source_that_breaks_off_is_no_answer(length: int) -> None:
    files = [{"filename": "a-1.tar.gz", "url": "https://index.example/a-1.tar.gz"}]
    page, source = json.dumps({"files": files}).encode(), tar_bytes(a_file("a-1/PKG-INFO", "x"))

    def read(url: str, **_: str) -> bytes:
        return gzip.compress(source)[:length] if url.endswith(".gz") else page

    stand_ins = StandInWheels(Index("", read), BIONIC)
    assert stand_ins.answer("/a/")
    assert stand_ins.answer("/a-1-py3-none-any.whl") is None
    assert "the source of a-1-py3-none-any.whl is damaged" in str(stand_ins.problems[0])


def test_pip_itself_resolves_with_stand_ins() -> None:
    """It takes the newest version, whether that has a wheel or not, and what that requires."""
    wheels = {
        f"{name}-{version}-py3-none-any.whl": stand_in_of(
            SourceDistribution(
                name=name, version=version, requires=(), build_requires=(), is_legacy=False
            )
        )
        for name, version in (("six", "1.17.0"), ("plain", "0.9"))
    }

    def answer(path: str) -> bytes | None:
        project = path.strip("/")
        files = [
            {"filename": name, "url": f"/{name}", "hashes": {}}
            for name in wheels
            if name.startswith(project)
        ]
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
        return wheels.get(project) or json.dumps(page).encode()

    with served(answer) as url:
        resolver = Resolver(index=sample_index(), run_pip=pip_of_this_machine(Processes(), url))
        packages = resolver.resolve(["plain"], BIONIC)
        assert [(package.name, package.version) for package in packages] == [
            ("plain", "1.0"),
            ("six", "1.17.0"),
        ]
        assert [package.source is None for package in packages] == [False, True]
        with pytest.raises(Unresolvable, match=r"^the index has no version that matches plain>1$"):
            resolver.resolve(["plain>1"], BIONIC)


def test_what_an_index_tells_of_a_file() -> None:
    url = "https://index.example/a-1.0-py3-none-any.whl"
    rows = [{**ROWS[0], "url": url}, {**ROWS[1], "url": "https://index.example/a-2.0.tar.gz"}]
    index = Index("", lambda *_, **__: json.dumps({"files": rows}).encode())
    wheel, source = index.files("a")
    assert (wheel.name, wheel.url) == ("a-1.0-py3-none-any.whl", url)
    assert {str(tag) for tag in wheel.tags} == {"py3-none-any"}
    assert (source.tags, source.is_yanked) == (frozenset(), False)
    assert (wheel.requires_python, source.requires_python) == ("", ">=3.8")


def test_a_project_that_an_index_lacks_has_no_files() -> None:
    assert sample_index().files("nothing") == ()
    with pytest.raises(Unavailable):
        sample_index().files("silent")
