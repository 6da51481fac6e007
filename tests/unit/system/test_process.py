"""The door for subprocesses: what it logs, quotes and bounds, and that nothing outlives it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.model.errors import Interrupted, MissingPrerequisite, StepFailed
from builder.system.descendants import descendants, end_tree, text_of, with_children
from builder.system.process import TAIL_LINES, Completed, Processes
from builder.system.terminal import CAPTURE_LIMIT

PROJECT = Path(__file__).parents[3]
LONG = "300"  # seconds that no test waits for


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def comes_true(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:  # handed to the test
            raised.append(error)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    return thread, raised


@pytest.fixture(name="log")
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


def test_log_holds_the_command_and_both_streams(log: Path) -> None:
    Processes().logged(sh("echo one; echo two >&2"), log=log)
    assert log.read_text() == "+ sh -c 'echo one; echo two >&2'\none\ntwo\n"


def test_log_is_added_to(log: Path) -> None:
    for word in ("one", "two"):
        Processes().logged(["echo", word], log=log)
    assert log.read_text() == "+ echo one\none\n+ echo two\ntwo\n"


def test_arguments_are_not_read_by_a_shell(log: Path) -> None:
    Processes().logged(["echo", "$HOME; `id`"], log=log)
    assert log.read_text().splitlines()[1] == "$HOME; `id`"


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_status_of_an_interactive_command_is_that_of_a_shell(script: str, status: int) -> None:
    assert Processes().interactive(sh(script)) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("has_targets", [True, False])
def test_signals_are_passed_on_to_the_targets_or_to_all(
    number: signal.Signals,
    has_targets: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command is a shell that notes the signal, with a shell below that ends with 7."""
    monkeypatch.setattr("builder.system.process._is_in_foreground", lambda: False)
    name, pid = number.name.removeprefix("SIG"), tmp_path / "pid"
    inner = f"trap 'exit 7' {name}; echo $$ >{pid}; sleep 60 & wait"
    below = inner.replace(chr(39), chr(34))
    outer = sh(f"noted=0; trap noted=1 {name}; sh -c '{below}'; exit $(($? + noted))")
    # A shell's background jobs, CI among them, ignore SIGINT, and so would what they start.
    script = ["env", "--default-signal=INT", *outer]

    def targets() -> list[int]:
        return [int(pid.read_text())] if has_targets else []

    def when_it_runs() -> None:
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=when_it_runs)
    sender.start()
    assert Processes().interactive(script, targets=targets) == (7 if has_targets else 8)
    sender.join()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_the_group_leaves_the_program_supervised(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'noted=1' {name}; echo ready; while [ ! $noted ]; do sleep 0.01; done; exit 7"
    run = (
        "import sys; from builder.system.process import Processes; "
        "sys.exit(Processes().interactive(sys.argv[1:], targets=list))"
    )
    argv = [sys.executable, "-c", run, "env", f"--default-signal={name}", *sh(script)]
    with subprocess.Popen(
        argv, cwd=PROJECT, stdout=subprocess.PIPE, start_new_session=True
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == b"ready\n"
        os.killpg(running.pid, number)
        assert running.wait(timeout=20) == 7


@pytest.mark.parametrize("has_lists", [True, False])
def test_a_process_with_all_below_it(has_lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_lists:  # an older kernel
        monkeypatch.setattr("os.path.exists", lambda _path: False)
        monkeypatch.setattr("builder.system.descendants.text_of", without_lists(text_of))
    script = f"sh -c 'sleep {LONG} & sleep {LONG} & echo; wait' & wait"
    with subprocess.Popen(sh(script), stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        shell.stdout.readline()
        pids = with_children(shell.pid)
        assert pids[0] == shell.pid
        assert sorted(pids[1:]) == sorted(descendants(shell.pid))
        assert len(pids) == 4
        end_tree(shell.pid, grace_s=0.0)
    assert with_children(shell.pid) == [shell.pid]


def without_lists(read: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda file: "" if str(file).endswith("/children") else read(file)


def test_failure_quotes_its_last_lines_and_names_the_log(log: Path) -> None:
    script = sh("for n in $(seq 100); do echo line $n; done; exit 3")
    with pytest.raises(StepFailed) as caught:
        Processes().logged(script, log=log, what="the step", hint="try again")
    assert caught.value.message == "the step: exit status 3"
    assert caught.value.tail == tuple(f"line {n}" for n in range(101 - TAIL_LINES, 101))
    assert len(caught.value.tail) == 30
    assert caught.value.log == log
    assert "  | line 100\n" in str(caught.value)
    assert str(caught.value).endswith(f"  log: {log}\n  hint: try again")


def test_a_signal_is_named(log: Path) -> None:
    with pytest.raises(StepFailed, match="sh: ended by SIGKILL"):
        Processes().logged(sh("kill -9 $$"), log=log)


def test_missing_program_is_a_missing_prerequisite(log: Path) -> None:
    with pytest.raises(MissingPrerequisite) as caught:
        Processes().logged(["no-such-program"], log=log)
    assert caught.value.exit_code == 4
    assert str(caught.value).splitlines() == [
        "no-such-program: no such program on this machine",
        "  hint: 'build-images doctor' lists what is missing and how to get it",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as another user")
@pytest.mark.parametrize("supervised", [True, False])
def test_a_command_runs_as_another_user(supervised: bool) -> None:
    entry, script = pwd.getpwnam("nobody"), sh("echo $USER $LOGNAME $HOME $(id -u) $(id -G)")
    done = Processes().capture(script, user="nobody", supervised=supervised)
    ids = [str(entry.pw_uid), str(entry.pw_gid)]
    assert done.stdout.split() == ["nobody", "nobody", entry.pw_dir, *ids]


def test_a_user_that_is_missing_is_a_missing_prerequisite() -> None:
    with pytest.raises(MissingPrerequisite) as caught:
        Processes().capture(["true"], user="nobody-of-that-name")
    assert str(caught.value).splitlines() == [
        "user nobody-of-that-name is missing: root runs Apptainer and Charliecloud as this user",
        "  hint: build-images setup creates it",
    ]


def test_lines_are_told_as_they_come(log: Path) -> None:
    heard: list[str] = []
    echoed: list[str] = []
    processes = Processes(echo=echoed.append)
    processes.logged(sh(r"printf 'a\nb\r\nc'"), log=log, on_line=heard.append)
    assert heard == echoed == ["a", "b", "c"]


def test_environment_is_added_to_the_callers(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    Processes().logged(sh("echo $OURS$THEIRS"), log=log, env={"THEIRS": "2"})
    assert log.read_text().splitlines()[-1] == "12"


def test_command_runs_in_the_folder_that_is_named(tmp_path: Path, log: Path) -> None:
    (tmp_path / "inner").mkdir()
    Processes().logged(["pwd"], log=log, cwd=tmp_path / "inner")
    assert log.read_text().splitlines()[-1] == str(tmp_path / "inner")


def test_capture_keeps_the_streams_apart() -> None:
    done = Processes().capture(sh("echo out; echo err >&2"))
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 0)
    assert not done.timed_out


def test_capture_hands_over_what_is_no_argument() -> None:
    assert Processes().capture(["cat"], input_text="a secret\n").stdout == "a secret\n"
    assert Processes().capture(["true"], input_text="not read" * 10_000).returncode == 0
    assert Processes().capture(["cat"]).stdout == ""


def test_capture_quotes_what_was_said_on_failure() -> None:
    with pytest.raises(StepFailed, match="exit status 7") as caught:
        Processes().capture(sh("echo why >&2; exit 7"), hint="look")
    assert caught.value.tail == ("why",)
    assert caught.value.hint == "look"
    with pytest.raises(StepFailed, match="exit status 7") as caught:
        Processes().capture(sh("echo why; exit 7"))
    assert caught.value.tail == ("why",)


def test_unchecked_capture_returns_the_failure() -> None:
    assert Processes().capture(sh("exit 7"), check=False).returncode == 7


def test_timeout_ends_the_whole_tree() -> None:
    """A child, a grandchild, and one that has left the session."""
    script = (
        f"sleep {LONG} & echo $!; setsid sleep {LONG} & echo $!; "
        f"sh -c 'sleep {LONG} & echo $!; wait' & wait"
    )
    start = time.monotonic()
    done = Processes().capture(sh(script), timeout_s=0.7, check=False)
    assert done.timed_out
    assert time.monotonic() - start < 10
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    assert comes_true(lambda: not any(is_running(pid) for pid in pids), 3)


def test_timeout_ends_what_ignores_requests() -> None:
    start = time.monotonic()
    script = sh(f"trap '' TERM; echo begun; sleep {LONG}")
    done = Processes().capture(script, timeout_s=0.3, check=False)
    assert (done.timed_out, done.stdout) == (True, "begun\n")
    assert time.monotonic() - start < 10


def test_checked_timeout_is_a_failure() -> None:
    with pytest.raises(StepFailed, match=r"no result after 0\.2 s"):
        Processes().capture(["sleep", LONG], timeout_s=0.2)


def test_what_a_finished_command_left_running_is_ended() -> None:
    start = time.monotonic()
    done = Processes().capture(sh(f"sleep {LONG} & echo $!"))
    assert time.monotonic() - start < 4
    assert comes_true(lambda: not is_running(int(done.stdout)), 3)


def test_of_100_megabytes_both_ends_are_kept_and_no_more_is_ever_in_memory() -> None:
    tracemalloc.start()
    try:
        zeros, rubbish = "head -c 100000000 /dev/zero", r"printf '\n\377ended\n'"
        done = Processes().capture(sh(rf"printf 'begun\377\n'; {zeros}; {rubbish}"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.stdout.startswith("begun\ufffd\n\0")
    assert done.stdout.endswith("\0\n\ufffdended\n")
    left_out = 100_000_000 + len("begun?\n\n?ended\n") - CAPTURE_LIMIT
    assert f"\n[{left_out} bytes left out]\n" in done.stdout
    assert len(done.stdout) < CAPTURE_LIMIT + 100
    assert peak < 8 * CAPTURE_LIMIT


@pytest.mark.parametrize("at", [700_000, 1_048_570, 1_600_000, 2_000_000])
def test_a_line_that_says_failed_is_kept_of_the_middle(at: int) -> None:
    """A check is judged by it: launchers may lose the status of their ranks."""
    lines = f"yes xxxxxxxxx | head -c {at}"
    said = r"printf '\nrank 1: FAILED wrong sum\nMPI started singletons\n'"
    done = Processes().capture(sh(f"{lines}; {said}; yes yyyyyyyyy | head -c 2000000"))
    assert "bytes left out]\n" in done.stdout
    assert "\nrank 1: FAILED wrong sum\n" in done.stdout
    assert "\nMPI started singletons\n" in done.stdout
    assert len(done.stdout) < CAPTURE_LIMIT + 200


def test_of_many_lines_that_say_failed_some_are_kept() -> None:
    done = Processes().capture(sh("yes FAILED | head -c 3000000"))
    assert len(done.stdout) < CAPTURE_LIMIT + 20_000


def test_output_up_to_the_limit_is_kept_whole() -> None:
    for size in (CAPTURE_LIMIT // 2, CAPTURE_LIMIT - 1, CAPTURE_LIMIT):
        done = Processes().capture(["head", "-c", str(size), "/dev/zero"])
        assert done.stdout == "\0" * size


def test_a_line_without_an_end_is_heard_in_pieces(log: Path) -> None:
    heard: list[str] = []
    rubbish = ["head", "-c", "1000000", "/dev/zero"]
    Processes().logged(rubbish, log=log, on_line=heard.append)
    assert len(heard) > 1
    assert sum(map(len, heard)) == 1_000_000
    assert log.read_bytes().endswith(b"\0" * 1_000_000)


# A process that forks twice, makes a session of its own, ignores requests, and has a child.
ESCAPED = (
    f"(setsid sh -c 'trap \"\" TERM HUP INT; sleep {LONG} & echo $$ $!; sleep {LONG}' &); sleep 0.3"
)


def supervised(argv: list[str], timeout_s: float | None = None) -> Completed:
    return Processes().capture(argv, timeout_s=timeout_s, check=False, supervised=True)


def test_a_supervised_command_ends_as_it_does_alone() -> None:
    done = supervised(sh("echo out; echo err >&2; exit 7"))
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    assert done.argv[0] == "sh"
    assert supervised(sh("kill -9 $$")).returncode == -9
    assert supervised(sh("kill -11 $$")).returncode == -11
    missing = supervised(["/no/such/program"])
    assert (missing.returncode, missing.stdout) == (127, "")
    assert missing.stderr == "/no/such/program: No such file or directory\n"


def ignored(status: str) -> set[int]:
    """The numbers of the signals that a process ignores, from its proc_pid_status(5)."""
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return {bit + 1 for bit in range(64) if int(mask, 16) >> bit & 1}


def test_a_supervised_command_gets_no_signal_ignored() -> None:
    of_python = {signal.SIGPIPE, signal.SIGXFSZ}
    inherited = ignored(Path("/proc/self/status").read_text()) - of_python
    for supervised in (True, False):
        done = Processes().capture(["cat", "/proc/self/status"], supervised=supervised)
        assert ignored(done.stdout) <= inherited


def test_what_escaped_a_supervised_command_is_ended_with_it() -> None:
    done = supervised(sh(f"{ESCAPED}; echo done"))
    assert (done.returncode, done.timed_out) == (0, False)
    *pids, last = done.stdout.split()
    assert (len(pids), last) == (2, "done")
    assert comes_true(lambda: not any(is_running(int(pid)) for pid in pids), 3)


def test_what_escaped_a_supervised_command_that_hangs_is_ended_and_named() -> None:
    start = time.monotonic()
    done = supervised(sh(f"{ESCAPED}; sleep {LONG}"), timeout_s=1.5)
    assert time.monotonic() - start < 10
    assert done.timed_out
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert comes_true(lambda: not any(is_running(pid) for pid in pids), 3)
    assert len(done.waiting) == 3
    assert all(line.startswith(f"sleep {LONG} (") for line in done.waiting)


def test_what_a_command_that_hangs_waited_for_is_named() -> None:
    """Those at the end of each line of descent, with their state or the kernel's function."""
    script = sh(f"sh -c 'kill -STOP $$' & (while :; do :; done) & exec sleep {LONG}")
    waiting = supervised(script, timeout_s=0.7).waiting
    assert "sh -c kill -STOP $$ (stopped)" in waiting
    assert any(line.startswith("sh -c ") and line.endswith("(running)") for line in waiting)


def test_of_many_that_hang_five_are_named() -> None:
    script = sh(f"for n in 1 2 3 4 5 6 7; do sleep {LONG} & done; wait")
    waiting = supervised(script, timeout_s=0.7).waiting
    assert len(waiting) == 6
    assert waiting[-1] == "2 more"


def test_a_process_whose_name_is_rubbish_is_named_all_the_same() -> None:
    script = sh("exec tail -f /dev/null \"$(printf 'a\\033\\377\\nb')\"")
    waiting = supervised(script, timeout_s=0.5).waiting
    assert [line.partition(" (")[0] for line in waiting] == ["tail -f /dev/null a?\ufffd?b"]


def test_an_emulator_is_not_named_but_the_program_that_it_runs(tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64").symlink_to(shutil.which("tail") or "/usr/bin/tail")
    argv = [str(tmp_path / "qemu-aarch64"), "-f", "/dev/null"]
    waiting = supervised(argv, timeout_s=0.5).waiting
    assert [line.partition(" (")[0] for line in waiting] == ["-f /dev/null"]


@pytest.mark.parametrize(("length", "shown"), [(102, "a" * 102), (103, f"{'a' * 98} ...")])
def test_the_beginning_of_a_long_command_line_is_named(length: int, shown: str) -> None:
    waiting = supervised(["tail", "-f", "/dev/null", "a" * length], timeout_s=0.5).waiting
    assert [line.partition(" (")[0] for line in waiting] == [f"tail -f /dev/null {shown}"]


def test_a_look_that_fails_ends_the_command_all_the_same() -> None:
    def look(_pid: int) -> tuple[str, ...]:
        raise OSError

    done = Processes().capture(["sleep", LONG], timeout_s=0.3, look=look, check=False)
    assert (done.timed_out, done.waiting) == (True, ())


def test_a_supervised_command_ends_with_the_run(tmp_path: Path) -> None:
    processes, pids = Processes(), tmp_path / "pids"
    script = sh(f"{ESCAPED.replace('echo', f'>{pids} echo')}; sleep {LONG}")
    thread, raised = in_thread(lambda: processes.capture(script, supervised=True))
    assert comes_true(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    processes.stop()
    thread.join(timeout=15)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [Interrupted]
    assert not any(is_running(int(pid)) for pid in pids.read_text().split())


def test_binary_output_is_text_all_the_same(log: Path) -> None:
    rubbish = sh(r"printf '\377\376\000ok\n'")
    assert Processes().capture(rubbish).stdout == "\ufffd\ufffd\0ok\n"
    heard: list[str] = []
    Processes().logged(rubbish, log=log, on_line=heard.append)
    assert heard == ["\ufffd\ufffd\0ok"]
    assert log.read_bytes().endswith(b"\xff\xfe\0ok\n")


def test_stop_ends_what_runs_and_refuses_more(tmp_path: Path) -> None:
    processes = Processes()
    pid_file = tmp_path / "pid"
    script = sh(f"echo $$ > {pid_file}; exec sleep {LONG}")
    threads = [
        in_thread(lambda: processes.logged(script, log=tmp_path / "log")),
        in_thread(lambda: processes.capture(["sleep", LONG], check=False)),
    ]
    assert comes_true(lambda: pid_file.exists() and bool(pid_file.read_text().strip()))
    assert comes_true(lambda: len(processes._running) == 2)
    processes.stop()
    for thread, raised in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
        assert [type(error) for error in raised] == [Interrupted]
    assert not is_running(int(pid_file.read_text()))
    assert processes.stopping
    with pytest.raises(Interrupted):
        processes.capture(["true"])


def test_stop_ends_a_command_that_starts_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def stopped_meanwhile(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] = real(*given, **named)
        started.append(child)
        processes.stop()
        return child

    monkeypatch.setattr("builder.system.process.subprocess.Popen", stopped_meanwhile)
    thread, raised = in_thread(lambda: processes.capture(["sleep", LONG]))
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [Interrupted]
    assert not is_running(started[0].pid)


def test_reading_from_gives_the_output() -> None:
    with Processes().reading_from(sh("echo text; echo noise >&2")) as stream:
        assert stream.read() == b"text\n"


def test_reading_need_not_come_to_the_end() -> None:
    with Processes().reading_from(["seq", "100000"]) as stream:
        assert stream.read(2) == b"1\n"


def test_command_that_is_read_from_fails() -> None:
    with (
        pytest.raises(StepFailed, match="exit status 5") as caught,
        Processes().reading_from(sh("echo why >&2; exit 5")) as stream,
    ):
        stream.read()
    assert caught.value.tail == ("why",)


def test_failing_command_is_the_reason_when_its_output_makes_no_sense() -> None:
    with (
        pytest.raises(StepFailed, match="exit status 5") as caught,
        Processes().reading_from(sh("echo half; echo why >&2; exit 5")) as stream,
    ):
        int(stream.read())
    assert caught.value.tail == ("why",)


def test_failure_while_reading_is_passed_on() -> None:
    processes = Processes()
    with (  # noqa: PT012 - what is raised within is the case
        pytest.raises(ZeroDivisionError),
        processes.reading_from(sh(f"echo x; exec sleep {LONG}")) as stream,
    ):
        stream.read(1)
        raise ZeroDivisionError
    assert not processes._running


def test_stop_ends_streams_too() -> None:
    processes = Processes()

    def work() -> None:
        with processes.reading_from(["sleep", LONG]) as source:
            source.read()

    thread, raised = in_thread(work)
    assert comes_true(lambda: bool(processes._running))
    processes.stop()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [type(error) for error in raised] == [Interrupted]


def test_stderr_of_a_stream_cannot_block_it() -> None:
    noise = sh("head -c 1000000 /dev/zero >&2; echo text")
    with Processes().reading_from(noise) as stream:
        assert stream.read() == b"text\n"


def test_programs_of_these_tests_are_here() -> None:
    assert all(shutil.which(name) for name in ("sh", "sleep", "setsid", "seq", "head", "tr"))
