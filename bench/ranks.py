"""Ranks under mpirun, of which one does wrong, and sound ones: how many are caught, and accused.

Kind, rank, size and place of a defect are random, from a seed. They are verified as `build-images
verify --launcher mpirun` does it, in Charliecloud. A defect counts as caught only when the
verification fails and names it, with rank, size and place where it has them.

usage: ranks.py [NUMBER [SEED]]       needs an image with Open MPI 4.1 for x86_64 in out/, and that
                                      MPI on this machine
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from planted_ranks import RANKS, RankDefect, plant
from timing import machine

from builder.cli import main as build_images
from builder.cli.manifests import MANIFEST
from builder.cli.workspace import FILES
from builder.errors import Interrupted
from builder.home import Home

PROJECT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
MESSAGES = (1, 7, 64, 1000, 4096, 65536, 65537, MIB, 16 * MIB)
BLOCKS = (1, 1000, 65537, 16 * MIB)
SHARES = (1, 1000, 65537, 16 * MIB // RANKS)  # what each rank gives where all give
COUNTS = (1, 7, 1000, 65536)
SECONDS = 20

Planted = tuple[RankDefect, str]


def message(rng: random.Random) -> Planted:
    rank, size = rng.randrange(RANKS), rng.choice(MESSAGES)
    place = rng.randrange(size)
    named = rf"rank {rank}: message of {size} bytes from rank \d to rank {rank}: byte {place} is"
    return RankDefect(kind="message", rank=rank, size=size, place=place), named


def bcast(rng: random.Random) -> Planted:
    rank, size = rng.randrange(RANKS), rng.choice(BLOCKS)
    place = rng.randrange(size)
    named = rf"rank {rank}: bcast of {size} bytes from rank \d to all ranks: byte {place} is"
    return RankDefect(kind="bcast", rank=rank, size=size, place=place), named


def reduce(rng: random.Random) -> Planted:
    rank, size = RANKS - 1, rng.choice(BLOCKS)
    place = rng.randrange(size)
    named = rf"rank {rank}: reduce BXOR of {size} bytes from all ranks to rank \d: byte {place} is"
    return RankDefect(kind="reduce", rank=rank, size=size, place=place), named


def allreduce(rng: random.Random) -> Planted:
    rank, size = rng.randrange(RANKS), rng.choice(BLOCKS)
    place = rng.randrange(size)
    named = rf"rank {rank}: allreduce BXOR of {size} bytes .* to all ranks: byte {place} is"
    return RankDefect(kind="allreduce", rank=rank, size=size, place=place), named


def total(rng: random.Random) -> Planted:
    rank, size = rng.randrange(RANKS), rng.choice(COUNTS)
    place = rng.randrange(size)
    named = rf"rank {rank}: allreduce SUM \(double\) of {size} values: value {place} is"
    return RankDefect(kind="sum", rank=rank, size=size, place=place), named


def gathered(rng: random.Random) -> Planted:
    kind = rng.choice(["allgather", "alltoall"])
    rank, size, source = rng.randrange(RANKS), rng.choice(SHARES), rng.randrange(RANKS)
    place = rng.randrange(size)
    named = (
        f"rank {rank}: {kind} of {size} bytes from rank {source} to rank {rank}: byte {place} is"
    )
    return RankDefect(kind=kind, rank=rank, size=size, place=source * size + place), named


def beyond(rng: random.Random) -> Planted:
    rank, size = rng.randrange(RANKS), rng.choice(BLOCKS)
    named = rf"rank {rank}: bcast of {size} bytes: written beyond its end"
    return RankDefect(kind="beyond", rank=rank, size=size, place=rng.randrange(16)), named


def lost(rng: random.Random) -> Planted:
    rank = rng.randrange(RANKS)
    named = rf"process rank {rank} .* exited on signal 9"
    return RankDefect(kind="lose", rank=rank, size=rng.choice(BLOCKS)), named


def hanging(rng: random.Random) -> Planted:
    size = rng.choice(BLOCKS)
    named = rf"no result after {SECONDS} s: .*MPI_Bcast of {size} bytes"
    return RankDefect(kind="hang", rank=rng.randrange(RANKS), size=size), named


def threads(rng: random.Random) -> Planted:
    rank = rng.randrange(RANKS)
    return RankDefect(kind="threads", rank=rank), rf"rank {rank}: MPI grants thread level funneled"


def same_rank(rng: random.Random) -> Planted:
    rank = rng.randrange(2, RANKS)  # rank 0 tells the verdict
    return RankDefect(kind="same-rank", rank=rank), f"rank {rank} says that it is rank {rank - 1}"


def singletons(_rng: random.Random) -> Planted:
    # mpirun ends the others when the first of them has failed.
    named = rf"MPI started singletons: .*\([1-{RANKS}] of {RANKS} ranks say so\)"
    return RankDefect(kind="singletons"), named


def noise(_rng: random.Random) -> Planted:
    return RankDefect(kind="noise"), "standard error is not empty: WARNING: no fabric was found"


PLANTS: tuple[Callable[[random.Random], Planted], ...] = (
    *(message, bcast, reduce, allreduce, total, gathered, gathered, beyond),
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
    said = io.StringIO()
    words = ["verify", "--quiet", str(folder), "--launcher=mpirun", "--runner=charliecloud"]
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        mock.patch.dict(os.environ, variables),
    ):
        status = build_images([*words, f"--ranks={ranks}", f"--timeout={SECONDS}"])
    if status == Interrupted.exit_code:
        raise KeyboardInterrupt
    return status, said.getvalue()


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
