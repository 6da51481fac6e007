"""What ranks and launchers say: complaints, and what a rank was waiting for."""

from __future__ import annotations

import re
from collections import defaultdict

from builder.verify.wording import lines_of

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
