"""Ranks under mpirun, of which one does wrong, and sound ones: how many are caught, and accused.

Kind, rank, size and place of a defect are random, from a seed. They are verified as `build-images
verify --launcher mpirun` does it, in Charliecloud. A defect counts as caught only when the
verification fails and names it, with rank, size and place where it has them.

usage: ranks.py [NUMBER [SEED]]       needs an image with Open MPI 4.1 for x86_64 in out/, and that
                                      MPI on this machine
"""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from command import build_images
from planted_ranks import RANKS, RankDefect, plant
from timing import machine

from builder.model.errors import Interrupted
from builder.model.manifest import FILES, MANIFEST
from builder.system.home import Home

PROJECT = Path(__file__).resolve().parents[1]
SECONDS = 30
# Calls by what a rank says of them; those that bring something to one rank alone, and the largest
# numbers of bytes that a rank is brought by those that are tried to 8 MiB.
MOVES = ("allgather", "allgatherv", "alltoall", "alltoallv", "bcast", "message")
TO_ONE = ("gather", "gatherv", "scatter", "scatterv")
REDUCTIONS = ("allreduce", "iallreduce", "reduce", "reduce_scatter", "scan")
ELSEWHERE = {"put": "put", "get": "get", "read": "file", "write": "file", "irecv": "message"}
LEAST = (0, 0, 1000, 65_000, 1_000_001)

Planted = tuple[RankDefect, str]


def moved(rng: random.Random) -> Planted:
    kind, rank = rng.choice(MOVES), rng.randrange(RANKS)
    named = rf"rank {rank}: {kind} of \d+ bytes( from .*: byte \d+ is|: written beyond its end)"
    return _at_random(rng, kind, rank), named


def to_one(rng: random.Random) -> Planted:
    kind = rng.choice(TO_ONE)
    named = rf"rank \d: {kind} of \d+ bytes( from .*: byte \d+ is|: written beyond its end)"
    return _at_random(rng, kind, -1), named


def reduced(rng: random.Random) -> Planted:
    kind = rng.choice(REDUCTIONS)
    named = rf"rank \d: {kind} \w+ \(\w+\) of \d+ values over \d ranks: value \d+ is"
    return _at_random(rng, kind, -1), named


def in_a_group(rng: random.Random) -> Planted:
    """Wrong with one number of ranks alone."""
    kind, ranks = rng.choice([*MOVES[:5], *TO_ONE, *REDUCTIONS]), rng.randint(2, RANKS)
    defect = RankDefect(kind=kind, ranks=ranks, place=rng.randrange(1000))
    return defect, rf"rank \d: {kind} "


def total(rng: random.Random) -> Planted:
    rank, place = rng.randrange(RANKS), rng.randrange(131_000)
    defect = RankDefect(kind="sum", rank=rank, size=1_000_001, place=place)
    return defect, rf"rank {rank}: allreduce SUM \(double\) of \d+ values .*: value {place} is"


def elsewhere(rng: random.Random) -> Planted:
    kind, rank = rng.choice(sorted(ELSEWHERE)), rng.randrange(RANKS)
    defect = RankDefect(kind=kind, rank=rank, place=rng.randrange(100_000))
    return defect, rf"rank \d: {ELSEWHERE[kind]} of \d+ bytes from rank \d"


def split(_rng: random.Random) -> Planted:
    return RankDefect(kind="split"), r"MPI_Comm_split: rank \d of \d in its group, expected"


def barrier(_rng: random.Random) -> Planted:
    return RankDefect(kind="barrier"), r"barrier of \d ranks: rank \d left it"


def beyond(rng: random.Random) -> Planted:
    rank = rng.randrange(RANKS)
    named = rf"rank {rank}: bcast of \d+ bytes: written beyond its end"
    return RankDefect(kind="beyond", rank=rank, place=rng.randrange(48)), named


def _at_random(rng: random.Random, kind: str, rank: int) -> RankDefect:
    return RankDefect(kind=kind, rank=rank, size=rng.choice(LEAST), place=rng.randrange(1_000_000))


def lost(rng: random.Random) -> Planted:
    rank = rng.randrange(RANKS)
    named = rf"process rank {rank} .* exited on signal 9"
    return RankDefect(kind="lose", rank=rank, size=rng.choice([0, 65_000])), named


def hanging(rng: random.Random) -> Planted:
    named = rf"no result after {SECONDS} s: .*MPI_Bcast of \d+ bytes"
    return RankDefect(kind="hang", rank=rng.randrange(RANKS), size=1000), named


def threads(rng: random.Random) -> Planted:
    rank = rng.randrange(RANKS)
    return RankDefect(kind="threads", rank=rank), rf"rank {rank}: MPI grants thread level funneled"


def same_rank(rng: random.Random) -> Planted:
    rank = rng.randrange(2, RANKS)  # rank 0 tells the verdict
    return RankDefect(kind="same-rank", rank=rank), f"rank {rank} says that it is rank {rank - 1}"


def singletons(_rng: random.Random) -> Planted:
    # mpirun ends the others when the first of them has failed.
    named = rf"MPI started singletons: .*\([1-{RANKS}] of {RANKS} ranks report this\)"
    return RankDefect(kind="singletons"), named


def noise(_rng: random.Random) -> Planted:
    return RankDefect(kind="noise"), "standard error is not empty: WARNING: no fabric was found"


PLANTS: tuple[Callable[[random.Random], Planted], ...] = (
    *(moved, moved, to_one, reduced, reduced, in_a_group, in_a_group, total, elsewhere, elsewhere),
    *(split, barrier, beyond),
    *(lost, hanging, threads, same_rank, singletons, noise),
)
# How sound ranks may talk to each other.
TUNINGS: tuple[dict[str, str], ...] = (
    {},
    {"OMPI_MCA_btl": "self,tcp"},
    {"OMPI_MCA_btl": "self,vader"},
    {"OMPI_MCA_btl_vader_eager_limit": "256"},
    {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_bcast_algorithm": "1"},
)


def verified(folder: Path, ranks: int, variables: dict[str, str]) -> tuple[int, str]:
    """The exit code and the output of `build-images verify --launcher`."""
    words = ["verify", "--quiet", folder, "--launcher=mpirun", "--runner=charliecloud"]
    how = [f"--ranks={ranks}", f"--timeout={SECONDS}"]
    status, output = build_images(*words, *how, env=variables)
    if status == Interrupted.exit_code:
        raise KeyboardInterrupt
    return status, output


def with_defect(folder: Path, rng: random.Random, number: int) -> tuple[str, str]:
    """The kind of a planted defect, and what is wrong with the verdict on it."""
    defect, named = PLANTS[number % len(PLANTS)](rng)
    status, said = verified(folder, RANKS, defect.environment)
    if status != 1:
        return defect.kind, f"{defect}: exit code {status}\n{said}"
    found = re.search(named, said)
    return defect.kind, "" if found else f"{defect}: it did not say: {named}\n{said}"


def sound(folder: Path, rng: random.Random) -> str:
    """What is wrong with the verdict on ranks that do nothing wrong."""
    ranks, tuning = rng.randrange(1, 7), rng.choice(TUNINGS)
    status, said = verified(folder, ranks, tuning)
    return f"{ranks} ranks, {tuning}: exit code {status}\n{said}" if status else ""


def main(arguments: Sequence[str]) -> int:
    number = int(arguments[0]) if arguments else 100
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    print(machine())
    work = Home.of_environment().work
    work.mkdir(parents=True, exist_ok=True)
    kinds: collections.Counter[str] = collections.Counter()
    missed: collections.Counter[str] = collections.Counter()
    accused, start = 0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=work, prefix="ranks-") as name:
        folder = plant(image(), Path(name))
        for each in range(number):
            kind, wrong = with_defect(folder, random.Random(f"{seed} {each}"), each)
            kinds[kind] += 1
            missed[kind] += bool(wrong)
            accusation = sound(folder, random.Random(f"{seed} {each} sound"))
            accused += bool(accusation)
            for text in filter(None, (wrong, accusation)):
                print(text, flush=True)
    for kind, count in sorted(kinds.items()):
        print(f"  {kind:12} {count - missed[kind]:3} of {count:3} caught and named")
    print(f"planted defects: {number - missed.total()} of {number} caught and named  (reach: all)")
    print(f"sound ranks: {accused} of {number} accused  (reach: none)")
    took = time.monotonic() - start
    print(f"seed {seed}, {took:.0f} s, {took / number / 2:.1f} s a run")
    return 1 if accused or missed.total() else 0


def image() -> Path:
    """The folder of an image that has what ranks run."""
    for file in sorted((PROJECT / "out").glob(f"**/*-openmpi4.1-x86_64/{MANIFEST}")):
        checks = {one["name"] for one in json.loads(file.read_text())["in_image_checks"]}
        if "mpi" in checks and (file.parent / FILES["charliecloud"]).exists():
            return file.parent
    sys.exit(
        "no image with Open MPI 4.1 for x86_64 in out/: build-images --mpi openmpi4.1 makes one"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
