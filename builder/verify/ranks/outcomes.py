"""Judge the output of ranks: all requested ranks in one group, and no error messages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.system.process import Completed
from builder.verify.checks import SINGLETONS
from builder.verify.container_output import (
    LONGEST,
    NOT_ARRIVED,
    all_arrived,
    all_data_of,
    end_of,
    is_unreadable,
    lines_of,
    readable,
)
from builder.verify.ranks.launchers import Launcher, Start
from builder.verify.ranks.library import BoundLibrary

GRACE_S = 10  # from the limit at which a rank ends itself to the one at which it is ended
_TIMED_OUT = 124  # timeout(1)'s exit status
_SHOWN = 8  # rank numbers in a message
_ENDED = re.compile(
    r"(?:rank (?P<rank>\d+)|a rank)(?: of \d+)? "
    r"(?P<how>waited too long in|was ended during): (?P<step>[^\r\n]+)"
)
# Lines that explain why ranks were lost, the most informative first: of Open MPI (ORTE and
# PRRTE), Slurm, and Hydra.
_INFORMATIVE = (
    re.compile(r"noticed that process rank \d+ .* exited on signal"),
    re.compile(r"srun: error: .*tasks? .*: (?!Exited with exit code (?:1|143)$)"),
    re.compile(r"KILLED BY SIGNAL|EXIT STRING: (?!Terminated)"),
    re.compile(r"error while loading shared libraries|version `\S+' not found"),
)
# Normal messages of launchers, which are not errors.
_HARMLESS = re.compile(r"srun: job \d+ (queued and waiting for resources|has been allocated)")
_QUEUED = re.compile(r"^srun: job (\d+) queued and waiting for resources", re.MULTILINE)
# srun prints this if it gets no nodes: https://slurm.schedmd.com/srun.html
_REFUSED = re.compile(
    r"srun: error: (?:Unable to (?:allocate resources|create step)|[^:]*: Requested)"
)


def rank_outcome(
    start: Start,
    launcher: Launcher,
    library: BoundLibrary | None,
    done: Completed,
    *,
    tuning: Mapping[str, str],
) -> Outcome:
    """Judge ranks that were started; `library` is the host's, if they had to load that.

    `tuning` are the variables that changed how they communicate. If Slurm provided no nodes, no
    rank was started, which proves nothing about the image: skipped.
    """
    lines, title = lines_of(done.stdout), str(launcher)
    outcome, data = FAILED, dict[str, object]()
    if not lines and (refusal := _refusal(done)):
        outcome = SKIPPED
        reason = f"{title} {refusal}, and no rank was started"
        if text := complaint(done.stderr):
            reason += f"; its message: {text}"
    else:
        groups = all_data_of(done.stdout)
        data = {**(groups[0] if groups else {}), "tuning": dict(tuning)}
        if library:
            data["host_library"] = str(library.source)
        reason = (
            _timeout(start, done, lines)
            or _failure(start, title, done, lines)
            or _wrong_groups(start, groups)
            or ("" if (finding := all_arrived(lines)) else f"{NOT_ARRIVED}: {lines[-1]}")
            or _other_library(library, data)
        )
    if not reason:
        outcome = PASSED
        reason = f"{finding}; started by {title}"
        if library:
            reason += f"; the host's {library.source} is loaded"
    return Outcome(
        check=start.check,
        outcome=outcome,
        reason=readable(reason[:LONGEST]),
        duration_s=round(done.duration_s, 3),
        data=data,
        output="" if outcome == PASSED else end_of(done.stdout, done.stderr),
    )


def _refusal(done: Completed) -> str:
    """Return how srun failed to get nodes; empty if it got some, or is not the launcher."""
    if _REFUSED.search(done.stderr):
        return "did not get the nodes"
    jobs = _QUEUED.findall(done.stderr)
    if any(f"srun: job {job} has been allocated" not in done.stderr for job in jobs):
        return f"only queued the job: no nodes in {done.duration_s:.0f} s"
    return ""


def _timeout(start: Start, done: Completed, lines: list[str]) -> str:
    if waited := hang(done.stderr, start.ranks):
        return f"no result after {start.timeout_s} s: {waited}"
    if not done.timed_out and done.returncode != _TIMED_OUT:
        return ""
    last = complaint(done.stderr) or (lines or ["nothing"])[-1]
    return (
        f"no result after {done.duration_s:.0f} s, and no rank reported its step; "
        f"last output: {last}{done.waited_for}"
    )


def _failure(start: Start, title: str, done: Completed, lines: list[str]) -> str:
    if singletons := [line for line in lines if line.startswith(SINGLETONS)]:
        return f"{singletons[0]} ({len(singletons)} of {start.ranks} ranks report this)"
    if done.returncode:
        text = complaint(done.stderr) or "no error message"
        end = f"{title} ended with exit status {done.returncode}: {text}"
        is_finding = not lines or re.match(r"\d+ ranks? on ", lines[-1])
        return end if is_finding else f"{lines[-1]}; {end}"
    if complaints := noise(done.stderr):
        return f"standard error is not empty: {complaints[0]}"
    if not lines:
        return "exit status 0, but no rank printed a finding"
    if is_unreadable(readable(lines[-1])):
        return f"exit status 0, but the last line is not text: {lines[-1][:80]}"
    return ""


def _wrong_groups(start: Start, groups: list[dict[str, object]]) -> str:
    if len(groups) != 1:
        return f"{len(groups)} groups of ranks reported, expected 1"
    count, nodes = groups[0].get("ranks"), groups[0].get("hosts")
    if count != start.ranks:
        return f"{count} ranks reported, expected {start.ranks}"
    if start.nodes and nodes != start.nodes:
        return f"the ranks ran on {nodes} nodes, expected {start.nodes}"
    return ""


def _other_library(library: BoundLibrary | None, data: Mapping[str, object]) -> str:
    """Compare path and inode number of the library with rank 0's /proc/self/maps."""
    file, inode = data.get("library_file"), data.get("library_inode")
    if library is None or (file, inode) == (library.loaded, library.inode):
        return ""
    return f"the library that was loaded is {file}, not the host's {library.loaded}"


# ---- Standard error of ranks and launchers ----


def noise(text: str) -> list[str]:
    """Return the non-empty lines, except launchers' normal messages."""
    return [line for line in lines_of(text) if re.search(r"\w", line) and not _HARMLESS.match(line)]


def complaint(text: str) -> str:
    """Return the most informative line; empty if there is none."""
    lines = noise(text)
    informative = (line for pattern in _INFORMATIVE for line in lines if pattern.search(line))
    return next(informative, lines[0] if lines else "")


def hang(text: str, ranks: int) -> str:
    """Return what hanging ranks were waiting for, and which ranks reported nothing.

    Empty if no rank exceeded its limit: ranks that only their launcher ended did not hang.
    """
    ends = [*_ENDED.finditer(text)]
    if "waited too long in" not in {end["how"] for end in ends}:
        return ""
    numbers: dict[str, set[int]] = defaultdict(set)
    unknown: dict[str, int] = defaultdict(int)
    for end in ends:
        if end["rank"] is None:
            unknown[end["step"].strip()] += 1
        else:
            numbers[end["step"].strip()].add(int(end["rank"]))
    texts = [f"{_ranks(group)} in {step}" for step, group in numbers.items()]
    texts += [f"{count} more in {step}" for step, count in unknown.items()]
    silent = {*range(ranks)}.difference(*numbers.values())
    if silent and not unknown:
        texts.append(f"nothing from {_ranks(silent)}")
    return "; ".join(texts)


def _ranks(numbers: Collection[int]) -> str:
    """Name ranks: `rank 3`; `ranks 0, 1, 2`; of many only the first."""
    text = ", ".join(map(str, sorted(numbers)[:_SHOWN]))
    return f"rank{'s' if len(numbers) > 1 else ''} {text}{', ...' if len(numbers) > _SHOWN else ''}"
