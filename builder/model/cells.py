"""What images are known by: cells, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.model.names import GENERIC, NONE, RUNTIME


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Cell:
    """One combination of axis values for one recipe.

    `cuda` is a version or `none`; `mpi` is a family and a version (`openmpi5.0`) or `none`.
    `flavour` is runtime or development; `cpu` is generic or one of hpccm's CPU targets.
    """

    recipe: str
    recipe_version: str
    base: str
    cuda: str
    mpi: str
    arch: str
    flavour: str = RUNTIME
    cpu: str = GENERIC

    @property
    def identifier(self) -> str:
        """`hpc-base-1.0-debian13-openmpi5.0-ppc64le`: names directories and test ids."""
        return f"{self.recipe}-{self.tag}-{self.arch}"

    @property
    def tag(self) -> str:
        """`1.0-debian13-openmpi5.0`: its tag in its recipe's repository, for all architectures."""
        parts = [self.recipe_version, self.base]
        if self.cuda != NONE:
            parts.append(f"cuda{self.cuda}")
        if self.mpi != NONE:
            parts.append(self.mpi)
        if self.flavour != RUNTIME:
            parts.append(self.flavour)
        if self.cpu != GENERIC:
            parts.append(self.cpu)
        return "-".join(parts)

    def axis(self, name: str) -> str:
        """The value of an axis, or of `recipe`."""
        return str(getattr(self, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What the user asked for: patterns by axis, globs over identifiers. Empty means default.

    `flavours` and `cpu_targets` are no axes: every selected cell is taken in each of them.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    everything: bool = False
    flavours: tuple[str, ...] = (RUNTIME,)
    cpu_targets: tuple[str, ...] = (GENERIC,)
