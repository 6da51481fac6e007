"""Checks in a container: what counts as passed, failed and skipped."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import record

from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.model.errors import StepFailed
from builder.model.manifest import InImageCheck
from builder.model.measurement import HostFacts
from builder.system.home import Home
from builder.system.process import Completed, Processes
from builder.verify.checks import (
    after_a_loss,
    environment_of,
    failures_of,
    not_started,
    noting_no_gpu,
    outcomes_in,
    passed,
    why_no_gpu,
)
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Runner
from builder.verify.targets import ProofTarget

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "MODE": "a=b c"}


def env(*pairs: str, directory: str = "/") -> str:
    return f"{directory}\n" + "".join(f"{pair}\0" for pair in pairs)


ENV_OUTPUT = env("PATH=/usr/bin:/bin", "MODE=a=b c", "HOME=/tmp", "PWD=/", "CH_RUNNING=x")


def done(
    stdout: str = "",
    returncode: int = 0,
    stderr: str = "",
    timed_out: bool = False,
    waiting: tuple[str, ...] = (),
) -> Completed:
    return Completed(
        argv=("x",),
        returncode=returncode,
        stdout=stdout,
        stderr=stderr,
        duration_s=1.23456,
        timed_out=timed_out,
        waiting=waiting,
    )


class FakeRunner:
    def __init__(self, results: Mapping[str, Completed]) -> None:
        self.results = results
        self.calls: list[tuple[tuple[str, ...], float]] = []

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        self.calls.append((tuple(argv), timeout_s))
        if argv[0] == "cat" and "cat" not in self.results:  # sees the variables that `env` saw
            first = self.results["sh"]
            return dataclasses.replace(first, stdout=first.stdout.partition("\n")[2])
        return self.results[argv[0]]


def a_check(name: str = "mpi", needs: tuple[str, ...] = ()) -> InImageCheck:
    return InImageCheck(name=name, script=f"/checks/{name}", needs=needs, timeout_s=60)


def a_target(*checks: InImageCheck, **more: Any) -> ProofTarget:
    """An image with checks, and without variables unless a test says so."""
    return ProofTarget(
        **{"identifier": "x", "arch": "x86_64", "environment": {}, "checks": checks, **more}
    )


def environment_in(
    runner: Runner, environment: Mapping[str, str], directory: str = "/", *, own: tuple[str, ...]
) -> Outcome:
    """The outcome of looking at a container's variables, of which a runner sets its `own`."""
    target = a_target(environment=environment, directory=directory)
    kind = dataclasses.replace(RUNNERS["docker"], own=own)
    return environment_of(target, kind, runner, gpu=False)


Verify = Callable[..., tuple[Outcome, ...]]


@pytest.fixture(name="verify")
def verifying() -> Verify:
    """Runs checks where each command ends as it is told to."""

    def run(
        *results: Completed,
        env: Completed | None = None,
        needs: tuple[str, ...] = (),
        gpu: bool = False,
    ) -> tuple[Outcome, ...]:
        checks = tuple(a_check(f"check{number}", needs) for number in range(len(results)))
        commands = dict(zip([check.script for check in checks], results, strict=True))
        runner = FakeRunner({"sh": env or done(ENV_OUTPUT), **commands})

        target = a_target(*checks, environment=ENVIRONMENT)
        found = outcomes_in(target, RUNNERS["charliecloud"], runner, gpu=gpu)
        assert [call for call in runner.calls if call[0][0] not in {"sh", "cat"}] == [
            ((check.script,), 60) for check in checks
        ]
        return found

    return run


def test_a_finding_is_passed(verify: Verify) -> None:
    text = 'data: {"old": 1}\nnoise\ndata: {"ranks": 4}\n  4 ranks agree \n\n'
    _, outcome = verify(done(text))
    assert (outcome.outcome, outcome.reason) == (PASSED, "4 ranks agree")
    assert outcome.data == {"ranks": 4}
    assert (outcome.duration_s, outcome.output) == (1.235, "")
    _, outcome = verify(done(f'data: {{"n": "{"x" * 63_985}"}}\nfine\n'))
    assert outcome.data == {"n": "x" * 63_985}


@pytest.mark.parametrize(
    "text",
    [
        "data: {",
        "data: [1]",
        "data: 3",
        "data:",
        'data: {"n": NaN}',
        'data: {"n": -Infinity}',
        'data: {"n": 1e999}',
        'data: {"n": 1, "n": 2}',
        f'data: {{"n": {"[" * 20}{"]" * 20}}}',
        f"data: {'[' * 50_000}",
        f'data: {{"n": "{"x" * 63_986}"}}',
    ],
    ids=lambda text: text[:20],
)
def test_data_that_is_none_is_left_out(text: str, verify: Verify) -> None:
    _, outcome = verify(done(f"{text}\nfine\n"))
    assert (outcome.outcome, outcome.data) == (PASSED, {})


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (done("rank 0 of 1\n", 1), "rank 0 of 1"),
        (done("", 1, "no mpirun\n"), "no mpirun"),
        (done("", 3), "exit status 3"),
        (done("------\n", 3), "------"),
        (done("no library\n------\n", 3), "no library"),
        (done('no library\ndata: {"ranks": 4}\n', 3), "no library"),
        (done("------\n", 3, "heat: no library\n"), "heat: no library"),
        (done("so far so good\n", -9), "ended by SIGKILL; its last line: so far so good"),
        (
            done("", 139, "Segmentation fault\n"),
            "ended by SIGSEGV; its last line: Segmentation fault",
        ),
        (done("", 135), "ended by SIGBUS; its last line: none"),
        (done("", 255), "exit status 255"),
        (
            done("GPU 0: cudaErrorECCUncorrectable (214): uncorrectable ECC error\n", 1),
            "GPU 0: cudaErrorECCUncorrectable (214): uncorrectable ECC error",
        ),
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


def test_exit_status_77_is_skipped_and_never_passed(verify: Verify) -> None:
    _, outcome = verify(done("no GPU here\n", 77), needs=("gpu",))
    assert (outcome.outcome, outcome.reason) == (SKIPPED, "no GPU here")
    assert outcome.outcome != PASSED


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the check printed no finding"),
        ("rank 1: FAILED\nno adapter\n", "it printed: rank 1: FAILED"),
        ("\x7f\x01\n", "its last line is not text: "),
    ],
)
def test_exit_status_77_alone_skips_nothing(text: str, fault: str, verify: Verify) -> None:
    """Other programs end with it, too: curl without certificates, and EX_NOPERM of sysexits.h."""
    _, outcome = verify(done(text, 77, "curl: (77) error setting certificate locations\n"))
    assert outcome.outcome == FAILED
    assert outcome.reason.startswith(f"exit status 77, but {fault}")


@pytest.mark.parametrize("status", [0, 77, -15])
def test_a_timeout_is_failed_whatever_the_exit_status(status: int, verify: Verify) -> None:
    _, outcome = verify(done("all well\n", status, timed_out=True))
    assert outcome.outcome == FAILED
    assert outcome.reason == "no result after 60 s; its last line: all well"


def test_a_timeout_says_what_was_waited_for(verify: Verify) -> None:
    hung = done("rank 3 sends\n", -15, timed_out=True, waiting=("mpi (futex_wait)", "1 more"))
    _, outcome = verify(hung)
    assert outcome.reason == (
        "no result after 60 s; its last line: rank 3 sends; "
        "it was waiting for: mpi (futex_wait), 1 more"
    )
    _, silent = verify(done("", -15, timed_out=True))
    assert silent.reason == "no result after 60 s; its last line: none"


@pytest.mark.parametrize(
    "result", [done(""), done(" \n\t\n"), done("", stderr="x\n"), done('data: {"ranks": 4}\n')]
)
def test_no_finding_is_failed(result: Completed, verify: Verify) -> None:
    _, outcome = verify(result)
    assert outcome.outcome == FAILED
    assert outcome.reason == "exit status 0, but the check printed no finding"


@pytest.mark.parametrize(
    "line",
    [
        "/checks/20-x: 2: nowhere: not found",
        "sh: line 1: nowhere: command not found",
        "sh: 1: cannot open nowhere: No such file or directory",
        "timeout: failed to run command 'nowhere': No such file or directory",
        "prog: error while loading shared libraries: libx.so.1: cannot open shared object file",
    ],
)
def test_a_program_that_did_not_run_is_no_finding(line: str, verify: Verify) -> None:
    """As in `nowhere 2>&1 | tail -n 1`, whose exit status is that of `tail`."""
    _, outcome = verify(done(f"so far so good\n{line}\n"))
    assert outcome.outcome == FAILED
    assert outcome.reason == f"exit status 0, but a program did not run: {line}"
    _, skipped = verify(done(f"{line}\n", 77))
    assert (skipped.outcome, skipped.reason) == (SKIPPED, line), "as the check says itself"


@pytest.mark.parametrize(
    "line",
    [
        "without a GPU it fails as it has to: libcuda.so.1: open: No such file or directory",
        "a missing file is told: /nowhere: No such file or directory",
    ],
)
def test_a_finding_may_quote_such_a_message(line: str, verify: Verify) -> None:
    _, outcome = verify(done(f"{line}\n"))
    assert (outcome.outcome, outcome.reason) == (PASSED, line)


@pytest.mark.parametrize(
    "text",
    ["\ufffd\0" * 10_000, "\ufffd\ufffdELF", "fine\a", "\x7f\x01\x02", "a\u202eb"],
    ids=["zeros", "elf", "bell", "control", "override"],
)
def test_binary_rubbish_is_no_finding(text: str, verify: Verify) -> None:
    _, outcome = verify(done(text))
    assert outcome.outcome == FAILED
    assert outcome.reason.startswith("exit status 0, but its last line is not text: ")
    assert len(outcome.reason) <= 500
    assert outcome.reason.isprintable()
    assert all(one.isprintable() or one in "\n\t" for one in outcome.output)
    json.dumps(outcome.reason)


def test_rubbish_before_a_finding_is_let_be(verify: Verify) -> None:
    _, outcome = verify(done("\ufffd\0" * 1000 + "\nall is well\n"))
    assert (outcome.outcome, outcome.reason) == (PASSED, "all is well")


def test_what_moves_a_terminal_is_left_out(verify: Verify) -> None:
    text = "\x1b]0;title\x07 10 %\r100 %\r\x1b[2K\x1b[1;32mall is well\x1b[0m\r\n"
    _, outcome = verify(done(text))
    assert (outcome.outcome, outcome.reason) == (PASSED, "all is well")


def test_what_is_kept_of_long_output_is_bounded(verify: Verify) -> None:
    _, outcome = verify(done("x" * 1_000_000, 1))
    assert outcome.reason == "x" * 500
    assert len(outcome.output) == 16_000


def test_each_check_has_its_own_outcome(verify: Verify) -> None:
    found = verify(done("a"), done("b", 1), done("c", 77))
    assert [one.outcome for one in found] == [PASSED, PASSED, FAILED, SKIPPED]
    assert [one.check for one in found] == ["environment", "check0", "check1", "check2"]


def test_a_container_that_does_not_start_fails_every_check() -> None:
    target = a_target(a_check("a"), a_check("b"))
    found = not_started(target, StepFailed("buildah from: exit status 125", tail=["a", "no image"]))
    assert [one.check for one in found] == ["environment", "a", "b"]
    assert {one.outcome for one in found} == {FAILED}
    assert {one.reason for one in found} == {"the container could not be started: no image"}
    assert found[0].output == "a\nno image"
    [said, *_] = not_started(target, StepFailed("tar: exit status 2"))
    assert said.reason == "the container could not be started: tar: exit status 2"


def test_environment_of_the_image_is_there(verify: Verify) -> None:
    [outcome] = verify()
    assert outcome.outcome == PASSED
    assert outcome.reason == "in /, with the image's variables and no others: MODE, PATH"
    assert outcome.duration_s == 1.235


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (env("PATH=/usr/bin:/bin"), "MODE is not set"),
        (env("PATH=/bin", "MODE=a=b c"), "PATH is '/bin', not '/usr/bin:/bin'"),
        (env("PATH=/usr/bin:/bin", "MODE=a=b\nc"), "MODE is 'a=b\\nc', not 'a=b c'"),
        (
            env("PATH=/usr/bin:/bin", "MODE=a=b c", "SECRET=1", "APPTAINER_X=1"),
            "APPTAINER_X is set, but not by the image; SECRET is set, but not by the image",
        ),
        (
            env("PATH=/usr/bin:/bin", "MODE=a=b c", directory="/root"),
            "the working directory is /root, not /",
        ),
        ("", "PATH is not set; MODE is not set; the working directory is , not /"),
    ],
)
def test_an_environment_that_is_not_the_images_is_failed(
    printed: str, reason: str, verify: Verify
) -> None:
    [outcome] = verify(env=done(printed))
    assert (outcome.outcome, outcome.reason) == (FAILED, reason)
    assert outcome.output == printed.replace("\0", "\n").strip()


def test_env_that_fails_is_failed(verify: Verify) -> None:
    for returncode, stderr, reason in (
        (1, "broken\n", "broken"),
        (127, "", "'pwd && exec env -0' did not run"),
    ):
        [outcome] = verify(env=done(ENV_OUTPUT, returncode, stderr))
        assert (outcome.outcome, outcome.reason) == (FAILED, reason)


@pytest.mark.parametrize(
    ("variable", "value", "printed", "expected"),
    [
        ("HOME", "/root", "HOME=/tmp", PASSED),  # each runner is told another one
        ("java.home", "/a", "", PASSED),  # no shell hands it on
        ("java.home", "/a", "java.home=/a", PASSED),
        ("java.home", "/a", "java.home=/b", FAILED),
        *(("HOME", "", f"{name}=x", PASSED) for name in ("PWD", "OLDPWD", "SHLVL", "_")),
        ("LD_LIBRARY_PATH", "/a", "LD_LIBRARY_PATH=/a:/.singularity.d/libs", PASSED),
        ("LD_LIBRARY_PATH", "/a", "LD_LIBRARY_PATH=/a:/b", FAILED),
        *(
            ("OTHER", "", f"OTHER=\0LD_LIBRARY_PATH={value}", outcome)
            for value, outcome in (
                ("", PASSED),
                ("/.singularity.d/libs", PASSED),
                ("/b:/.singularity.d/libs", FAILED),  # by APPTAINERENV_LD_LIBRARY_PATH
            )
        ),
        ("OTHER", "/a", "OTHER=/a:/.singularity.d/libs", FAILED),
    ],
)
def test_variables_that_may_be_others(
    variable: str, value: str, printed: str, expected: str
) -> None:
    runner = FakeRunner({"sh": done(env(printed))})
    own = ("LD_LIBRARY_PATH",)
    assert environment_in(runner, {variable: value}, own=own).outcome == expected


def test_a_working_directory_through_a_link_is_sound(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "work").symlink_to("data")

    class Here:
        """A shell of this machine, in the folder that the link leads to."""

        def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
            assert timeout_s
            ran = subprocess.run(
                argv, cwd=tmp_path / "data", env={"A": "b"}, capture_output=True, check=False
            )
            return done(ran.stdout.decode(), ran.returncode, ran.stderr.decode())

    for name, outcome in (("work", PASSED), ("data", PASSED), ("none", FAILED), (".", FAILED)):
        found = environment_in(Here(), {"A": "b"}, str(tmp_path / name), own=("*PATH",))
        assert found.outcome == outcome, found.reason
        assert found.outcome == FAILED or found.reason.endswith("no others: A")


def test_what_hands_over_gpus_may_say_so(verify: Verify) -> None:
    printed = env("PATH=/usr/bin:/bin", "MODE=a=b c", "NVIDIA_VISIBLE_DEVICES=void")
    [outcome] = verify(env=done(printed), gpu=True)
    assert outcome.outcome == PASSED
    [outcome] = verify(env=done(printed))
    assert outcome.outcome == FAILED


def test_failed_alone_spoils_a_run() -> None:
    assert passed([an_outcome(PASSED), an_outcome(SKIPPED)])
    assert not passed([an_outcome(PASSED), an_outcome(FAILED)])


def an_outcome(outcome: str, check: str = "mpi") -> Outcome:
    return Outcome(check=check, outcome=outcome, reason="because")


def test_a_gpu_check_that_found_none_since_it_disappeared_was_not_skipped() -> None:
    names = ("gpu", "compute", "other")
    checks = (*(a_check(name, ("gpu",)) for name in names), a_check("mpi", ("mpi",)))
    other = dataclasses.replace(an_outcome(SKIPPED, "other"), data={"applies": False})
    skipped = [an_outcome(SKIPPED, "compute"), an_outcome(SKIPPED, "mpi"), other]
    outcomes = [an_outcome(PASSED, "gpu"), *skipped]
    judged = after_a_loss(outcomes, a_target(*checks), "a GPU disappeared")
    assert [check.outcome for check in judged] == [PASSED, FAILED, SKIPPED, SKIPPED]
    assert judged[1].reason == "a GPU disappeared; check output: because"


def test_a_gpu_check_that_passes_without_a_gpu_says_so() -> None:
    """It may fall back to the processor: the image is not proven on a GPU."""
    target = a_target(a_check("train", ("gpu",)), a_check("skips", ("gpu",)), a_check("mpi"))
    outcomes = [an_outcome(PASSED, "train"), an_outcome(SKIPPED, "skips"), an_outcome(PASSED)]
    assert [one.lacked_gpu for one in noting_no_gpu(outcomes, target)] == [True, False, False]


def test_variables_that_depend_on_the_program_that_is_started_are_failed() -> None:
    """A script of a SIF may behave as long as it is `env` that looks."""
    for other in (["PATH=/usr/bin:/bin", "MODE=other"], ["PATH=/usr/bin:/bin"]):
        results = {"sh": done(ENV_OUTPUT), "cat": done("\0".join([*other, "CH_RUNNING=x"]))}
        outcome = environment_in(FakeRunner(results), ENVIRONMENT, own=("CH_RUNNING",))
        assert outcome.outcome == FAILED
        assert "MODE depends on the program that is started: " in outcome.reason
    results = {"sh": done(env("HOME=/tmp")), "cat": done("java.home=/a\0HOME=/x")}
    outcome = environment_in(FakeRunner(results), {"java.home": "/a"}, own=())
    assert outcome.outcome == PASSED, "no shell hands that on"
    assert outcome.reason == "in /, with the image's variables and no others: none"


@pytest.mark.parametrize(
    ("needs", "driver", "why"),
    [
        ((), "550.1", "no check of the image needs one"),
        (("gpu",), "", "no NVIDIA driver is loaded on this host"),
        (("gpu",), "550.1", "there is no toolkit"),
    ],
)
def test_why_gpus_are_not_handed_over(
    needs: tuple[str, ...], driver: str, why: str, tmp_path: Path
) -> None:
    target = a_target(a_check(needs=needs))
    kind = dataclasses.replace(RUNNERS["docker"], no_gpu=lambda _: "there is no toolkit")
    host = HostFacts(arch="x86_64", kernel="6", cpu="c", cores=1, os="o", driver=driver)
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    assert why_no_gpu(target, kind, host=host, tools=tools) == why
    able = dataclasses.replace(kind, no_gpu=lambda _: "")
    found = why_no_gpu(target, able, host=host, tools=tools)
    assert found == ("" if why == "there is no toolkit" else why)


@pytest.mark.parametrize(
    ("lines", "evidence", "more"),
    [
        (12, ["evidence/oci.xml"], []),
        (13, ["evidence/oci.xml"], ["  1 more line in out/evidence/oci.xml"]),
        (13, [], []),
    ],
)
def test_what_a_failed_check_printed_has_an_end(
    lines: int, evidence: list[str], more: list[str]
) -> None:
    output = "\n".join(str(number) for number in range(lines))
    failed = {"check": "mpi", "outcome": FAILED, "reason": "no ranks", "output": output}
    image = record({"checks": {"oci": [failed]}, "evidence": evidence})
    assert failures_of(image, Path("out")) == [
        "oci/mpi: no ranks",
        *(f"  | {number}" for number in range(lines)[-12:]),
        *more,
    ]
