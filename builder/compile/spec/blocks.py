"""Notes on blocks that hpccm's source does not have, and systems on which blocks do not work.

They are the rows of blocks.yaml and limits.yaml, which explain the fields.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.model import BlockUse
from builder.model.versions import version_order
from builder.system.files import table_beside

X86_64, PPC64LE, AARCH64 = "x86_64", "ppc64le", "aarch64"
ARCHITECTURES = (X86_64, PPC64LE, AARCH64)
DEBIAN, RED_HAT = "debian", "red-hat"  # packaging families
_HPCCM = "https://github.com/NVIDIA/hpc-container-maker/blob/v26.5.0/hpccm/building_blocks"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNotes:
    """A row of blocks.yaml."""

    refused: str = ""
    clones: bool = False
    distribution: bool = False
    package: bool = False
    package_file: bool = False
    version_too: tuple[tuple[str, ...], ...] = ()
    alone_before: str = ""
    refused_version: str = ""
    refused_because: tuple[str, ...] = ()
    local_files: tuple[str, ...] = ()
    toolchain: bool = False
    mpi: bool = False
    fetches: str = "always"
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)


@functools.cache
def block_notes() -> Mapping[str, BlockNotes]:
    """Return the notes on blocks, by name."""
    notes: dict[str, BlockNotes] = {}
    for name, row in table_beside(__file__, "blocks.yaml").items():
        for key in ("local_files", "keys"):
            row[key] = tuple(row.get(key, "").split())
        row["version_too"] = tuple(tuple(group.split()) for group in row.get("version_too", ()))
        notes[name] = BlockNotes(**row)
    return notes


def notes_on(name: str) -> BlockNotes:
    """Return the notes on a block, or empty notes."""
    return block_notes().get(name, BlockNotes())


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A row of limits.yaml, of one block."""

    block: str
    reason: str
    source: str
    architectures: tuple[str, ...] = ARCHITECTURES
    family: str = ""
    on_family: str = ""
    not_on: str = ""
    newer_than: str = ""
    set: str = ""
    unset: str = ""

    def holds(self, arguments: Mapping[str, object]) -> bool:
        """Return whether the limit applies to a block with these arguments."""
        if self.newer_than:
            version = arguments.get("version")
            return isinstance(version, str) and (
                version_order(version) > version_order(self.newer_than)
            )
        return not (
            (self.set and not arguments.get(self.set)) or (self.unset and arguments.get(self.unset))
        )


@functools.cache
def limits() -> tuple[Limit, ...]:
    """Return the rows of limits.yaml, one for each block that they name."""
    rows: list[Limit] = []
    for row in table_beside(__file__, "limits.yaml"):
        architectures = tuple(row.pop("architectures", "").split()) or ARCHITECTURES
        source = row.pop("source")
        for block in row.pop("blocks").split():
            own = f"{_HPCCM}/{block}.py" if source == "hpccm" else source
            rows.append(Limit(block=block, architectures=architectures, source=own, **row))
    return tuple(rows)


def limit_reason(use: BlockUse, arch: str, hpccm_distro: str = "", distribution: str = "") -> str:
    """Return the reason why a block does not work for an architecture or a distribution, or empty.

    The arguments are those of one cell, with their templates rendered.
    """
    here = family(hpccm_distro) if hpccm_distro else ""
    reasons = []
    for row in limits():
        applies = row.block == use.name and row.on_family in ("", here)
        if not applies or not row.holds(use.arguments):
            continue
        elsewhere = bool(here) and row.family not in ("", here)
        if arch not in row.architectures:
            only = " and ".join(row.architectures)
            reasons.append(f"{row.reason} (it exists for {only} only; {row.source})")
        elif elsewhere or (distribution and row.not_on == distribution):
            reasons.append(f"{row.reason} ({row.source})")
    return "; ".join(reasons)


def family(hpccm_distro: str) -> str:
    """Return the packaging family of hpccm's `ubuntu24`, `rockylinux9` and the others."""
    return DEBIAN if hpccm_distro.startswith("ubuntu") else RED_HAT
