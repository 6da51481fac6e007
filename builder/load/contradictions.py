"""Rows of the tables of facts that cannot all be true: of themselves, and of each other."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from builder.facts import CudaRelease, Facts, LibraryRelease
from builder.facts.places import Where
from builder.model.versions import version_order

# The place of a row, the key in it, the problem, and what is valid there.
Contradiction = tuple[Where, str, str, str]


def contradictions(tables: Facts) -> Iterator[Contradiction]:
    """Yield the contradictions in the tables of CUDA, cuDNN and NCCL."""
    releases = tables.cuda
    for release in releases.values():
        yield from _in_versions(release)
        yield from _in_architectures(release)
        yield from _in_capabilities(release)
    for older, newer in itertools.pairwise(releases.values()):  # the oldest is first
        yield from _falling(older, newer)
    for library in (*tables.cudnn, *tables.nccl):
        yield from _in_library(library, releases)


def _in_versions(release: CudaRelease) -> Iterator[Contradiction]:
    for key, value in (("update", release.update), ("image_tag", release.image_tag)):
        if value and not f"{value}.".startswith(f"{release.version}."):
            problem = f"{value} is no update of CUDA {release.version}"
            yield release.where, key, problem, f"valid: {release.version}, {release.version}.1"
    shipped = release.shipped_driver
    if shipped and version_order(release.driver) > version_order(shipped):
        problem = f"the least driver, {release.driver}, is newer than the shipped one"
        yield release.where, "driver", problem, f"valid: up to {shipped}"


def _in_architectures(release: CudaRelease) -> Iterator[Contradiction]:
    valid = f"valid, by its `architectures`: {', '.join(release.architectures)}"
    for key in ("repositories", "images", "image_names"):
        if problem := _without_toolkit(
            release.version, getattr(release, key), release.architectures
        ):
            yield release.where, key, problem, valid


def _without_toolkit(cuda: str, archs: Collection[str], known: Collection[str]) -> str:
    strange = [arch for arch in archs if arch and arch not in known]
    return f"CUDA {cuda} has no toolkit for {', '.join(strange)}" if strange else ""


def _in_capabilities(release: CudaRelease) -> Iterator[Contradiction]:
    numbers = [int(capability) for capability in release.capabilities if capability]
    for before, after in itertools.pairwise(numbers):
        if before > after:
            problem = f"{after} stands after {before}"
            yield release.where, "capabilities", problem, "valid: in ascending order"


def _falling(older: CudaRelease, newer: CudaRelease) -> Iterator[Contradiction]:
    """Neither the least driver nor the newest host compiler has ever gone down."""
    for key, title in (("driver", "the least driver"), ("gcc", "the newest gcc")):
        before, after = getattr(older, key), getattr(newer, key)
        if before and after and version_order(after) < version_order(before):
            that = f"that of CUDA {older.version} in {older.where}"
            problem = f"{title} of CUDA {newer.version}, {after}, is older than {that}"
            yield newer.where, key, problem, f"valid: {before} or newer"


def _in_library(
    library: LibraryRelease, releases: Mapping[str, CudaRelease]
) -> Iterator[Contradiction]:
    """Check that the CUDA which a library is built for exists, on its architectures."""
    pairs = [cuda for cuda in releases.values() if library.pairs_with(cuda.version)]
    if not pairs:
        valid = "valid: a release of cuda.yaml, or the major version of one"
        yield library.where, "build", f"there is no CUDA {library.build}", valid
    elif not _is_replaced(library, pairs):
        known = sorted({arch for cuda in pairs for arch in cuda.architectures})
        for packaging, archs in library.packagings.items():
            if problem := _without_toolkit(library.build, archs, known):
                yield library.where, packaging, problem, f"valid: {', '.join(known)}"


def _is_replaced(library: LibraryRelease, pairs: Sequence[CudaRelease]) -> bool:
    """Return whether a project's own row of a CUDA stands where the library's table has another."""
    return any(cuda.where.file.count("/") < library.where.file.count("/") for cuda in pairs)
