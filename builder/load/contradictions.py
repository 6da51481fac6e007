"""Rows of the tables of facts that cannot all be true: of themselves, and of each other."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from builder.facts import CudaRelease, LibraryRelease
from builder.load.document import inside
from builder.load.faults import Faults
from builder.versions import version_order


def check_cuda(releases: Mapping[str, CudaRelease], faults: Faults) -> None:
    """Note every release that contradicts itself, or the one before it (the oldest is first)."""
    for one in releases.values():
        _check_versions(one, faults)
        _check_architectures(one, faults)
        _check_ascending(one, faults)
    for older, newer in itertools.pairwise(releases.values()):
        _check_never_less(older, newer, faults)


def check_libraries(
    libraries: Sequence[LibraryRelease], releases: Mapping[str, CudaRelease], faults: Faults
) -> None:
    """Note every cuDNN and NCCL whose CUDA, or whose CUDA on its architecture, is not there."""
    for one in libraries:
        pairs = [cuda for cuda in releases.values() if one.pairs_with(cuda.version)]
        if one.build and not pairs:
            valid = f"valid: a release of the table, or the major version of one: {_list(releases)}"
            faults.add(inside(one.where, "build"), f"there is no CUDA {one.build}", valid)
        known = {arch for cuda in pairs for arch in cuda.architectures}
        for packaging, archs in one.packagings.items():
            strange = [arch for arch in archs if arch and arch not in known]
            if pairs and strange:
                problem = f"CUDA {one.build} has no toolkit for {_list(strange)}"
                faults.add(inside(one.where, packaging), problem, f"valid: {_list(sorted(known))}")


def _check_versions(one: CudaRelease, faults: Faults) -> None:
    for key, value in (("update", one.update), ("image_tag", one.image_tag)):
        if value and one.version and not f"{value}.".startswith(f"{one.version}."):
            problem = f"{value} is no update of CUDA {one.version}"
            faults.add(inside(one.where, key), problem, f"valid: {one.version}, {one.version}.1")
    if one.shipped_driver and version_order(one.driver) > version_order(one.shipped_driver):
        problem = f"the least driver, {one.driver}, is newer than the shipped one"
        faults.add(inside(one.where, "driver"), problem, f"valid: up to {one.shipped_driver}")


def _check_architectures(one: CudaRelease, faults: Faults) -> None:
    tables: tuple[tuple[str, Collection[str]], ...] = (
        ("repositories", one.repositories),
        ("images", one.images),
        ("image_names", one.image_names),
    )
    for key, archs in tables:
        for arch in archs:
            if arch and arch not in one.architectures:
                problem = f"CUDA {one.version} has no toolkit for {arch}"
                faults.add(
                    inside(one.where, f"{key}.{arch}"),
                    problem,
                    f"valid: {_list(one.architectures)}, as its `architectures` say",
                )


def _check_ascending(one: CudaRelease, faults: Faults) -> None:
    numbers = [version_order(capability) for capability in one.capabilities]
    for before, after in itertools.pairwise(numbers):
        if before > after:
            problem = f"{after[0]} stands after {before[0]}"
            faults.add(inside(one.where, "capabilities"), problem, "valid: in ascending order")


def _check_never_less(older: CudaRelease, newer: CudaRelease, faults: Faults) -> None:
    """Neither the least driver nor the newest host compiler has ever gone down."""
    for key, what, before, after in (
        ("driver", "the least driver", older.driver, newer.driver),
        ("gcc", "the newest gcc", older.gcc, newer.gcc),
    ):
        if before and after and version_order(after) < version_order(before):
            problem = f"{what} of CUDA {newer.version}, {after}, is older than {older.version}'s"
            faults.add(inside(newer.where, key), problem, f"valid: {before} or newer")


def _list(names: Collection[str]) -> str:
    return ", ".join(names)
