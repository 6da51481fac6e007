"""The checks of an image, run in one of its formats."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from builder.build.engines import Tools
from builder.model import FAILED, NONE, PASSED, SKIPPED, Outcome
from builder.model.agreement import wrong_numbers
from builder.model.errors import StepFailed
from builder.model.manifest import AskedRanks, InImageCheck
from builder.model.package_indices import IndexState
from builder.system.host_facts import HostFacts
from builder.system.process import Completed
from builder.verify.container_output import (
    LONGEST,
    all_data_of,
    data_of,
    end_of,
    is_rubbish,
    last_line,
    lines_of,
    one_line,
    readable,
)
from builder.verify.runners import CopiesDriver, Kind, Runner

SKIP_STATUS = 77  # Automake's convention
_SIGNALLED = 128  # a shell adds the number of the signal that ended a program


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is to be proven: an image's name, its environment and its checks.

    `directory` is the working directory of its programs, `mpi` the value of its cell. `harness` has
    the SHA-256 of the builder's scripts by their paths in the image; it is empty if these are not
    known. `indices` are the states of package indices that it was made with, where these are known.
    """

    identifier: str
    arch: str
    environment: Mapping[str, str]
    checks: tuple[InImageCheck, ...]
    directory: str = "/"
    mpi: str = NONE
    harness: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[IndexState, ...] = ()

    @property
    def needs_gpu(self) -> bool:
        """True if one of its checks does."""
        return any(check.needs_gpu for check in self.checks)


def outcomes_in(
    target: Target, kind: Kind, runner: Runner, *, gpu: bool = False
) -> tuple[Outcome, ...]:
    """Run every check in a container that stands.

    Where the driver is copied into the image, the checks that need a GPU come last: the others,
    `cuda-clean` above all, are of the image as it was made.
    """
    found = {ENVIRONMENT_CHECK: environment_of(target, kind, runner, gpu=gpu)}
    late = isinstance(runner, CopiesDriver)
    for check in target.checks:
        if not (late and check.needs_gpu):
            found[check.name] = outcome_of(check, runner)
    if isinstance(runner, CopiesDriver):
        found |= _after_copying(target, runner)
    return (found[ENVIRONMENT_CHECK], *(found[check.name] for check in target.checks))


def not_started(target: Target, error: StepFailed) -> tuple[Outcome, ...]:
    """The outcomes where a container did not start: all checks failed."""
    names = [ENVIRONMENT_CHECK, *(check.name for check in target.checks)]
    return all_failed(names, "the container could not be started", error)


def why_no_gpu(target: Target, kind: Kind, *, host: HostFacts, tools: Tools) -> str:
    """Why this machine's GPUs are not handed over to an image; empty if they are."""
    if not target.needs_gpu:
        return "no check of the image needs one"
    return kind.no_gpu(tools) if host.driver else "no driver of NVIDIA's is loaded here"


def environment_of(target: Target, kind: Kind, runner: Runner, *, gpu: bool) -> Outcome:
    """Whether the image's variables and its working directory are there, and nothing else."""
    return environment_outcome(
        runner, target.environment, directory=target.directory, own=kind.own, gpu=gpu
    )


def outcome_of(check: InImageCheck, runner: Runner, command: Sequence[str] = ()) -> Outcome:
    """Run one check: its script, or the `command` that starts it."""
    done = runner.run(command or [check.script], timeout_s=check.timeout_s)
    outcome, reason = _judged(check, done)
    return Outcome(
        check=check.name,
        outcome=outcome,
        reason=reason,
        duration_s=round(done.duration_s, 3),
        data=data_of(done.stdout),
        output="" if outcome == PASSED else end_of(done.stdout, done.stderr),
    )


def passed(outcomes: Iterable[Outcome]) -> bool:
    """Whether nothing failed; what was skipped is not passed, and does not count as failed."""
    return all(outcome.outcome != FAILED for outcome in outcomes)


def after_a_loss(outcomes: Iterable[Outcome], target: Target, lost: str) -> tuple[Outcome, ...]:
    """Outcomes of a run in which GPUs disappeared: a check that found none then was not skipped.

    `lost` says which GPUs there were before and after.
    """
    of_gpus = {check.name for check in target.checks if check.needs_gpu}
    return tuple(
        dataclasses.replace(one, outcome=FAILED, reason=f"{lost}; the check said: {one.reason}")
        if one.outcome == SKIPPED and one.applies and one.check in of_gpus
        else one
        for one in outcomes
    )


def all_failed(names: Iterable[str], what: str, error: StepFailed) -> tuple[Outcome, ...]:
    """Checks that could not be run, since `what`."""
    said = error.tail[-1] if error.tail else error.message
    reason = readable(f"{what}: {said}"[:LONGEST])
    output = end_of(*error.tail)
    return tuple(
        Outcome(check=name, outcome=FAILED, reason=reason, output=output) for name in names
    )


def _after_copying(target: Target, runner: CopiesDriver) -> dict[str, Outcome]:
    """The outcomes of the checks that need a GPU, once the driver is in the image."""
    checks = [check for check in target.checks if check.needs_gpu]
    try:
        runner.copy_driver()
    except StepFailed as error:
        names = [check.name for check in checks]
        failed = all_failed(names, "the driver could not be copied into the image", error)
        return {one.check: one for one in failed}
    return {check.name: outcome_of(check, runner) for check in checks}


def _judged(check: InImageCheck, done: Completed) -> tuple[str, str]:
    last = last_line(done.stdout)
    if done.timed_out:
        return FAILED, _hung(check, last, done.waiting)
    if done.returncode == SKIP_STATUS:
        return SKIPPED, last or "the check gives no reason"
    if done.returncode:
        return FAILED, _why(done.returncode, last or last_line(done.stderr))
    if fault := _reported_fault(check, last, done.stdout):
        return FAILED, f"exit status 0, but {fault}"
    return PASSED, last


def _reported_fault(check: InImageCheck, last: str, stdout: str) -> str:
    """What of the output of a check that ended well says that it did not."""
    if not last:
        return "the check printed no finding"
    if is_rubbish(last):
        return f"its last line is no text: {last[:80]}"
    if line := printed_failure(lines_of(stdout)):
        return f"it printed: {readable(line[: LONGEST // 2])}"
    return readable(misreported(check.name, check.asked, all_data_of(stdout)))[: LONGEST // 2]


def _hung(check: InImageCheck, last: str, waiting: tuple[str, ...]) -> str:
    left = f"; it was waiting for: {', '.join(waiting)}" if waiting else ""
    return f"no result after {check.timeout_s} s; {_its_last_line(last)}{left}"


def _why(status: int, said: str) -> str:
    if name := _signal(status):
        return f"ended by {name}; {_its_last_line(said)}"
    return said or f"exit status {status}"


def _its_last_line(last: str) -> str:
    return f"its last line: {last or 'none'}"


def _signal(status: int) -> str:
    """The signal that ended a program, as the kernel or a shell reports it; else nothing."""
    number = -status if status < 0 else status - _SIGNALLED
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


SINGLETONS = "MPI started singletons"
_MPI = "mpi"  # the check whose ranks report library, hosts and transport
_FAILED = re.compile(r"\bFAILED\b")  # no part of CUBLAS_STATUS_EXECUTION_FAILED
_FEWEST = 2  # ranks; one alone has nobody to talk to


def printed_failure(lines: Sequence[str]) -> str:
    """The first line by which a check itself says that it failed; empty if there is none."""
    return next((one for one in lines if one.startswith(SINGLETONS) or _FAILED.search(one)), "")


def misreported(check: str, asked: AskedRanks, groups: Sequence[Mapping[str, object]]) -> str:
    """Why the data of a check, one entry a group of ranks, are not those of the ranks asked for.

    Empty if they are, and for a check whose ranks report nothing; those of `mpi` have to.
    """
    groups = [group for group in groups if check == _MPI or "ranks" in group]
    if len(groups) > 1:
        return f"{len(groups)} groups of ranks reported, expected 1"
    if not groups:
        return "no group of ranks reported" if check == _MPI else ""
    if fault := _wrong_count(asked, groups[0].get("ranks")):
        return fault
    return _wrong_mpi(asked, groups[0]) if check == _MPI else ""


def _wrong_count(asked: AskedRanks, ranks: object) -> str:
    if asked.count and ranks != asked.count:
        return f"{ranks} ranks reported, expected {asked.count}"
    if not isinstance(ranks, int) or ranks < _FEWEST:
        return f"{ranks} ranks reported, expected at least {_FEWEST}"
    return ""


def _wrong_mpi(asked: AskedRanks, data: Mapping[str, object]) -> str:
    if numbers := wrong_numbers(data):
        return f"the ranks are numbered {numbers}, expected each of {data['ranks']} once"
    places = data.get("ranks_by_host")
    if not isinstance(places, dict) or [*places.values()] != [data["ranks"]]:
        return f"the ranks were on {places}, expected all {data['ranks']} on one host"
    library = data.get("library")
    if not isinstance(library, str) or not re.match(rf"{re.escape(asked.library)}(?!\d)", library):
        return f"the library is {library}, expected {asked.library or 'one with a name'}"
    if not isinstance(data.get("transport"), str):
        return "the ranks did not report their transport"
    if data.get("within_host") == "TCP":
        return f"the ranks of one host talk over TCP ({data['transport']}), not over shared memory"
    return ""


ENVIRONMENT_CHECK = "environment"
_TIMEOUT_S = 120
_TITLE = "pwd && exec env -0"
# The working directory as the image's configuration names it, also where a link leads there.
_SCRIPT = (
    'if [ "$(pwd -P)" = "$(cd -- "$1" && pwd -P)" ]; then printf "%s\\n" "$1"; else pwd; fi && '
    "exec env -0"
)
# A script of a SIF could behave as long as `env` is started: so another program looks once more.
_SECOND = ("cat", "/proc/self/environ")
# Shells hand on no other names to what they start: https://pubs.opengroup.org/onlinepubs/9699919799
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Shells set these, and every runner is told HOME, whatever an image says.
_ALWAYS = ("HOME", "PWD", "OLDPWD", "SHLVL", "_")
# The Container Device Interface sets it to `void`, which says that it is not in charge.
_WITH_GPUS = ("NVIDIA_VISIBLE_DEVICES",)
# Apptainer puts a folder of its own after the image's.
_APPENDED = {"LD_LIBRARY_PATH": ":/.singularity.d/libs"}


def environment_outcome(
    runner: Runner,
    wanted: Mapping[str, str],
    *,
    directory: str,
    own: Sequence[str],
    gpu: bool = False,
) -> Outcome:
    """Return whether a container has the image's variables and working directory, and nothing else.

    `own` are patterns of the variables that the runner sets by itself. Since each format is
    compared with the image's configuration, all formats are equal if none fails.
    """
    done = runner.run(["sh", "-c", _SCRIPT, "sh", directory], timeout_s=_TIMEOUT_S)
    found_directory, found = _parsed(done.stdout)
    excused = (*_ALWAYS, *own, *(_WITH_GPUS if gpu else ()))
    wrong = [
        *_differences(wanted, found, (*_ALWAYS, *(_WITH_GPUS if gpu else ()))),
        *(f"{name} is set, and not by the image" for name in _more(wanted, found, excused)),
        *(
            [f"the working directory is {found_directory}, not {directory}"]
            if found_directory != directory
            else []
        ),
    ]
    if not done.returncode and not wrong:
        wrong = _changed(found, _pairs(runner.run(_SECOND, timeout_s=_TIMEOUT_S).stdout))
    if done.returncode or wrong:
        if done.returncode:
            wrong = [last_line(done.stderr) or f"{shlex.quote(_TITLE)} did not run"]
        output = end_of(done.stdout.replace("\0", "\n"), done.stderr)
        reason = one_line("; ".join(wrong))
        return Outcome(check=ENVIRONMENT_CHECK, outcome=FAILED, reason=reason, output=output)
    seen = wanted.keys() & found.keys() - set(_ALWAYS)
    names = ", ".join(sorted(seen)) or "none"
    return Outcome(
        check=ENVIRONMENT_CHECK,
        outcome=PASSED,
        reason=f"in {directory}, with the image's variables and no others: {names}",
        duration_s=round(done.duration_s, 3),
    )


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    directory, _, rest = text.partition("\n")
    return directory, _pairs(rest)


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def _changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """What another program is given, where that is not what `env` was."""
    names = {name for name in {*first, *second} if _SHELL_NAME.fullmatch(name)} - {*_ALWAYS}
    return [
        f"{name} depends on the program that is started: {second.get(name)!r} for {_SECOND[0]}"
        for name in sorted(names)
        if first.get(name) != second.get(name)
    ]


def _differences(
    wanted: Mapping[str, str], found: Mapping[str, str], excused: Sequence[str]
) -> list[str]:
    return [
        f"{key} is {found[key]!r}, not {value!r}" if key in found else f"{key} is not set"
        for key, value in wanted.items()
        if key not in excused
        and (key in found or _SHELL_NAME.fullmatch(key))
        and found.get(key) not in {value, value + _APPENDED.get(key, "")}
    ]


def _more(wanted: Mapping[str, str], found: Mapping[str, str], excused: Sequence[str]) -> list[str]:
    more = [name for name in found if name not in wanted]
    return sorted(
        name for name in more if not any(fnmatch.fnmatch(name, pattern) for pattern in excused)
    )
