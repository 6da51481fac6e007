"""Ranks of which one does wrong, in each call of MPI that the check `mpi` tries, and sound ones.

The check's program is compiled here, and started by this machine's Open MPI.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from campaign import Case
from planted_ranks import RankDefect, compiled

from builder.facts.mpi import MPI_FAMILIES

_SOURCES = Path(__file__).resolve().parents[1] / "tests/images"
_RANKS = 5
_MOVED = (
    *("message", "bcast", "gather", "gatherv", "scatter", "scatterv"),
    *("allgather", "allgatherv", "alltoall", "alltoallv"),
)
_REDUCED = ("reduce", "allreduce", "iallreduce", "scan", "reduce_scatter")
_GROUPS = (0, 2, 3, 4)  # 0: of any number of ranks
_LEAST = (65_000, 1_000_001)
_TUNINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"OMPI_MCA_btl_vader_eager_limit": "256"},
    {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_bcast_algorithm": "1"},
    {"OMPI_MCA_pml": "ob1"},
)


@functools.cache
def _programs() -> tuple[tempfile.TemporaryDirectory[str], Path, Path]:
    """The check's program, and the library that does wrong; they live as long as the folder."""
    folder = tempfile.TemporaryDirectory(prefix="ranks-")
    program = Path(folder.name) / "mpi"
    options = ("-std=c99", "-O2")
    subprocess.run(["mpicc.openmpi", *options, "-o", program, _SOURCES / "mpi.c"], check=True)
    return folder, program, compiled(Path(folder.name))


def judge(_folder: Path, *, variables: Mapping[str, str], ranks: int = _RANKS) -> list[str]:
    _, program, library = _programs()
    launcher, *options = MPI_FAMILIES["openmpi"].launch.format(ranks=ranks).split()
    preload = {"LD_PRELOAD": str(library)} if "OMPI_MCA_planted" in variables else {}
    settings = [f"{name}={text}" for name, text in {**variables, **preload}.items()]
    argv = [f"{launcher}.openmpi", *options, "env", *settings, str(program)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*argv, str(ranks), "multiple"],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        timeout=120,
        check=False,
    )
    return [done.stdout + done.stderr] if done.returncode or done.stderr else []


def _defects() -> Iterator[tuple[RankDefect, str]]:
    for kind in _MOVED:
        named = rf"{kind} of \d+ bytes"
        groups = (0, 5) if kind == "message" else _GROUPS[::2]  # those are sent among all ranks
        yield from ((RankDefect(kind=kind, ranks=ranks, place=1), named) for ranks in groups)
        yield from ((RankDefect(kind=kind, size=size, place=5000), named) for size in _LEAST)
    for kind in _REDUCED:
        named = rf"{kind} \S+ \(\w+\) of \d+ values over"
        yield from ((RankDefect(kind=kind, ranks=ranks), named) for ranks in _GROUPS)
        yield RankDefect(kind=kind, size=_LEAST[0]), named
    yield (
        RankDefect(kind="sum", rank=2, size=1_000_001, place=77777),
        r"rank 2: allreduce SUM \(double\) of \d+ values over \d ranks: value 77777 is",
    )
    for kind, named in {"irecv": "message", "put": "put", "get": "get"}.items():
        yield RankDefect(kind=kind, rank=1), rf"{named} of \d+ bytes from rank \d to rank \d"
    for kind in ("write", "read"):
        yield RankDefect(kind=kind, rank=1), r"file of \d+ bytes from rank \d to rank \d"
    yield RankDefect(kind="split"), "MPI_Comm_split: rank 4 of 5 in its group, expected rank 0"
    yield RankDefect(kind="barrier"), r"barrier of 5 ranks: rank \d left it"
    yield RankDefect(kind="beyond", rank=2), r"bcast of \d+ bytes: written beyond its end"
    yield RankDefect(kind="same-rank", rank=2), "rank 0: rank 2 says that it is rank 1"
    yield RankDefect(kind="threads", rank=1), "rank 1: MPI grants thread level funneled"
    yield RankDefect(kind="lose", rank=3), "rank 3.* exited on signal 9"


def cases() -> list[Case]:
    """All defects of this kind."""
    return [
        Case(
            family="ranks",
            name=f"{one.kind}, rank {one.rank}, of {one.ranks}, from {one.size} bytes on",
            faults=functools.partial(judge, variables=one.environment),
            named=named,
        )
        for one, named in _defects()
    ]


def sound_cases() -> list[Case]:
    """Ranks that do as they should, in other numbers and over other ways."""
    numbers: list[tuple[Mapping[str, str], int]] = [({}, ranks) for ranks in (1, 2, 3, 4, 6, 8)]
    return [
        Case(
            family="ranks",
            name=f"{ranks} ranks, {' '.join(tuning) or 'as they are'}",
            faults=functools.partial(judge, ranks=ranks, variables=tuning),
        )
        for tuning, ranks in [*numbers, *((tuning, _RANKS) for tuning in _TUNINGS)]
    ]
