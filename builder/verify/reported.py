"""What the ranks of a check in one container reported, judged apart from its exit status.

A launcher may lose the status of its ranks: a wrapper that pipes `mpirun` into `tee` ends well
whatever they did. What rank 0 printed cannot be lost so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from builder.artifacts.agreement import wrong_numbers
from builder.model.manifest import AskedRanks

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
