"""Reasons for a cell's base, packages and flags, in the words that `explain` prints."""

from __future__ import annotations

from collections.abc import Iterator

from builder.model import GENERIC, RUNTIME, BaseImage, Cell, PlannedCuda, PlannedMpi
from builder.plan.constraints import Verdict

_CUDA_ROUTES = {
    "image": "NVIDIA's image",
    "repository": "NVIDIA's package repository",
    "distribution": "the distribution's packages",
    "sdk": "NVIDIA's HPC SDK",
}


def decided(base: BaseImage, cell: Cell, verdict: Verdict) -> tuple[str, ...]:
    """One line for each decision, with the file or the fact that made it."""
    return tuple(_lines(base, cell, verdict))


def _lines(base: BaseImage, cell: Cell, verdict: Verdict) -> Iterator[str]:
    bootstrap = base.bootstrap
    origin = f"bootstrapped, suite {bootstrap.suite}" if bootstrap else base.references[cell.arch]
    yield f"base: {base.about}, {origin} ({base.where.file})"
    yield f"base: hpccm takes it for {base.hpccm_distro}"
    if ended := base.end_of_life:
        yield f"base: end of life since {ended.since}: {ended.about}"
    if verdict.cuda:
        yield from _cuda(base, verdict.cuda)
    if verdict.mpi:
        yield _mpi(base, verdict.mpi)
    if cell.flavour != RUNTIME:
        yield f"flavour: {cell.flavour}: compilers and headers stay in the image"
    if cell.cpu != GENERIC:
        yield f"cpu target: {cell.cpu}: programs built from source need it or a newer one"


def _cuda(base: BaseImage, cuda: PlannedCuda) -> Iterator[str]:
    release = cuda.update or cuda.version
    decider = f"{cuda.sdk}, which the recipe names" if cuda.sdk else f"({base.where.file}: cuda)"
    yield f"cuda: {release} by {_CUDA_ROUTES[cuda.route]} {decider}"
    if cuda.images:
        yield f"cuda: stages start from {cuda.images[0]} and {cuda.images[1]}"
    yield from (f"cuda: {note}" for note in cuda.notes)
    yield f"cuda: least driver {cuda.driver or 'not known'}"
    yield f"cuda: code for {', '.join(f'sm_{capability}' for capability in cuda.capabilities)}"
    if compiler := cuda.gcc or cuda.packages.gcc:
        own = base.gcc[0] if base.gcc else "not known"
        yield f"cuda: nvcc compiles with gcc {compiler}; the base's own is {own}"


def _mpi(base: BaseImage, mpi: PlannedMpi) -> str:
    how = {
        "package": f"the distribution's package ({base.where.file}: mpi.{mpi.family})",
        "source": "built from source by hpccm's block",
        "host": "bound in from the host; the image is made with an MPI of the same ABI",
    }[mpi.route]
    return f"mpi: {mpi.family} {mpi.version}, {how}"
