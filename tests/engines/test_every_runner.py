"""Every runner on the same image: the same environment, and an outcome whatever a check does."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from harness import (
    FORMATS,
    PROJECT,
    Ended,
    build_images,
    manifest_of,
    need,
    processes,
    run_program,
)
from junitparser import JUnitXml
from small_images import Check, Maker, sound

from builder.cli.schema import schema_of
from builder.verify.runners import DEFAULTS, RUNNERS

pytestmark = pytest.mark.engines

HANGS = (
    "(setsid sh -c 'trap \"\" TERM; sleep 71321 & sleep 71322' &)\n"
    "trap '' TERM\n"
    "echo rank 3 sends\n"
    "sleep 71323"
)
PLANTED = "planted-by-another-user-"
CHECKS = (
    Check(name="hangs", text=HANGS, timeout_s=8),
    Check(name="prints-rubbish", text="head -c 300000 /usr/bin/env"),
    Check(
        name="prints-100-mb",
        text="head -c 100000000 /dev/zero | tr '\\0' x; echo; echo all is well",
    ),
    Check(name="prints-nothing", text="exit 0"),
    Check(
        name="loses-a-gpu",
        text="echo 'cudaErrorECCUncorrectable (214): uncorrectable ECC error on GPU 2'; exit 1",
        needs=("gpu",),
    ),
    Check(name="is-skipped", text="echo no InfiniBand here; exit 77"),
    Check(name="has-a-home", text='cd "$HOME" && echo "files: $(echo * .[!.]*)"'),
    Check(name="comes-last", text='id -u; echo "data: {\\"directory\\": \\"$(pwd)\\"}"; id -u'),
)


@pytest.fixture(scope="module")
def image(small_images: Maker) -> Path:
    """An image whose checks do all that checks must not do."""
    small = dataclasses.replace(
        sound("x86_64", 1, random.Random(1)), identifier="faults", checks=CHECKS, directory="/srv"
    )
    variables = {**small.environments["oci"], "LD_LIBRARY_PATH": "/opt/lib"}
    return small_images.make(small.with_variables(variables))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One runner's run: its outcomes' key, those by check, and its largest process."""

    key: str
    checks: dict[str, dict[str, Any]]
    largest_kib: int


VERIFY = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "builder", "verify", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


@pytest.fixture(scope="module", name="run", params=tuple(RUNNERS))
def run_of_a_runner(request: pytest.FixtureRequest, image: Path) -> Run:
    name = str(request.param)
    kind, env = RUNNERS[name], {}
    if name == "docker":
        env["DOCKER_HOST"] = request.getfixturevalue("docker_host")
    else:
        need(kind.program)
    words = (sys.executable, "-c", VERIFY, image, "--runner", name)
    with tempfile.NamedTemporaryFile(prefix=PLANTED, dir="/tmp"):  # as any user of the host can
        done = run_program(*words, env=env, cwd=PROJECT)
    assert done.status == 1, done.stderr
    key = kind.format if DEFAULTS[kind.format] == name else f"{kind.format}-{name}"
    checks = {row["check"]: row for row in manifest_of(image)["checks"][key]}
    return Run(key=key, checks=checks, largest_kib=int(done.finding))


def test_environment_and_working_directory_are_the_images(run: Run) -> None:
    """The same in all runners: each is compared with the image's configuration."""
    environment = run.checks["environment"]
    assert environment["outcome"] == "passed", environment
    assert environment["reason"].startswith("in /srv, with the image's variables")
    assert "LD_LIBRARY_PATH" in environment["reason"]


def test_home_has_no_file_of_other_users_of_the_host(run: Run) -> None:
    home = run.checks["has-a-home"]
    assert home["outcome"] == "passed", home
    assert PLANTED not in home["reason"]


def test_a_check_that_hangs_is_ended_whole_and_says_what_it_waited_for(run: Run) -> None:
    outcome, reason = (run.checks["hangs"][key] for key in ("outcome", "reason"))
    assert outcome == "failed"
    assert reason.startswith("no result after 8 s; its last line: rank 3 sends; it was waiting for")
    for number in (71321, 71322, 71323):
        assert re.search(rf"sleep {number} \(\w+\)", reason), reason
        assert not processes(f"^sleep {number}$")


@pytest.mark.parametrize(
    ("check", "outcome", "reason"),
    [
        ("prints-rubbish", "failed", "exit status 0, but its last line is not text"),
        ("prints-100-mb", "passed", "all is well"),
        ("prints-nothing", "failed", "exit status 0, but the check printed no finding"),
        ("loses-a-gpu", "failed", "cudaErrorECCUncorrectable (214): uncorrectable ECC error"),
        ("is-skipped", "skipped", "no InfiniBand here"),
    ],
)
def test_whatever_a_check_does_it_has_an_outcome(
    check: str, outcome: str, reason: str, run: Run
) -> None:
    assert run.checks[check]["outcome"] == outcome
    assert run.checks[check]["reason"].startswith(reason)


def test_memory_stays_bounded(run: Run) -> None:
    """The output is of 100 MB, and the largest process of all stays small."""
    assert run.largest_kib < 250_000


def test_the_run_goes_on_as_an_ordinary_user(run: Run) -> None:
    last = run.checks["comes-last"]
    assert (last["outcome"], last["data"]) == ("passed", {"directory": "/srv"})
    assert last["reason"] != "0"


def test_evidence_is_valid_and_its_junit_file_is_read(run: Run, image: Path) -> None:
    statement = json.loads((image / f"evidence/{run.key}.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    assert statement["predicate"]["result"] == "FAILED"
    assert sorted(statement["predicate"]["warnedTests"]) == ["harness", "is-skipped"]
    assert "is-skipped" not in statement["predicate"]["passedTests"]
    [suite] = list(JUnitXml.fromfile(str(image / f"evidence/{run.key}.xml")))
    assert {
        case.name: "skipped" if case.is_skipped else "failed" if case.is_failure else "passed"
        for case in suite
    } == {check: row["outcome"] for check, row in run.checks.items()}


def test_a_runner_without_its_artifact_is_refused(image: Path, tmp_path: Path) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    manifest = manifest_of(image)
    manifest["artifacts"] = {"oci": manifest["artifacts"]["oci"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "image.oci").symlink_to(image / "image.oci")
    done = build_images("verify", folder, "--runner", "apptainer")
    assert done.status == 2
    assert "--runner apptainer: it runs the sif artifact, which is missing" in done.stderr


# The pytest files that sites run.

SITE_TEST = """
def test_of_a_site(inside):
    done = inside.run("sh", "-c", "echo $MODE; exit 3")
    assert done.returncode == 3
    assert inside.image.manifest["image"] == "faults"
"""


def run_pytest(*words: str | Path) -> Ended:
    argv = (sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *words)
    return run_program(*argv, env={"PYTEST_ADDOPTS": ""}, cwd=PROJECT)


def test_pytest_runs_an_images_checks_and_a_sites_own(image: Path) -> None:
    site = PROJECT / "tests/images/site" / f"test_of_{os.getpid()}.py"
    site.write_text(SITE_TEST)
    try:
        done = run_pytest("tests/images", "--image", image, "--runner", "charliecloud")
    finally:
        site.unlink()
    rows = re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) (?:\[\d\] )?(.*)$", done.stdout, re.M)
    lines = {(word, line.rpartition("::")[2].partition(" - ")[0]) for word, line in rows}
    assert done.status == 1, done.stdout
    assert lines >= {
        ("PASSED", "test_formats_hold_the_same_tree"),
        ("PASSED", "test_environment[charliecloud]"),
        ("PASSED", "test_check[charliecloud-prints-100-mb]"),
        ("FAILED", "test_check[charliecloud-hangs]"),
        ("PASSED", "test_of_a_site[charliecloud]"),
    }
    assert "no InfiniBand here" in done.stdout
    assert ("PASSED", "test_check[charliecloud-is-skipped]") not in lines
    assert "it was waiting for: " in done.stdout


def test_every_format_is_a_parameter(image: Path) -> None:
    done = run_pytest("tests/images/test_image.py", "--image", image, "--collect-only", "-q")
    for name in FORMATS:
        assert f"test_check[{DEFAULTS[name]}-hangs]" in done.stdout


def test_what_is_no_image_is_bad_usage(tmp_path: Path) -> None:
    done = run_pytest("tests/images", "--image", tmp_path)
    assert done.status == 2
    assert "not a finished image" in done.stdout
