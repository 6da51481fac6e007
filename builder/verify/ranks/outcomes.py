"""What ranks said, judged: one group of all of them, sound, and none that complains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.system.process import Completed
from builder.verify.checks import SINGLETONS
from builder.verify.container_output import (
    LONGEST,
    all_data_of,
    end_of,
    is_rubbish,
    lines_of,
    readable,
)
from builder.verify.ranks.launchers import Launcher, Start, was_refused
from builder.verify.ranks.library import HostMpi

GRACE_S = 10  # between a rank that ends itself and one that is ended
_TIMED_OUT = 124  # timeout(1)'s exit status


def judged(
    check: str,
    start: Start,
    launcher: Launcher,
    library: HostMpi | None,
    done: Completed,
    *,
    tuning: Mapping[str, str],
) -> Outcome:
    """The outcome of ranks that were started; `library` is the host's, if they had to load that.

    `tuning` are the variables that changed how they talk. Where Slurm gave no nodes, no rank was
    started, and nothing is said of the image: skipped.
    """
    nothing = not lines_of(done.stdout)
    if nothing and (only_queued(done.stderr) or was_refused(done.stderr)):
        return _not_begun(check, launcher, done)
    found = all_data_of(done.stdout)
    data = {**(found[0] if found else {}), "tuning": dict(tuning)}
    if library:
        data["host_library"] = str(library.source)
    fault = (
        _not_ended(start, done)
        or _not_well(start, launcher, done)
        or _not_whole(start, found)
        or _not_the_hosts(library, data)
    )
    said = lines_of(done.stdout)
    reason = fault or f"{said[-1]}; started by {launcher.name} of {launcher.title}"
    if library and not fault:
        reason += f"; the host's {library.source} is loaded"
    return Outcome(
        check=check,
        outcome=FAILED if fault else PASSED,
        reason=readable(reason[:LONGEST]),
        duration_s=round(done.duration_s, 3),
        data=data,
        output=end_of(done.stdout, done.stderr) if fault else "",
    )


def _not_begun(check: str, launcher: Launcher, done: Completed) -> Outcome:
    said = complaint(done.stderr)
    how = f"only queued the job: it was given no nodes in {done.duration_s:.0f} s"
    if was_refused(done.stderr):
        how = "was refused the nodes"
    told = f"; it said: {said}" if said else ""
    reason = f"{launcher.name} of {launcher.title} {how}, and no rank was started{told}"
    return Outcome(
        check=check,
        outcome=SKIPPED,
        reason=readable(reason[:LONGEST]),
        duration_s=round(done.duration_s, 3),
        output=end_of(done.stdout, done.stderr),
    )


def _not_ended(start: Start, done: Completed) -> str:
    waited = hang(done.stderr, start.ranks)
    if waited:
        return f"no result after {start.timeout_s} s: {waited}"
    if done.timed_out or done.returncode == _TIMED_OUT:
        last = complaint(done.stderr) or (lines_of(done.stdout) or ["nothing"])[-1]
        left = f"; it was waiting for: {', '.join(done.waiting)}" if done.waiting else ""
        return (
            f"no result after {done.duration_s:.0f} s, and no rank says what it waits for; "
            f"last was said: {last}{left}"
        )
    return ""


def _not_well(start: Start, launcher: Launcher, done: Completed) -> str:
    said = lines_of(done.stdout)
    if singletons := [line for line in said if line.startswith(SINGLETONS)]:
        return f"{singletons[0]} ({len(singletons)} of {start.ranks} ranks say so)"
    if done.returncode:
        end = f"{launcher.name} of {launcher.title} ended with exit status {done.returncode}"
        why = [line for line in said[-1:] if not re.match(r"\d+ ranks? on ", line)]
        return "; ".join([*why, f"{end}: {complaint(done.stderr) or 'without a complaint'}"])
    if complaints := noise(done.stderr):
        return f"standard error is not empty: {complaints[0]}"
    if not said:
        return "exit status 0, but no rank printed a finding"
    if is_rubbish(readable(said[-1])):
        return f"exit status 0, but the last line is no text: {said[-1][:80]}"
    return ""


def _not_whole(start: Start, found: list[dict[str, object]]) -> str:
    """Return whether it was one run of all ranks, on as many nodes as were asked for."""
    if len(found) != 1:
        return f"{len(found)} groups of ranks reported, expected 1"
    count, nodes = found[0].get("ranks"), found[0].get("hosts")
    if count != start.ranks:
        return f"{count} ranks reported, expected {start.ranks}"
    if start.nodes and nodes != start.nodes:
        return f"the ranks ran on {nodes} nodes, expected {start.nodes}"
    return ""


def _not_the_hosts(library: HostMpi | None, data: Mapping[str, object]) -> str:
    """By /proc/self/maps of rank 0: the file's path and its number on its file system."""
    if library is None:
        return ""
    file, inode = data.get("library_file"), data.get("library_inode")
    if file == library.loaded and inode == library.inode:
        return ""
    return f"the library that was loaded is {file}, not the host's {library.loaded}"


_ENDED = re.compile(
    r"(?:rank (?P<rank>\d+)|a rank)(?: of \d+)? "
    r"(?P<how>waited too long in|was ended during): (?P<step>[^\r\n]+)"
)
# What says most about why ranks were lost, the most telling first: of Open MPI (ORTE and PRRTE),
# Slurm, and Hydra.
_TELLING = (
    re.compile(r"noticed that process rank \d+ .* exited on signal"),
    re.compile(r"srun: error: .*tasks? .*: (?!Exited with exit code (?:1|143)$)"),
    re.compile(r"KILLED BY SIGNAL|EXIT STRING: (?!Terminated)"),
    re.compile(r"error while loading shared libraries|version `\S+' not found"),
)
# What launchers say of themselves, and what is no complaint.
_HARMLESS = re.compile(r"srun: job \d+ (queued and waiting for resources|has been allocated)")
_QUEUED = re.compile(r"^srun: job (\d+) queued and waiting for resources", re.MULTILINE)


def noise(text: str) -> list[str]:
    """The lines of standard error that say something, but for what every launcher says."""
    return [line for line in lines_of(text) if re.search(r"\w", line) and not _HARMLESS.match(line)]


def complaint(text: str) -> str:
    """The line of standard error that tells most; empty if there is none."""
    lines = noise(text)
    for pattern in _TELLING:
        for line in lines:
            if pattern.search(line):
                return line
    return lines[0] if lines else ""


def only_queued(text: str) -> bool:
    """Return whether srun waited for nodes, and says of no job that it got them."""
    return any(
        f"srun: job {found[1]} has been allocated" not in text for found in _QUEUED.finditer(text)
    )


def hang(text: str, ranks: int) -> str:
    """What ranks that took too long say they were waiting for, and who says nothing.

    Empty if none took too long: those that were ended alone, by their launcher, did not hang.
    """
    if "waited too long in" not in {found["how"] for found in _ENDED.finditer(text)}:
        return ""
    steps: dict[str, list[int]] = defaultdict(list)
    unknown: dict[str, int] = defaultdict(int)
    for found in _ENDED.finditer(text):
        if found["rank"] is None:
            unknown[found["step"].strip()] += 1
        else:
            steps[found["step"].strip()].append(int(found["rank"]))
    said = [f"{_ranks(some)} in {step}" for step, some in steps.items()]
    said += [f"{count} more in {step}" for step, count in unknown.items()]
    silent = set(range(ranks)) - {rank for some in steps.values() for rank in some}
    if silent and not unknown:
        said.append(f"nothing from {_ranks(sorted(silent))}")
    return "; ".join(said)


def _ranks(some: list[int]) -> str:
    """`rank 3`; `ranks 0, 1, 2`; of many only the first."""
    shown = sorted(set(some))
    text = ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")  # noqa: PLR2004
    return f"rank{'s' if len(shown) > 1 else ''} {text}"
