"""The checks of an image, run in one of its formats."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED, Outcome, agreement
from builder.model.errors import BadInput, StepFailed, counted, suggestion
from builder.model.manifest import AskedRanks, InImageCheck, Manifest, ProvenImage
from builder.model.measurement import HostFacts
from builder.model.package_indices import days_behind
from builder.system.process import Completed
from builder.system.terminal import printable
from builder.verify.container_output import (
    LONGEST,
    NOT_ARRIVED,
    all_arrived,
    all_data_of,
    data_of,
    end_of,
    is_unreadable,
    last_line,
    last_message,
    lines_of,
    readable,
)
from builder.verify.runners.protocol import CopiesDriver, Kind, Runner
from builder.verify.targets import ProofTarget

SKIP_STATUS = 77  # Automake's convention
SINGLETONS = "MPI started singletons"
_FAILED = re.compile(r"\bFAILED\b")  # a whole word: not in CUBLAS_STATUS_EXECUTION_FAILED
# A shell, or the loader, about a program that did not run: a pipe hides its exit status.
_NOT_RUN = re.compile(
    r"^\S+: (?:error while loading shared libraries: "
    r"|(?:(?:line )?\d+: )?(?:failed to run command |cannot open )?\S+: "
    r"(?:(?:command )?not found|No such file or directory)$)"
)
_FEWEST = 2  # ranks; a single rank sends no messages
_SHOWN_LINES = 12  # of the output of a check that failed
_NUMBERS = {2: "two", 3: "three"}
_SIGNALLED = 128  # a shell adds the number of the signal that ended a program


def outcomes_in(
    target: ProofTarget, kind: Kind, runner: Runner, *, gpu: bool
) -> tuple[Outcome, ...]:
    """Run every check in a running container.

    The checks that need a GPU run last. If the driver is copied into the image, the others, above
    all `cuda-clean`, must see the image as it was built.
    """
    outcomes = [environment_of(target, kind, runner, gpu=gpu)]
    gpu_checks = [check for check in target.checks if check.needs_gpu]
    outcomes += [outcome_of(check, runner) for check in target.checks if not check.needs_gpu]
    try:
        if isinstance(runner, CopiesDriver):
            runner.copy_driver()
    except StepFailed as error:
        reason = "the driver could not be copied into the image"
        outcomes += all_failed([check.name for check in gpu_checks], reason, error)
    else:
        outcomes += [outcome_of(check, runner) for check in gpu_checks]
    return tuple(sorted(outcomes, key=lambda outcome: _names(target).index(outcome.check)))


def not_started(target: ProofTarget, error: StepFailed) -> tuple[Outcome, ...]:
    """Return the outcomes for a container that did not start: all checks failed."""
    return all_failed(_names(target), "the container could not be started", error)


def _names(target: ProofTarget) -> list[str]:
    return [ENVIRONMENT_CHECK, *(check.name for check in target.checks)]


def why_no_gpu(target: ProofTarget, kind: Kind, *, host: HostFacts, tools: Tools) -> str:
    """Return why this machine's GPUs are not passed to the image; empty if they are."""
    if not target.needs_gpu:
        return "no check of the image needs one"
    return kind.no_gpu(tools) if host.driver else "no NVIDIA driver is loaded on this host"


def outcome_of(check: InImageCheck, runner: Runner, command: Sequence[str] = ()) -> Outcome:
    """Run one check: its script, or the `command` that starts it."""
    done = runner.run(command or [check.script], timeout_s=check.timeout_s)
    outcome, reason = _result(check, done)
    return Outcome(
        check=check.name,
        outcome=outcome,
        reason=reason,
        duration_s=round(done.duration_s, 3),
        data=data_of(done.stdout),
        output="" if outcome == PASSED else end_of(done.stdout, done.stderr),
    )


def failures_of(record: ProvenImage, folder: Path, *, silent: bool = True) -> list[str]:
    """Return lines about the checks of an image that failed; runs that failed alike are joined.

    Each names its runs and the reason. Below it are the last lines that the check printed, and the
    file of its evidence in `folder` if that has more of them. Those that printed nothing are left
    out unless `silent`.
    """
    runs: dict[tuple[str, str, str], list[str]] = {}
    for run, outcomes in record.checks.items():
        for each in outcomes:
            if each.outcome == FAILED and (silent or each.output):
                runs.setdefault((each.check, each.reason, each.output), []).append(run)
    lines = list[str]()
    for (check, reason, output), names in runs.items():
        printed = output.splitlines()
        lines.append(f"{', '.join(names)}/{check}: {printable(reason)}")
        lines += [f"  | {line}" for line in printed[-_SHOWN_LINES:]]
        file = f"evidence/{names[0]}.xml"
        if len(printed) > _SHOWN_LINES and file in record.evidence:
            more = counted(len(printed) - _SHOWN_LINES, "more line")
            lines.append(f"  {more} in {folder / file}")
    return lines


def output_in(folder: Path, check: str) -> str:
    """Return the outcome of a check in each run of the image in a folder, and what it printed."""
    record = read_manifest(folder)
    if record is None:
        raise BadInput(f"{folder.name} was not verified yet: no check has run")
    lines = list[str]()
    for run, outcomes in record.checks.items():
        for each in outcomes:
            if each.check == check:
                lines.append(f"{run}: {each.outcome}: {printable(each.reason)}")
                lines += each.output.splitlines()
    if not lines:
        known = sorted({each.check for outcomes in record.checks.values() for each in outcomes})
        guess = suggestion(check, known)
        raise BadInput(f"unknown check: {check}", hint=f"{guess}checks: {', '.join(known)}")
    return "\n".join(lines)


def passed(outcomes: Iterable[Outcome]) -> bool:
    """Return whether nothing failed; a check that was skipped does not count as failed."""
    return all(outcome.outcome != FAILED for outcome in outcomes)


def after_a_loss(
    outcomes: Iterable[Outcome], target: ProofTarget, lost: str
) -> tuple[Outcome, ...]:
    """Mark GPU checks that were skipped as failed, since GPUs disappeared during the run.

    `lost` names the GPUs before and after the run.
    """
    of_gpus = {check.name for check in target.checks if check.needs_gpu}
    return tuple(
        dataclasses.replace(each, outcome=FAILED, reason=f"{lost}; check output: {each.reason}")
        if each.outcome == SKIPPED and each.applies and each.check in of_gpus
        else each
        for each in outcomes
    )


def noting_no_gpu(outcomes: Iterable[Outcome], target: ProofTarget) -> tuple[Outcome, ...]:
    """Note with GPU checks that passed that no GPU was handed over: they may use the processor."""
    of_gpus = {check.name for check in target.checks if check.needs_gpu}
    return tuple(
        dataclasses.replace(each, data={**each.data, "gpu_here": False})
        if each.outcome == PASSED and each.check in of_gpus
        else each
        for each in outcomes
    )


def all_failed(names: Iterable[str], reason: str, error: StepFailed) -> tuple[Outcome, ...]:
    """Return failed outcomes for checks that could not run, all with the same reason."""
    reason = readable(f"{reason}: {error.tail[-1] if error.tail else error.message}"[:LONGEST])
    output = end_of(*error.tail)
    return tuple(
        Outcome(check=name, outcome=FAILED, reason=reason, output=output) for name in names
    )


def _result(check: InImageCheck, done: Completed) -> tuple[str, str]:
    last = last_line(done.stdout)
    shown = f"its last line: {last or 'none'}"
    if done.timed_out:
        return FAILED, f"no result after {check.timeout_s} s; {shown}{done.waited_for}"
    if done.returncode not in {0, SKIP_STATUS}:
        message = last_message(done.stdout) or last_message(done.stderr) or last
        if name := _signal(done.returncode):
            return FAILED, f"ended by {name}; its last line: {message or 'none'}"
        return FAILED, message or f"exit status {done.returncode}"
    # Other programs end with 77, too: curl without certificates, and sysexits.h's EX_NOPERM.
    fault = _no_finding(last, done.stdout)
    if not (fault or done.returncode):
        fault = f"a program did not run: {last}" if _NOT_RUN.search(last) else ""
        fault = fault or _misreported(check, all_data_of(done.stdout))
        if check.name == agreement.MPI and not fault:  # a launcher may lose the ranks' status
            finding = all_arrived(lines_of(done.stdout))
            fault, last = ("", finding) if finding else (f"{NOT_ARRIVED}: {last}", last)
        fault = readable(fault)[: LONGEST // 2]
    if fault:
        return FAILED, f"exit status {done.returncode}, but {fault}"
    return (SKIPPED if done.returncode else PASSED), last


def _no_finding(last: str, stdout: str) -> str:
    """Return why a check's output is no finding, and no reason to skip it; empty if it is."""
    if not last:
        return "the check printed no finding"
    if is_unreadable(last):
        return f"its last line is not text: {last[:80]}"
    failures = (
        line for line in lines_of(stdout) if line.startswith(SINGLETONS) or _FAILED.search(line)
    )
    line = next(failures, "")
    return f"it printed: {readable(line[: LONGEST // 2])}" if line else ""


def _signal(status: int) -> str:
    """Return the signal that ended a program (status -N or 128 + N); empty if none did."""
    try:
        return signal.Signals(max(-status, status - _SIGNALLED)).name
    except ValueError:
        return ""


def _misreported(check: InImageCheck, groups: Sequence[Mapping[str, object]]) -> str:
    """Return why a check's data do not match the requested ranks; empty if they do.

    `groups` has one entry per group of ranks. A check whose ranks report nothing passes, except
    `mpi`: its ranks have to report library, hosts and transport.
    """
    is_mpi, asked = check.name == agreement.MPI, check.asked
    groups = [group for group in groups if is_mpi or "ranks" in group]
    if len(groups) > 1:
        return f"{len(groups)} groups of ranks reported, expected 1"
    if not groups:
        return "no group of ranks reported" if is_mpi else ""
    ranks = groups[0].get("ranks")
    if asked.count and ranks != asked.count:
        return f"{ranks} ranks reported, expected {asked.count}"
    if not isinstance(ranks, int) or ranks < _FEWEST:
        return f"{ranks} ranks reported, expected at least {_FEWEST}"
    return _wrong_mpi(asked, ranks, groups[0]) if is_mpi else ""


def _wrong_mpi(asked: AskedRanks, ranks: int, data: Mapping[str, object]) -> str:
    if numbers := agreement.wrong_numbers(data):
        return f"the ranks are numbered {numbers}, expected each of {ranks} once"
    ranks_by_host = data.get("ranks_by_host")
    if not isinstance(ranks_by_host, dict) or [*ranks_by_host.values()] != [ranks]:
        return f"the ranks were on {ranks_by_host}, expected all {ranks} on one host"
    library = data.get("library")
    if not isinstance(library, str) or not re.match(rf"{re.escape(asked.library)}(?!\d)", library):
        return f"the library is {library}, expected {asked.library or 'a name'}"
    if not isinstance(data.get("transport"), str):
        return "the ranks did not report their transport"
    if data.get("within_host") == "TCP":
        return f"messages on one host go over TCP ({data['transport']}), not over shared memory"
    return ""


# ---- Variables and working directory ----

ENVIRONMENT_CHECK = "environment"
_TIMEOUT_S = 120
# Prints the working directory as the image's configuration has it, even if that is a link.
_SCRIPT = (
    'if [ "$(pwd -P)" = "$(cd -- "$1" && pwd -P)" ]; then printf "%s\\n" "$1"; else pwd; fi && '
    "exec env -0"
)
# A script in a SIF could behave differently for `env`, so a second program is run, too.
_SECOND = ("cat", "/proc/self/environ")
# Shells may drop variables with other names: https://pubs.opengroup.org/onlinepubs/9699919799
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Shells set these, and every runner sets HOME, regardless of the image.
_ALWAYS = ("HOME", "PWD", "OLDPWD", "SHLVL", "_")
# The Container Device Interface sets it to `void`, so that NVIDIA's runtime does nothing.
_WITH_GPUS = ("NVIDIA_VISIBLE_DEVICES",)
# Apptainer appends a folder of its own to the image's value; kits have it in user namespaces, too.
DRIVER_LIBRARIES = "/.singularity.d/libs"
_APPENDED = {"LD_LIBRARY_PATH": DRIVER_LIBRARIES}


def environment_of(target: ProofTarget, kind: Kind, runner: Runner, *, gpu: bool) -> Outcome:
    """Compare a container's variables and working directory with the image's configuration.

    All formats are compared with it, so they are equal if none fails. Other variables are faults.
    """
    expected, directory = target.environment, target.directory
    done = runner.run(["sh", "-c", _SCRIPT, "sh", directory], timeout_s=_TIMEOUT_S)
    second = runner.run(_SECOND, timeout_s=_TIMEOUT_S)
    actual_directory, _, variables = done.stdout.partition("\n")
    actual, ignored = _pairs(variables), (*_ALWAYS, *(_WITH_GPUS if gpu else ()))
    faults = _wrong_variables(expected, actual, ignored, kind.own)
    if actual_directory != directory:
        faults.append(f"the working directory is {actual_directory}, not {directory}")
    if done.returncode:
        faults = [last_line(done.stderr) or "'pwd && exec env -0' did not run"]
    faults = faults or _unlike(actual, _pairs(second.stdout))
    if faults:
        output = end_of(done.stdout.replace("\0", "\n"), done.stderr)
        reason = printable("; ".join(faults))
        return Outcome(check=ENVIRONMENT_CHECK, outcome=FAILED, reason=reason, output=output)
    names = ", ".join(sorted(expected.keys() & actual.keys() - {*_ALWAYS})) or "none"
    return Outcome(
        check=ENVIRONMENT_CHECK,
        outcome=PASSED,
        reason=f"in {directory}, with the image's variables and no others: {names}",
        duration_s=round(done.duration_s, 3),
    )


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def _wrong_variables(
    expected: Mapping[str, str],
    actual: Mapping[str, str],
    ignored: Sequence[str],
    own: Sequence[str],
) -> list[str]:
    """Return how variables differ from the image's; `own` are patterns of a runner's variables."""
    faults = []
    for name, value in expected.items():
        if name in ignored or (name not in actual and not _SHELL_NAME.fullmatch(name)):
            continue
        if name not in actual:
            faults.append(f"{name} is not set")
        elif actual[name] not in {value, ":".join(filter(None, [value, _APPENDED.get(name)]))}:
            faults.append(f"{name} is {actual[name]!r}, not {value!r}")
    for name, folder in _APPENDED.items():
        if name not in expected and {*(actual.get(name) or folder).split(":")} != {folder}:
            faults.append(f"{name} is {actual[name]!r}, but the image does not set it")
    more = sorted(actual.keys() - expected.keys())
    for pattern in (*ignored, *own):
        more = [name for name in more if not fnmatch.fnmatch(name, pattern)]
    return faults + [f"{name} is set, but not by the image" for name in more]


def _unlike(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the variables that differ between `env` (`first`) and a second program."""
    return [
        f"{name} depends on the program that is started: {second.get(name)!r} for {_SECOND[0]}"
        for name in sorted({*first, *second} - {*_ALWAYS})
        if _SHELL_NAME.fullmatch(name) and first.get(name) != second.get(name)
    ]


# ---- Outcomes as text ----


def text_of_checks(record: ProvenImage, folder: Path, untried: Mapping[str, str]) -> str:
    """Return a line for each check, also of further runs; the output of failed ones follows."""
    return "\n".join(
        [
            f"{record.image}: {record.outcome}{notes_on(record)}",
            *lines_of_checks(record.checks),
            *(f"  {name:12} not tried: {printable(reason)}" for name, reason in untried.items()),
            *failures_of(record, folder, silent=False),
        ]
    )


def lines_of_checks(outcomes_by_run: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return a line for each check of each run."""
    return [
        f"  {name:12} {check.check:16} {check.outcome:8} {printable(check.reason)}"
        for name, outcomes in outcomes_by_run.items()
        for check in outcomes
    ]


def notes_on(manifest: ProvenImage) -> str:
    """Return the notes that follow an image's outcome on its line."""
    notes = []
    if manifest.formats_equal:
        number = len(manifest.artifacts)
        count = _NUMBERS.get(number, str(number))
        notes.append(f"{count} formats equal ({manifest.tree_digest[:19]})")
    if manifest.emulated:
        notes.append("emulated")
    if manifest.proven_on_gpu is False:
        notes.append("not proven on a GPU")
    behind = days_behind(manifest.inputs) if isinstance(manifest, Manifest) else 0
    if behind:
        notes.append(f"packages {counted(behind, 'day')} behind")
    return f"  {', '.join(notes)}" if notes else ""
