"""Rows of the tables of facts that cannot all be true: of themselves, and of each other."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from builder.facts import CudaRelease, LibraryRelease
from builder.facts.places import Where
from builder.load.document import inside
from builder.load.faults import Faults
from builder.model.versions import version_order

Lines = dict[Where, Mapping[str, int]]


class Contradictions:
    """Notes them at the keys of the rows: `lines` has the line of each, by the row's place."""

    def __init__(self, lines: Lines, faults: Faults) -> None:
        self._lines = lines
        self._faults = faults

    def check_cuda(self, releases: Mapping[str, CudaRelease]) -> None:
        """Check each release by itself, and with the one before it (the oldest is first)."""
        for one in releases.values():
            self._check_versions(one)
            self._check_architectures(one)
            self._check_ascending(one)
        for older, newer in itertools.pairwise(releases.values()):
            self._check_never_less(older, newer)

    def check_libraries(
        self, libraries: Sequence[LibraryRelease], releases: Mapping[str, CudaRelease]
    ) -> None:
        """Check that the CUDA which a cuDNN or NCCL is built for exists, on its architectures."""
        for one in libraries:
            pairs = [cuda for cuda in releases.values() if one.pairs_with(cuda.version)]
            if not pairs:
                valid = "valid: a release of cuda.yaml, or the major version of one"
                self._add(one.where, "build", f"there is no CUDA {one.build}", valid)
            elif not _replaced(one, pairs):
                self._check_packagings(one, pairs)

    def _check_packagings(self, one: LibraryRelease, pairs: Sequence[CudaRelease]) -> None:
        known = {arch for cuda in pairs for arch in cuda.architectures}
        for packaging, archs in one.packagings.items():
            strange = [arch for arch in archs if arch and arch not in known]
            if strange:
                problem = f"CUDA {one.build} has no toolkit for {_list(strange)}"
                self._add(one.where, packaging, problem, f"valid: {_list(sorted(known))}")

    def _check_versions(self, one: CudaRelease) -> None:
        for key, value in (("update", one.update), ("image_tag", one.image_tag)):
            if value and not f"{value}.".startswith(f"{one.version}."):
                problem = f"{value} is no update of CUDA {one.version}"
                self._add(one.where, key, problem, f"valid: {one.version}, {one.version}.1")
        if one.shipped_driver and version_order(one.driver) > version_order(one.shipped_driver):
            problem = f"the least driver, {one.driver}, is newer than the shipped one"
            self._add(one.where, "driver", problem, f"valid: up to {one.shipped_driver}")

    def _check_architectures(self, one: CudaRelease) -> None:
        tables: tuple[tuple[str, Collection[str]], ...] = (
            ("repositories", one.repositories),
            ("images", one.images),
            ("image_names", one.image_names),
        )
        for key, archs in tables:
            strange = [arch for arch in archs if arch and arch not in one.architectures]
            if strange:
                problem = f"CUDA {one.version} has no toolkit for {_list(strange)}"
                valid = f"valid, by its `architectures`: {_list(one.architectures)}"
                self._add(one.where, key, problem, valid)

    def _check_ascending(self, one: CudaRelease) -> None:
        numbers = [int(capability) for capability in one.capabilities if capability]
        for before, after in itertools.pairwise(numbers):
            if before > after:
                problem = f"{after} stands after {before}"
                self._add(one.where, "capabilities", problem, "valid: in ascending order")

    def _check_never_less(self, older: CudaRelease, newer: CudaRelease) -> None:
        """Neither the least driver nor the newest host compiler has ever gone down."""
        for key, what, before, after in (
            ("driver", "the least driver", older.driver, newer.driver),
            ("gcc", "the newest gcc", older.gcc, newer.gcc),
        ):
            if before and after and version_order(after) < version_order(before):
                that = f"that of CUDA {older.version} in {older.where}"
                problem = f"{what} of CUDA {newer.version}, {after}, is older than {that}"
                self._add(newer.where, key, problem, f"valid: {before} or newer")

    def _add(self, row: Where, key: str, problem: str, valid: str) -> None:
        line = self._lines.get(row, {}).get(key)
        self._faults.add(inside(row, key, line), problem, valid)


def _replaced(one: LibraryRelease, pairs: Sequence[CudaRelease]) -> bool:
    """Return whether a project's own row of a CUDA stands where the library's table has another."""
    return any(cuda.where.file.count("/") < one.where.file.count("/") for cuda in pairs)


def _list(names: Collection[str]) -> str:
    return ", ".join(names)
