"""Every runner on the same image: the same environment, and an outcome whatever a check does."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from harness import FORMATS, PROJECT, build_images, manifest_of, missing
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
CHECKS = {
    "hangs": Check(name="hangs", text=HANGS, timeout_s=8),
    "prints-rubbish": Check(name="prints-rubbish", text="head -c 300000 /usr/bin/env"),
    "prints-100-mb": Check(
        name="prints-100-mb",
        text="head -c 100000000 /dev/zero | tr '\\0' x; echo; echo all is well",
    ),
    "prints-nothing": Check(name="prints-nothing", text="exit 0"),
    "loses-a-gpu": Check(
        name="loses-a-gpu",
        text="echo 'cudaErrorECCUncorrectable (214): uncorrectable ECC error on GPU 2'; exit 1",
        needs=("gpu",),
    ),
    "is-skipped": Check(name="is-skipped", text="echo no InfiniBand here; exit 77"),
    "comes-last": Check(
        name="comes-last", text='id -u; echo "data: {\\"directory\\": \\"$(pwd)\\"}"; id -u'
    ),
}


@pytest.fixture(scope="module")
def image(small_images: Maker) -> Path:
    """An image whose checks do all that checks must not do."""
    made = sound("x86_64", 1, random.Random(1))
    made = dataclasses.replace(
        made, identifier="faults", checks=tuple(CHECKS.values()), directory="/srv"
    )
    return small_images.make(
        made.with_variables({**made.environments["oci"], "LD_LIBRARY_PATH": "/opt/lib"})
    )


@pytest.fixture(scope="module", params=tuple(RUNNERS))
def found(request: pytest.FixtureRequest, image: Path) -> tuple[str, dict[str, dict[str, object]]]:
    """A runner's name, and what it found by check."""
    name = str(request.param)
    env = {}
    if name == "docker":
        env["DOCKER_HOST"] = request.getfixturevalue("docker_host")
    elif absent := missing([RUNNERS[name].program]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    done = build_images("verify", image, "--runner", name, env=env)
    assert done.status == 1, done.stderr
    kind = RUNNERS[name]
    key = kind.format if DEFAULTS[kind.format] == name else f"{kind.format}-{name}"
    return key, {one["check"]: one for one in manifest_of(image)["checks"][key]}


Found = tuple[str, dict[str, dict[str, object]]]


def test_environment_and_working_directory_are_the_images(found: Found) -> None:
    """The same in all runners: each is compared with the image's configuration."""
    _, checks = found
    assert checks["environment"]["outcome"] == "passed", checks["environment"]
    assert str(checks["environment"]["reason"]).startswith("in /srv, with the image's variables")
    assert "LD_LIBRARY_PATH" in str(checks["environment"]["reason"])


def test_a_check_that_hangs_is_ended_whole_and_says_what_it_waited_for(found: Found) -> None:
    _, checks = found
    outcome = checks["hangs"]
    assert outcome["outcome"] == "failed"
    reason = str(outcome["reason"])
    assert reason.startswith("no result after 8 s; its last line: rank 3 sends; it was waiting for")
    for number in (71321, 71322, 71323):
        assert re.search(rf"sleep {number} \(\w+\)", reason), reason
        assert not is_running(f"sleep {number}")


def is_running(command: str) -> bool:
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if words == command:
            return True
    return False


@pytest.mark.parametrize(
    ("check", "outcome", "reason"),
    [
        ("prints-rubbish", "failed", "exit status 0, but its last line is no text"),
        ("prints-100-mb", "passed", "all is well"),
        ("prints-nothing", "failed", "exit status 0, but the check printed no finding"),
        ("loses-a-gpu", "failed", "cudaErrorECCUncorrectable (214): uncorrectable ECC error"),
        ("is-skipped", "skipped", "no InfiniBand here"),
    ],
)
def test_whatever_a_check_does_it_has_an_outcome(
    check: str, outcome: str, reason: str, found: Found
) -> None:
    _, checks = found
    assert checks[check]["outcome"] == outcome
    assert str(checks[check]["reason"]).startswith(reason)


def test_the_run_goes_on_as_an_ordinary_user(found: Found) -> None:
    _, checks = found
    last = checks["comes-last"]
    assert (last["outcome"], last["data"]) == ("passed", {"directory": "/srv"})
    assert last["reason"] != "0"


def test_evidence_is_valid_and_its_junit_file_is_read(found: Found, image: Path) -> None:
    name, checks = found
    statement = json.loads((image / f"evidence/{name}.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    assert statement["predicate"]["result"] == "FAILED"
    assert sorted(statement["predicate"]["warnedTests"]) == ["harness", "is-skipped"]
    assert "is-skipped" not in statement["predicate"]["passedTests"]
    [suite] = list(JUnitXml.fromfile(str(image / f"evidence/{name}.xml")))
    read = {
        case.name: "skipped" if case.is_skipped else "failed" if case.is_failure else "passed"
        for case in suite
    }
    assert read == {check: one["outcome"] for check, one in checks.items()}


def test_memory_stays_bounded(image: Path) -> None:
    """100 MB of output, in three formats, and the largest process of all stays small."""
    script = (
        "import resource, subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'builder', 'verify', sys.argv[1]], "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(image)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 250_000, "kilobytes"


def test_a_runner_without_its_artifact_is_refused(image: Path, tmp_path: Path) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    manifest = manifest_of(image)
    manifest["artifacts"] = {"oci": manifest["artifacts"]["oci"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "image.oci").symlink_to(image / "image.oci")
    done = build_images("verify", folder, "--runner", "apptainer")
    assert done.status == 2
    assert "--runner apptainer: it runs the sif artifact, which was not made" in done.stderr


# The pytest files that sites run.

SITE_TEST = """
def test_of_a_site(inside):
    done = inside.run("sh", "-c", "echo $MODE; exit 3")
    assert done.returncode == 3
    assert inside.image.manifest["image"] == "faults"
"""


def run_pytest(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )


def test_pytest_runs_an_images_checks_and_a_sites_own(image: Path) -> None:
    site = PROJECT / "tests/images/site" / f"test_of_{os.getpid()}.py"
    site.write_text(SITE_TEST)
    try:
        runner = ["--runner", "charliecloud"]
        done = run_pytest("tests/images", "--image", image, *runner)
    finally:
        site.unlink()
    found = set(re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) (?:\[\d\] )?(.*)$", done.stdout, re.M))
    lines = {(word, line.rpartition("::")[2].partition(" - ")[0]) for word, line in found}
    assert done.returncode == 1, done.stdout
    assert ("PASSED", "test_formats_hold_the_same_tree") in lines
    assert ("PASSED", "test_environment[charliecloud]") in lines
    assert ("PASSED", "test_check[charliecloud-prints-100-mb]") in lines
    assert ("FAILED", "test_check[charliecloud-hangs]") in lines
    assert ("PASSED", "test_of_a_site[charliecloud]") in lines
    assert "no InfiniBand here" in done.stdout
    assert ("PASSED", "test_check[charliecloud-is-skipped]") not in lines
    assert "it was waiting for: " in done.stdout


def test_every_format_is_a_parameter(image: Path) -> None:
    done = run_pytest("tests/images/test_image.py", "--image", image, "--collect-only", "-q")
    for name in FORMATS:
        assert f"test_check[{DEFAULTS[name]}-hangs]" in done.stdout


def test_what_is_no_image_is_bad_usage(tmp_path: Path) -> None:
    done = run_pytest("tests/images", "--image", tmp_path)
    assert done.returncode == 2
    assert "so this is no finished image" in done.stdout
