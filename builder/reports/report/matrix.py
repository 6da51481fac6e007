"""Cells in the report: their axes, their states, and those that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder import facts
from builder.model import DEVELOPMENT, FAILED, GENERIC, NONE, RUNTIME, Cell, LeftOut
from builder.model.architectures import CPU_TARGETS
from builder.model.manifest import Manifest

_USUAL = {"flavour": RUNTIME, "cpu": GENERIC}  # not shown
VERIFIED, BUILT = "verified", "built"
BROKEN, COMPILED, LEFT_OUT = "broken", "compiled", "left-out"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutImage:
    """A cell that was left out; its reasons are `LAYER: TEXT`."""

    image: str
    cell: Cell
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, absent: LeftOut) -> LeftOutImage:
        reasons = tuple(map(str, absent.reasons))
        return cls(image=absent.cell.identifier, cell=absent.cell, reasons=reasons)


def standing_of(manifest: Manifest) -> tuple[str, str, str]:
    """Return state, mark and word of an image that was built.

    An image that is not known to be good has failed.
    """
    if manifest.outcome == VERIFIED:
        return VERIFIED, "✓", "verified"
    if manifest.outcome == BUILT:
        return BUILT, "○", "not verified"
    checks = [check.outcome for outcomes in manifest.checks.values() for check in outcomes]
    if FAILED in checks:
        return FAILED, "✗", "check failed"
    return FAILED, "✗", "formats differ" if manifest.formats_equal is False else "failed"


def shown_axes(cell: Mapping[str, str]) -> list[str]:
    """Return what a row shows of its cells beside their recipe, without what is usual."""
    mpi, cuda = cell.get("mpi", NONE), cell.get("cuda", NONE)
    axes = [
        cell.get("base", ""),
        "" if mpi == NONE else mpi,
        "" if cuda == NONE else f"CUDA {cuda}",
        *(cell[name] for name, usual in _USUAL.items() if cell.get(name, usual) != usual),
    ]
    return [axis for axis in axes if axis]


def axes_of(image: str) -> dict[str, str]:
    """Take an image identifier apart, for an image that left nothing but its name."""
    words = image.split("-")
    axes = {"arch": words.pop()}
    if words and words[-1] in CPU_TARGETS.get(axes["arch"], ()):
        axes["cpu"] = words.pop()
    if words and words[-1] == DEVELOPMENT:
        axes["flavour"] = words.pop()
    if words and words[-1].startswith(tuple(facts.MPI_FAMILIES)):
        axes["mpi"] = words.pop()
    if words and words[-1].startswith("cuda"):
        axes["cuda"] = words.pop().removeprefix("cuda")
    version = next((at for at, word in enumerate(words) if at and word[:1].isdigit()), len(words))
    axes["recipe"] = "-".join(words[:version])
    axes["recipe_version"] = "".join(words[version : version + 1])
    axes["base"] = "-".join(words[version + 1 :])
    return axes
