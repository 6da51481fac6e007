"""Verification: what counts as passed, failed and skipped, and the evidence of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.artifacts.tree import Entry
from builder.engines import Tools
from builder.errors import Interrupted, MissingPrerequisite, StepFailed
from builder.home import Home
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.process import Completed, Processes
from builder.verify import (
    FormatTree,
    HostFacts,
    InImageCheck,
    Target,
    equality,
    host_facts,
    verify_format,
    write_evidence,
)
from builder.verify.checks import passed
from builder.verify.runners import RUNNERS

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "MODE": "a=b c"}
ENV_OUTPUT = "PATH=/usr/bin:/bin\nMODE=a=b c\nHOME=/tmp\n"


def done(stdout: str = "", returncode: int = 0, stderr: str = "", timed_out: bool = False) -> Any:
    return Completed(
        argv=("x",),
        returncode=returncode,
        stdout=stdout,
        stderr=stderr,
        duration_s=1.23456,
        timed_out=timed_out,
    )


class FakeRunner:
    name = "fake"

    def __init__(self, results: Mapping[str, Completed]) -> None:
        self.results = results
        self.calls: list[tuple[tuple[str, ...], float]] = []

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        self.calls.append((tuple(argv), timeout_s))
        return self.results[argv[0]]


def a_check(name: str = "mpi", needs: tuple[str, ...] = ()) -> InImageCheck:
    return InImageCheck(name=name, script=f"/checks/{name}", needs=needs, timeout_s=60)


Verify = Callable[..., tuple[Outcome, ...]]


@pytest.fixture(name="verify")
def verifying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Runs `verify_format` where each command ends as it is told to."""

    def run(
        *results: Completed,
        env: Completed | None = None,
        needs: tuple[str, ...] = (),
    ) -> tuple[Outcome, ...]:
        checks = tuple(a_check(f"check{number}", needs) for number in range(len(results)))
        commands = dict(zip([check.script for check in checks], results, strict=True))
        runner = FakeRunner({"env": env or done(ENV_OUTPUT), **commands})

        @contextlib.contextmanager
        def opened(_artifact: Path, **_: Any) -> Iterator[FakeRunner]:
            yield runner

        monkeypatch.setitem(RUNNERS, "sif", opened)
        target = Target(identifier="x", arch="x86_64", environment=ENVIRONMENT, checks=checks)
        tools = Tools(processes=Processes(), home=Home(path=tmp_path))
        found = verify_format(target, "sif", tmp_path / "image.sif", work=tmp_path, tools=tools)
        assert [call for call in runner.calls if call[0][0] != "env"] == [
            ((check.script,), 60) for check in checks
        ]
        return found

    return run


def test_a_finding_is_passed(verify: Verify) -> None:
    text = 'noise\ndata: {"ranks": 4}\n4 ranks agree\n\n'
    _, outcome = verify(done(text))
    assert (outcome.outcome, outcome.reason) == (PASSED, "4 ranks agree")
    assert outcome.data == {"ranks": 4}
    assert (outcome.duration_s, outcome.output) == (1.235, "")


@pytest.mark.parametrize("text", ["data: {", "data: [1]", "data: 3", "data:"])
def test_data_that_is_none_is_left_out(text: str, verify: Verify) -> None:
    _, outcome = verify(done(f"{text}\nfine\n"))
    assert (outcome.outcome, outcome.data) == (PASSED, {})


def test_data_is_no_finding(verify: Verify) -> None:
    _, outcome = verify(done('data: {"ranks": 4}\n'))
    assert (outcome.outcome, outcome.reason) == (
        FAILED,
        "exit status 0, but the check printed no finding",
    )


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (done("rank 0 of 1\n", 1), "rank 0 of 1"),
        (done("", 1, "no mpirun\n"), "no mpirun"),
        (done("", 3), "exit status 3"),
        (done("killed soon\n", -9), "killed soon"),
        (done("", 127, "not found"), "not found"),
    ],
)
def test_any_other_exit_status_is_failed(result: Completed, reason: str, verify: Verify) -> None:
    _, outcome = verify(result)
    assert (outcome.outcome, outcome.reason) == (FAILED, reason)


def test_failure_keeps_the_end_of_the_output(verify: Verify) -> None:
    lines = "".join(f"line {n}\n" for n in range(100))
    _, outcome = verify(done(lines, 1, "the error\n"))
    assert outcome.output.splitlines()[-2:] == ["line 99", "the error"]
    assert len(outcome.output.splitlines()) == 40


@pytest.mark.parametrize(
    ("text", "reason"), [("no GPU here\n", "no GPU here"), ("", "the check gives no reason")]
)
def test_exit_status_77_is_skipped_and_never_passed(text: str, reason: str, verify: Verify) -> None:
    _, outcome = verify(done(text, 77), needs=("gpu",))
    assert (outcome.outcome, outcome.reason) == (SKIPPED, reason)
    assert outcome.outcome != PASSED


@pytest.mark.parametrize("status", [0, 77, -15])
def test_a_timeout_is_failed_whatever_the_exit_status(status: int, verify: Verify) -> None:
    _, outcome = verify(done("all well\n", status, timed_out=True))
    assert outcome.outcome == FAILED
    assert outcome.reason == "no result after 60 s; its last line: all well"


def test_nothing_said_is_failed(verify: Verify) -> None:
    for result in (done(""), done(" \n\t\n"), done("", stderr="only here\n")):
        _, outcome = verify(result)
        assert outcome.outcome == FAILED


def test_binary_rubbish_is_bounded(verify: Verify) -> None:
    _, outcome = verify(done("\ufffd\0" * 10_000))
    assert outcome.outcome == PASSED
    assert len(outcome.reason) <= 500
    json.dumps(outcome.reason)


def test_each_check_has_its_own_outcome(verify: Verify) -> None:
    found = verify(done("a"), done("b", 1), done("c", 77))
    assert [one.outcome for one in found] == [PASSED, PASSED, FAILED, SKIPPED]
    assert [one.check for one in found] == ["environment", "check0", "check1", "check2"]


def test_a_container_that_does_not_start_fails_every_check(tmp_path: Path) -> None:
    def start(error: BaseException) -> tuple[Outcome, ...]:
        target = Target(
            identifier="x", arch="x86_64", environment={}, checks=(a_check("a"), a_check("b"))
        )

        @contextlib.contextmanager
        def opened(_artifact: Path, **_: Any) -> Iterator[FakeRunner]:
            raise error
            yield

        tools = Tools(processes=Processes(), home=Home(path=tmp_path))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(RUNNERS, "oci", opened)
            return verify_format(target, "oci", tmp_path, work=tmp_path, tools=tools)

    found = start(StepFailed("buildah from: exit status 125", tail=["no such image"]))
    assert [one.check for one in found] == ["environment", "a", "b"]
    assert {one.outcome for one in found} == {FAILED}
    assert {one.reason for one in found} == {"the container could not be started: no such image"}
    assert found[0].output == "no such image"
    for error in (Interrupted("stop"), MissingPrerequisite("no apptainer")):
        with pytest.raises(type(error)):
            start(error)


def test_environment_of_the_image_is_there(verify: Verify) -> None:
    [outcome] = verify()
    assert outcome.outcome == PASSED
    assert outcome.reason == "the image's variables are set: MODE, PATH"


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (done("PATH=/usr/bin:/bin\n"), "MODE is not set"),
        (done("PATH=/bin\nMODE=a=b c\n"), "PATH is '/bin', not '/usr/bin:/bin'"),
        (done("", 127, "env: not found\n"), "MODE is not set"),
    ],
)
def test_environment_that_is_not_there_is_failed(
    env: Completed, reason: str, verify: Verify
) -> None:
    [outcome] = verify(env=env)
    assert outcome.outcome == FAILED
    assert reason in outcome.reason


def test_env_that_fails_is_failed(verify: Verify) -> None:
    [outcome] = verify(env=done(ENV_OUTPUT, 1, "broken\n"))
    assert (outcome.outcome, outcome.reason) == (FAILED, "broken")


def an_outcome(outcome: str, check: str = "mpi") -> Outcome:
    return Outcome(check=check, outcome=outcome, reason="because", data={"n": 1})


def test_failed_alone_spoils_a_run() -> None:
    assert passed([an_outcome(PASSED), an_outcome(SKIPPED)])
    assert not passed([an_outcome(PASSED), an_outcome(FAILED)])


HOST = HostFacts(arch="x86_64", kernel="6.1", cpu="a cpu", cores=2, os="Debian", gpu=False)
ARTIFACTS = [
    Artifact(format="oci", path=Path("i"), digest="sha256:a1", size=1, tree_digest="sha256:t1"),
    Artifact(format="sif", path=Path("s"), digest="sha256:b2", size=1, tree_digest="sha256:t1"),
]


def evidence(folder: Path, *outcomes: Outcome, emulated: bool = False) -> dict[str, Any]:
    path = write_evidence(
        folder / "evidence",
        identifier="core-1.0-x86_64",
        artifact_format="sif",
        artifacts=ARTIFACTS,
        outcomes=outcomes,
        host=HOST,
        runner="apptainer",
        emulated=emulated,
        tools={"apptainer": "1.3"},
        started="2026-01-01T00:00:00+00:00",
    )
    assert path == folder / "evidence/sif.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_evidence_is_an_in_toto_statement(tmp_path: Path) -> None:
    found = evidence(tmp_path, an_outcome(PASSED))
    assert found.keys() == {"_type", "subject", "predicateType", "predicate"}
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert found["subject"] == [
        {"name": "core-1.0-x86_64/oci", "digest": {"sha256": "a1"}},
        {"name": "core-1.0-x86_64/sif", "digest": {"sha256": "b2"}},
        {"name": "core-1.0-x86_64/tree", "digest": {"sha256": "t1"}},
    ]
    assert {"result", "configuration", "passedTests", "warnedTests", "failedTests"} == found[
        "predicate"
    ].keys()
    assert all("name" in one for one in found["predicate"]["configuration"])


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ([PASSED, PASSED], "PASSED"),
        ([PASSED, SKIPPED], "WARNED"),
        ([PASSED, SKIPPED, FAILED], "FAILED"),
        ([FAILED], "FAILED"),
    ],
)
def test_result_is_the_worst(outcomes: list[str], result: str, tmp_path: Path) -> None:
    found = evidence(tmp_path, *(an_outcome(one, f"c{n}") for n, one in enumerate(outcomes)))
    assert found["predicate"]["result"] == result


def test_each_check_is_listed_once_and_skipped_among_the_warned(tmp_path: Path) -> None:
    given = [an_outcome(PASSED, "a"), an_outcome(SKIPPED, "b"), an_outcome(FAILED, "c")]
    found = evidence(tmp_path, *given)["predicate"]
    assert found["passedTests"] == ["a"]
    assert found["warnedTests"] == ["b"]
    assert found["failedTests"] == ["c"]
    findings = {one["name"]: one["annotations"] for one in found["configuration"]}
    assert findings["b"]["outcome"] == SKIPPED
    assert findings["b"]["data"] == {"n": 1}


@pytest.mark.parametrize("emulated", [True, False])
def test_evidence_says_where_it_was_found(emulated: bool, tmp_path: Path) -> None:
    found = evidence(tmp_path, an_outcome(PASSED), emulated=emulated)
    run = found["predicate"]["configuration"][0]["annotations"]
    assert run["emulated"] is emulated
    assert run["host"]["arch"] == "x86_64"
    assert (run["format"], run["runner"]) == ("sif", "apptainer")
    assert run["tools"] == {"apptainer": "1.3"}


def a_tree(**contents: str) -> FormatTree:
    return FormatTree.of(
        {
            name: Entry(path=name, kind="file", mode=0o644, content=text)
            for name, text in contents.items()
        }
    )


def test_equal_trees_are_said_to_be() -> None:
    outcome = equality({"oci": a_tree(a="1"), "sif": a_tree(a="1")})
    assert outcome.outcome == PASSED
    assert outcome.reason.startswith("oci, sif hold the same 1 paths, sha256:")


def test_trees_that_differ_are_failed_with_the_first_paths() -> None:
    other = a_tree(**{f"f{n}": "" for n in range(7)})
    outcome = equality({"oci": a_tree(), "sif": a_tree(), "charliecloud": other})
    assert outcome.outcome == FAILED
    assert outcome.reason.startswith("oci and charliecloud: /f0: only in the second; ")
    assert outcome.reason.endswith("; and 2 more")
    assert len(outcome.output.splitlines()) == 7


def test_facts_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\ncpu\t\t: POWER9\n")
    (tmp_path / "os-release").write_text('NAME="x"\nPRETTY_NAME="Debian GNU/Linux 13"\n')
    found = host_facts(proc=tmp_path / "proc", etc=tmp_path)
    assert (found.cpu, found.os, found.gpu) == ("POWER9", "Debian GNU/Linux 13", False)
    (tmp_path / "proc/driver/nvidia/version").write_text("")
    assert host_facts(proc=tmp_path / "proc", etc=tmp_path).gpu
    nothing = host_facts(proc=tmp_path / "no", etc=tmp_path / "no")
    assert (nothing.cpu, nothing.os, nothing.gpu) == ("unknown", "unknown", False)
