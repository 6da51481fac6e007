"""The command line as a user meets it: what is printed where, and the exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from golden_cells import SHIPPED
from manifest_samples import document, record
from projects import copy_of_project
from samples import (
    GOLDEN,
    ROOT,
    compare_with_golden,
    default_plan,
    plan_of,
    shipped_project,
)

from builder.build.engines import ENGINES, Tools
from builder.build.inputs import packed_files
from builder.build.run import BuildSettings
from builder.build.run import Run as ImageRun
from builder.cli import build, main
from builder.cli.commands import ABOUT as COMMANDS
from builder.cli.commands import command_of, make_parser, options_of, parse
from builder.cli.options import Options, ProgressOptions, SelectorOptions
from builder.model import Plan
from builder.model.cells import SELECTABLE
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.manifest import manifest_text
from builder.model.measurement import HostFacts
from builder.model.planned import by_reason
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.main_job import Results

PROJECT = f"--project={ROOT}"


SCREEN = 24  # lines
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands set a handler for SIGTERM, and keep their things at home."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(name="project")
def copied_project(tmp_path: Path) -> Path:
    """A copy of the shipped project that a test may break."""
    return copy_of_project(tmp_path / "project")


class Printed:
    """A command's exit code, and what it printed."""

    def __init__(self, capsys: Capture, *argv: str) -> None:
        try:
            self.code: Any = main(argv)
        except SystemExit as ended:
            self.code = ended.code
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Printed]


@pytest.fixture(name="run")
def command_line(capsys: Capture) -> Run:
    return functools.partial(Printed, capsys)


def test_plan_lists_the_default_selection_in_order(run: Run, project: Path) -> None:
    done = run("plan", f"--project={project}")  # the shipped one may be built by now
    assert (done.code, done.err) == (0, "")
    *lines, last = done.out.splitlines()
    assert [line.split()[:2] for line in lines[::3]] == [
        ["1.", "hpc-base-1.0-debian13-openmpi5.0-x86_64"],
        ["2.", "hpc-base-1.0-debian13-openmpi5.0-ppc64le"],
    ]
    assert re.fullmatch(
        r"2 images(; \d+ left out \('build-images explain' with the same selectors says why\))?",
        last,
    )


def test_plan_says_what_will_happen_to_each_stage(run: Run, project: Path) -> None:
    selectors = ("--base=debian13", "--cuda=none", "--mpi=openmpi5.0", "--arch=x86_64")
    recipes = ("--recipe=hpc-base", "--recipe=python-mpi")
    done = run("plan", f"--project={project}", *selectors, *recipes)
    why = "its base is not in the store"
    assert [
        line.split(maxsplit=1) for line in done.out.splitlines() if line.startswith("    ")
    ] == [
        ["hpc-base-development", f"to build: {why}"],
        ["runtime", f"to build: {why}"],
        ["hpc-base-development", "shared with hpc-base-1.0-debian13-openmpi5.0-x86_64"],
        ["python-mpi-development", f"to build: {why}"],
        ["runtime", f"to build: {why}"],
    ]
    again = run("plan", f"--project={project}", *selectors, *recipes)  # from what was kept
    assert again.out == done.out
    dry = run("--dry-run", f"--project={project}", *selectors, *recipes)
    assert dry.out == done.out


def test_the_stages_of_many_images_are_shown_when_asked_for(run: Run) -> None:
    recipes = ("--recipe=hpc-base", "--recipe=python-mpi")
    assert "-development " not in run("plan", PROJECT, *recipes).out
    stages = len(plan_of("hpc-base").images) + 2 * len(plan_of("python-mpi").images)
    assert run("plan", PROJECT, *recipes, "--stages").out.count("-development ") == stages


def test_plan_says_what_will_happen(project: Path, run: Run) -> None:
    done = run("plan", f"--project={project}", "--arch=x86_64", "--mpi=openmpi5")
    lines = [line for line in done.out.splitlines()[:-1] if not line.startswith("    ")]
    assert all(line.endswith("to build") for line in lines)


def test_plan_as_json(run: Run) -> None:
    plan = plan_of("hpc-base")
    found = run("plan", PROJECT, "--recipe=hpc-base", "--json").json
    assert found["schema"] == "build-images/plan/v1"
    assert [row["image"] for row in found["images"]] == [image.identifier for image in plan.images]
    first, image = found["images"][0], plan.images[0]
    stages, why = first.pop("stage_states"), "its base is not in the store"
    assert all(re.fullmatch("[0-9a-f]{64}", stage.pop("key")) for stage in stages)
    assert stages == [
        {"stage": name, "state": "to build", "shared_with": "", "why": why}
        for name in ("hpc-base-development", "runtime")
    ]
    assert first.pop("state")  # the shipped project may be built by now
    assert first == {
        "image": image.identifier,
        "cell": dataclasses.asdict(image.cell),
        "content_key": image.content_key,
        "base_image": image.base_image,
        "stages": ["hpc-base-1.0"],
        "checks": [check.name for check in image.checks],
    }
    assert found["left_out"] == left_out(plan)


def left_out(plan: Plan) -> list[dict[str, Any]]:
    """The cells that a plan leaves out, as JSON has them."""
    return [
        {
            "image": one.cell.identifier,
            "cell": dataclasses.asdict(one.cell),
            "reasons": [{"layer": each.layer, "text": each.text} for each in one.reasons],
        }
        for one in plan.left_out
    ]


def test_plan_as_a_graph(run: Run) -> None:
    done = run("plan", PROJECT, "--recipe=python-mpi", "--arch=x86_64", "--graph")
    lines = done.out.splitlines()
    assert (lines[0], lines[-1]) == ("digraph plan {", "}")
    edges = [line for line in lines if " -> " in line]
    assert len(edges) == len(set(edges))
    assert '  "debian13 x86_64" -> "hpc-base debian13 none openmpi5.0 x86_64";' in edges
    assert re.search(r'"python-mpi debian13 \S+ openmpi5.0 x86_64" -> "python-mpi-1.0-', done.out)


def test_explain_says_why(run: Run) -> None:
    selectors = ("--recipe=python-mpi", "--base=debian13", "--cuda=none", "--verbose")
    done = run("explain", PROJECT, *selectors)
    assert done.code == 0
    assert "+ python-mpi-1.0-debian13-openmpi5.0-ppc64le\n" in done.out
    assert "    recipes: python-mpi 1.0 <- hpc-base 1.0\n" in done.out
    assert "- python-mpi-1.0-debian13-openmpi4.1-x86_64\n" in done.out
    assert "    base image: debian13 packages Open MPI 5.0.7, not 4.1" in done.out
    assert "hpccm treats it as ubuntu24" in done.out


def test_explain_as_json(run: Run) -> None:
    plan = plan_of("hpc-base")
    found = run("explain", PROJECT, "--recipe=hpc-base", "--json").json
    assert found["schema"] == "build-images/explanation/v1"
    assert [one["image"] for one in found["in"]] == [one.identifier for one in plan.images]
    first = found["in"][0]
    assert first.keys() == {"image", "decided", "layers", "seen"}
    assert first["seen"]
    assert "recipes: hpc-base 1.0" in first["decided"]
    assert found["out"] == left_out(plan)


def test_outputs_name_the_command_that_shows_the_rest(run: Run) -> None:
    last = run("plan", PROJECT, "--recipe=hpc-base").out.splitlines()[-1]
    assert last.endswith(" left out ('build-images explain' with the same selectors says why)")
    lines = run("explain", PROJECT, "--recipe=hpc-base").out.splitlines()
    more = len(plan_of("hpc-base").images) - 4
    assert lines[5] == f"  and {more} more: 'build-images plan' with the same selectors lists them"


def test_explain_groups_many_cells_that_are_left_out(run: Run) -> None:
    left = plan_of("hpc-base").left_out
    assert len(left) > 50
    lines = run("explain", PROJECT, "--recipe=hpc-base", "--verbose").out.splitlines()
    begin = lines.index(f"{len(left)} cells are left out:")
    groups = [
        [f"- {text}", *(f"    {one}" for one in cells)]
        for text, cells in by_reason((one.cell, one.reasons) for one in left)
    ]
    assert lines[begin + 1 :] == [line for group in groups for line in group]


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ([], {}),
        (
            ["--format=sif", "--engine=docker", "--jobs=2", "--no-cache", "--offline", "-v"],
            {
                "formats": ("oci", "sif"),
                "engine": "docker",
                "jobs": 2,
                "cache": False,
                "offline": True,
                "verbose": True,
            },
        ),
        (
            ["--refresh", "--no-verify", "--no-native-tools", "--max-index-age=3"],
            {
                "refresh": True,
                "cache": False,
                "verify": False,
                "native_tools": False,
                "max_index_age": 3,
            },
        ),
    ],
)
def test_the_main_job_is_done_as_is_asked(
    argv: list[str],
    changes: dict[str, Any],
    project: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[BuildSettings] = []

    def prepared(settings: BuildSettings, *_: Any, **__: Any) -> None:
        given.append(settings)
        raise MissingPrerequisite("noted")

    monkeypatch.setattr(build, "prepare", prepared)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert run(f"--project={project}", "--no-lint", *argv).code == 4
    expected = BuildSettings(project=project, out=project / "out", jobs=3, epoch=1_700_000_000)
    assert given == [dataclasses.replace(expected, **changes)]


def test_spec_writes_what_the_golden_files_hold(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "specs"
    asked = [f"--image={identifier}" for identifier in SHIPPED]
    done = run("spec", PROJECT, *asked, "--output", str(out), "--no-lint")
    assert done.code == 0  # test_lint_linters.py lints them
    assert sorted(done.out.splitlines()) == sorted(str(out / one) for one in SHIPPED)
    for identifier in SHIPPED:
        for name in ("Dockerfile", "Singularity.def"):
            golden = GOLDEN / "spec" / identifier / name
            assert (out / identifier / name).read_bytes() == golden.read_bytes()
        assert (out / identifier / "files/run-checks").is_file()


def test_spec_again_changes_nothing(tmp_path: Path, run: Run) -> None:
    def written() -> dict[str, bytes]:
        run("spec", PROJECT, "-o", str(tmp_path / "out"), "--no-lint")
        return {
            str(one): one.read_bytes() for one in (tmp_path / "out").rglob("*") if one.is_file()
        }

    assert written() == written() != {}


def test_dry_run_builds_nothing(
    tmp_path: Path, project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr(build, "run_job", refuse)
    monkeypatch.setattr("builder.system.process.subprocess.Popen", refuse)
    done = run("--dry-run", f"--project={project}")
    assert (done.code, done.err) == (0, "")
    assert "hpc-base-1.0-debian13-openmpi5.0-ppc64le" in done.out
    assert not (project / "out").exists()
    assert not (tmp_path / "home").exists()


def broken(project: Path) -> Path:
    recipe = project / "recipes/hpc-base.yaml"
    recipe.write_text(recipe.read_text().replace("fortran:", "fortan:"))
    child = project / "recipes/python-mpi.yaml"
    child.write_text(child.read_text().replace("parent: hpc-base", "parent: hpc-bsae"))
    matrix = project / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("axes:", "axis:"))
    return project


@pytest.mark.parametrize(
    "argv", [["plan"], ["plan", "--json"], ["explain"], ["spec"], [], ["--dry-run"]]
)
def test_bad_input_is_told_all_at_once(argv: list[str], project: Path, run: Run) -> None:
    done = run(*argv, f"--project={broken(project)}")
    assert (done.code, bool(done.out)) == (2, "--json" in argv)
    assert re.search(r"^build-images: \d faults in 3 files; nothing was built\.$", done.err, re.M)
    assert 'unknown argument of gnu "fortan"; did you mean "fortran"?' in done.err
    assert "hpc-bsae" in done.err
    assert "axis" in done.err
    assert re.search(r"^recipes/hpc-base\.yaml:\d+: ", done.err, re.M)
    assert "Traceback" not in done.err
    assert not (project / "out").exists()


def test_faults_of_several_specs_are_told_at_once(project: Path, run: Run) -> None:
    for name in ("hpc-base", "python-mpi"):
        file = project / f"recipes/{name}.yaml"
        text = file.read_text().replace(
            "\ndevelopment:\n", "\ndevelopment:\n  - hdf5: {version: newest}\n"
        )
        file.write_text(text)
    done = run("spec", f"--project={project}", "--recipe=python-mpi", "--base=debian13")
    assert (done.code, done.out) == (2, "")
    assert "recipes/hpc-base.yaml:" in done.err
    assert "hpccm refuses this block" in done.err


def test_no_project_here(tmp_path: Path, run: Run) -> None:
    done = run("plan", f"--project={tmp_path}")
    assert (done.code, done.out) == (2, "")
    assert "--project DIR" in done.err


def test_a_project_without_run_checks(project: Path, run: Run) -> None:
    (project / "tests/images/run-checks").unlink()
    # With MPICH, mpi4py is a locked source, and this project has no lock.
    argv = (f"--project={project}", "--recipe=python-mpi", "--base=debian13", "--mpi=openmpi")
    done = run("spec", *argv, f"--out={project}/out", "--no-lint")
    assert done.code == 0
    copies = list(project.glob("out/**/run-checks"))
    shipped = (ROOT / "tests/images/run-checks").read_text()
    assert {path.read_text() for path in copies} == {shipped}
    assert packed_files(project)["tests/images/run-checks"] == ROOT / "tests/images/run-checks"


@pytest.mark.parametrize("argv", [["plan"], ["explain"], ["spec"], []])
def test_an_empty_selection_says_what_there_is(argv: list[str], run: Run) -> None:
    done = run(*argv, PROJECT, "--mpi=openmpi9")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "build-images: --mpi openmpi9: matches nothing; did you mean openmpi5.0?\n"
        f"  mpi: {', '.join(shipped_project().matrix.axes['mpi'])}\n"
    )


def test_a_selection_that_is_left_out_says_why(run: Run) -> None:
    selectors = ("--recipe=python-mpi", "--base=debian*", "--cuda=none", "--mpi=mvapich2")
    done = run("plan", PROJECT, *selectors)
    golden = (GOLDEN / "plan/all-left-out.txt").read_text()
    assert (done.code, done.out, done.err) == (3, "", f"build-images: {golden}")
    explained = run("explain", PROJECT, *selectors)
    assert (explained.code, explained.err) == (0, "")
    assert explained.out.startswith("- python-mpi-1.0-debian")


def screen_lines(text: str) -> int:
    """The lines that a text fills on a terminal with 80 columns."""
    return sum(-(-len(line) // 80) or 1 for line in text.splitlines())


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "--recipe=hpc-base", "--mpi=mvapich2"],
        ["explain", "--mpi=mpich"],
        ["explain", "--all", "--base=debian13"],
        ["spec", "--recipe=hpc-base", "--mpi=mvapich2"],
        ["lint", "--recipe=hpc-base", "--mpi=mvapich2"],
        ["publish", "--to=localhost/x", "--recipe=hpc-base", "--mpi=mvapich2"],
        ["ci", "github", "--recipe=hpc-base", "--mpi=mvapich2"],
        ["--recipe=hpc-base", "--mpi=mvapich2"],
    ],
)
def test_a_long_answer_fits_on_a_screen_and_is_complete_with_verbose(
    argv: list[str], run: Run
) -> None:
    short = run(*argv, PROJECT)
    text = short.out + short.err
    assert screen_lines(text) <= SCREEN
    assert "--verbose" in text
    assert re.search(r"^ +\d+  maintainer: recipe \S+ ", text, re.M), "grouped by reason"
    done = run(*argv, PROJECT, "--verbose")
    assert (done.code, short.code) == ((0, 0) if argv[0] == "explain" else (3, 3))
    assert len((done.out + done.err).splitlines()) > 10 * SCREEN
    assert re.search(r"^ +\d+ cells?: recipe|^ +\d+ cells: base", done.out + done.err, re.M)


def test_what_the_machine_lacks_is_told_before_anything_is_built(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: Any, **__: Any) -> None:
        raise MissingPrerequisite("no buildah here", hint="build-images setup")

    monkeypatch.setattr("builder.host.doctor.examine", lacks)
    done = run(f"--project={project}")
    assert (done.code, done.out) == (4, "")
    assert done.err.endswith("build-images: no buildah here\n  hint: build-images setup\n")


@pytest.mark.parametrize("argv", [["--engine=docker"], ["--no-cache"], ["--refresh"]])
def test_what_was_done_another_way_is_still_to_do(
    argv: list[str], project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is examined whenever anything will be built."""
    inputs = {"files": {"matrix.yaml": "sha256:1"}, "program": "sha256:2"}
    artifact = {"path": "empty", "size": 0, "digest": "sha256:"}
    for image in default_plan().images:
        folder = project / "out" / image.identifier
        folder.mkdir(parents=True)
        (folder / "empty").touch()
        manifest = document(
            {
                "image": image.identifier,
                "content_key": image.content_key,
                "inputs": inputs,
                "artifacts": dict.fromkeys(("oci", "sif", "charliecloud"), artifact),
                "digests": {"sbom.cdx.json": "sha256:1"},
            }
        )
        (folder / "manifest.json").write_text(json.dumps(manifest))

    def lacks(*_: Any, **__: Any) -> None:
        raise MissingPrerequisite("examined")

    monkeypatch.setattr("builder.host.doctor.examine", lacks)
    monkeypatch.setattr(build, "run_job", lambda *_, **__: pytest.fail("nothing was examined"))
    assert "unchanged" in run("plan", f"--project={project}").out
    done = run(*argv, f"--project={project}")
    assert done.code == 4
    assert done.err.endswith("build-images: examined\n")


def without_engine(settings: BuildSettings, progress: Progress, *_: Any, **__: Any) -> ImageRun:
    """Stand in for `prepare`, on a machine without engines."""
    settings.out.mkdir(exist_ok=True)
    tools = Tools(processes=Processes(), home=Home.of_environment())
    engine = ENGINES["buildah"](tools)
    return ImageRun(tools=tools, engine=engine, settings=settings, progress=progress, host=HOST)


def test_the_end_of_a_run_says_what_came_of_each_image(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (f"hpc-base-1.0-debian13-openmpi5.0-{arch}" for arch in ("x86_64", "ppc64le"))
    errors = {ours: StepFailed("make: exit status 2"), theirs: MissingPrerequisite("no space")}
    for name in ("at_work", "shared_layers"):
        monkeypatch.setattr(build, name, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(build, "prepare", without_engine)
    results = Results(manifests={}, errors=errors)
    monkeypatch.setattr(build, "run_job", lambda *_, **__: results)
    done = run(f"--project={project}", "--no-lint", "--json")
    assert done.code == 4, done.err
    assert done.json["failures"] == {ours: "make: exit status 2"}
    assert done.json["compiled"] == {theirs: "no space"}
    passed = record(
        {
            "emulated": True,
            "proven_on_gpu": False,
            "checks": {"oci": [{"check": "mpi", "outcome": "passed"}]},
        }
    )
    results = Results(manifests=dict.fromkeys((ours, theirs), passed), errors={})
    done = run(f"--project={project}", "--no-lint")
    assert done.code == 0
    assert done.out.splitlines()[:2] == [
        f"✓ {ours}  verified  emulated, not proven on a GPU",
        "    oci              0.0 MB  sha256:0  1 passed",
    ]


def test_what_the_main_job_says_at_its_end(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, broken = (f"hpc-base-1.0-debian{each}" for each in VARIANTS)
    checks = [{"check": name, "outcome": word} for name, word in CHECKS.items()]
    artifact = {"size": 118_403_221, "digest": f"sha256:{'0123456789' * 2}"}
    said = {
        "artifacts": {"oci": artifact, "sif": artifact},
        "checks": {"oci": checks, "sif": checks[:1]},
        "tree_digest": f"sha256:{'ab' * 32}",
        "formats_equal": True,
    }
    manifests = {
        good: record({**said, "image": good, "emulated": True}),
        bad: record({**said, "image": bad, "outcome": "failed", "formats_equal": False}),
    }
    results = Results(manifests=manifests, errors={broken: StepFailed("make: exit status 2")})
    monkeypatch.setattr(build, "prepare", without_engine)
    monkeypatch.setattr(build, "run_job", lambda *_, **__: results)
    argv = (f"--project={project}", *(f"--image={one}" for one in (good, bad, broken)), "--no-lint")
    assert f"✗ {broken}  failed\n" in run(*argv).out  # before anything was written
    (project / "out" / broken).mkdir()
    (project / "out" / broken / "build.log").touch()
    done = run(*argv)
    assert done.code == 1, done.err
    formats = (
        "    oci            118.4 MB  sha256:012345678901  2 passed, 1 skipped\n"
        "    sif            118.4 MB  sha256:012345678901  1 passed\n"
    )
    assert done.out == (
        f"✗ {broken}  failed: see project/out/{broken}/build.log\n"
        f"✓ {good}  verified  two formats equal (sha256:abababababab), emulated\n{formats}"
        f"✗ {bad}  failed\n{formats}"
        "report: project/out/report.html\n"
    )
    found = run(*argv, "--json")
    assert found.code == 1
    assert found.json == json.loads((project / "out/report.json").read_text())
    assert found.json["failures"] == {broken: "make: exit status 2"}
    assert found.json["build"]["command"].startswith("build-images")
    for name, manifest in manifests.items():  # of now, and the failed one of an earlier run
        (project / "out" / name).mkdir(exist_ok=True)
        (project / "out" / name / "manifest.json").write_text(manifest_text(manifest))
    results = Results(manifests={good: manifests[good]}, errors={})
    found = run(argv[0], f"--image={good}", "--no-lint", "--json")
    assert (found.code, found.json["totals"]["images"]) == (0, 1), found.err
    assert [one["image"] for one in found.json["images"]] == [good]
    assert [one["image"] for one in found.json["earlier"]] == [bad]
    headline = "<h1>0 of 1 image verified</h1>"  # as it has no evidence
    assert headline in (project / "out/report.html").read_text()


def test_interruption_is_told(project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("builder.host.doctor.examine", interrupted)
    done = run(f"--project={project}")
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("\ninterrupted; run the same command again to continue\n")


def test_verify_needs_an_image(tmp_path: Path, run: Run) -> None:
    done = run("verify", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "no manifest.json" in done.err


def test_all_help(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what differs between versions of Python: line breaks of the usage, and columns."""
    monkeypatch.setenv("COLUMNS", "100")
    parts = []
    for words in ([], *([name] for name in COMMANDS)):
        done = run(*words, "--help")
        assert (done.code, done.err) == (0, "")
        usage, _, rest = done.out.partition("\n\n")
        rest = re.sub(r"(--\w+)(?: \S+)?, (-\w) (\S+)\s+", r"\1, \2 \3  ", rest)
        parts += [" ".join(usage.split()), "", re.sub(r"(\S)  +", r"\1  ", rest)]
    compare_with_golden("\n".join(parts), "help.txt")


def test_the_parser_has_every_command_and_no_other() -> None:
    declared = [action.choices for action in make_parser()._actions if action.dest == "command"]
    assert [list(choices or ()) for choices in declared] == [list(COMMANDS)]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_its_function(command: str) -> None:
    """Nothing else checks types across a table of names."""
    module = command_of(command)
    assert get_type_hints(module.run)["return"] is int
    assert isinstance(options_of(module), Options)
    assert module.declare.__annotations__ == {"parser": "Parser", "return": "None"}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_that_are_declared(command: str) -> None:
    """`Options` names what `declare` adds, and nothing else."""
    [actions] = [one for one in make_parser()._actions if one.dest == "command"]
    assert isinstance(actions.choices, dict)
    added = {action.dest for action in actions.choices[command]._actions} - {"help", "kind"}
    named = {
        name
        for cls in type(options_of(command_of(command))).__mro__[:-2]  # to argparse.Namespace
        for name in vars(cls).get("__annotations__", {})
    }
    assert added - {*SELECTABLE} <= named
    assert named - added <= {"command", "parser", "output", "kind", "argv"}  # argv: after --


@pytest.mark.parametrize(
    "argv",
    [
        ["--quiet", "--verbose"],
        ["plan", "--json", "--graph"],
        ["--jobs=0"],
        ["--jobs=many"],
        ["--engine=lorry"],
        ["plan", "--no-such-option"],
        ["no-such-command"],
        ["verify"],
    ],
)
def test_bad_usage(argv: list[str], run: Run) -> None:
    done = run(*argv)
    assert (done.code, bool(done.out)) == (2, "--json" in argv)
    assert "usage: build-images" in done.err


def test_version(run: Run) -> None:
    assert re.fullmatch(r"build-images \d+\.\d+\.\d+\n", run("--version").out)


def test_options_are_parsed(tmp_path: Path) -> None:
    argv = ["--arch=ppc64le", "--arch", "x86_64", "--image=a*", "-v", "--jobs=3", "-o", "x"]
    parsed = parse(argv)
    assert parsed.command == "build"
    assert isinstance(parsed, build.BuildOptions)
    assert parsed.selection.patterns == {"arch": ("ppc64le", "x86_64")}
    assert parsed.selection.images == ("a*",)
    assert (parsed.level, parsed.jobs) == (2, 3)
    assert parsed.out == tmp_path / "x"
    levels = {"--quiet": 0, "--jobs=1": 1, "--verbose": 2}
    for option, level in levels.items():
        options = parse([option])
        assert isinstance(options, ProgressOptions)
        assert options.level == level
    assert parse([f"--project={tmp_path}"]).out == tmp_path / "out"
    everything = parse(["plan", "--all"])
    assert isinstance(everything, SelectorOptions)
    assert everything.selection.everything


def test_all_is_narrowed_by_selectors(project: Path, run: Run) -> None:
    done = run("plan", "--all", "--arch=amd64", f"--project={project}")
    assert "x86_64" in done.out
    assert "ppc64le" not in done.out


def test_an_unknown_command_is_said_with_a_guess(run: Run) -> None:
    done = run("plam")
    assert done.code == 2
    assert "did you mean plan?" in done.err


VARIANTS = ("13-openmpi5.0-x86_64", "13-openmpi5.0-ppc64le", "12-openmpi4.1-x86_64")
CHECKS = {"hello": "passed", "gpu": "skipped", "mpi": "passed"}
HOST = HostFacts(arch="x86_64", kernel="6.1.0", cpu="a processor", cores=2, os="Debian 12")
NO_REGISTRY = "registries: {docker.io: localhost:1}\n"  # nothing listens there


def test_a_registry_out_of_reach(project: Path, tmp_path: Path, run: Run) -> None:
    """Every spec is written and linted; then comes which registry, and how to name a mirror."""
    (project / "site.yaml").write_text(NO_REGISTRY)
    asked = ("--recipe=cuda-base", "--arch=ppc64le", "--cuda=10.1")
    done = run(f"--project={project}", *asked, f"--output={tmp_path / 'out'}")
    assert (done.code, done.out) == (4, "")
    folders = sorted(path for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == [
        "cuda-base-1.0-centos7-cuda10.1-openmpi1.10-ppc64le",
        "cuda-base-1.0-ubuntu18.04-cuda10.1-openmpi2.1-ppc64le",
    ]
    assert "FROM localhost:1/library/centos:7 AS " in (folders[0] / "Dockerfile").read_text()
    assert all((folder / "Singularity.def").is_file() for folder in folders)
    assert " in 2 specs linted" in done.err
    assert "build-images: the registry localhost:1 cannot be reached: " in done.err
    assert "2 images were not built for that reason; their specs are in:" in done.err
    assert done.err.splitlines()[-1].startswith("  hint: name a mirror that this machine reaches: ")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert list(report["compiled"]) == [folder.name for folder in folders[::-1]]
    assert all("localhost:1 cannot be reached" in why for why in report["compiled"].values())
    assert "compiled, not built here" in (tmp_path / "out/report.html").read_text()


def test_what_needs_no_registry_is_built_all_the_same(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def note(*arguments: Any) -> int:
        *_, specs, lacking, states = arguments
        built.extend(spec.image.identifier for spec in specs)
        assert states.keys() > {*built}
        assert list(lacking) == ["hpc-base-1.0-ubuntu22.04-openmpi4.1-x86_64"]
        return 0

    monkeypatch.setattr(build, "_build", note)
    (project / "site.yaml").write_text(NO_REGISTRY)
    asked = ("--recipe=hpc-base", "--arch=x86_64", "--mpi=openmpi4.1", "--cuda=none")
    done = run(f"--project={project}", *asked, "--base=debian12", "--base=ubuntu22.04")
    assert done.code == 4
    assert built == ["hpc-base-1.0-debian12-openmpi4.1-x86_64"]
    assert "1 image was not built for that reason" in done.err


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_ctrl_c_before_the_program_is_loaded_has_no_traceback(handler: str) -> None:
    """Then the signal ends it; what ignores the signal, as a shell's background job, still does."""
    code = f"""
import signal
signal.signal(signal.SIGINT, signal.{handler})
from builder.__main__ import main
print(signal.getsignal(signal.SIGINT))
main(["schema", "error"])
print(signal.getsignal(signal.SIGINT))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    if handler == "SIG_IGN":
        assert lines[0] == lines[-1] == str(signal.SIG_IGN)
    else:
        assert (lines[0], lines[-1]) == (str(signal.SIG_DFL), str(signal.default_int_handler))
