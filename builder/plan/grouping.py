"""Many cells in few lines: each reason once, with the cells that it holds for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from builder.model import Cell, LeftOut

MANY = 50  # cells that are left out: with their reasons, a screenful or two
_AXES = ("recipe", "base", "cuda", "mpi", "arch", "flavour", "cpu")
# Merged in this order: what stays apart is what reasons speak of most.
_MERGED = ("mpi", "recipe", "arch", "cpu", "flavour", "cuda", "base")

Values = Mapping[str, tuple[str, ...]]


def by_reason(left_out: Sequence[LeftOut]) -> Iterator[tuple[str, list[str]]]:
    """Each reason with lines that name its cells; an axis with all its values is not named."""
    cells: dict[str, list[Cell]] = {}
    for excluded in left_out:
        for reason in excluded.reasons:
            cells.setdefault(str(reason), []).append(excluded.cell)
    every = {axis: {excluded.cell.axis(axis) for excluded in left_out} for axis in _AXES}
    for text, alike in cells.items():
        yield text, [_named(product, every) for product in _products(alike)]


def _products(cells: Iterable[Cell]) -> list[Values]:
    """Products of axis values that hold each of the cells once, and no other."""
    products: list[Values] = [{axis: (cell.axis(axis),) for axis in _AXES} for cell in cells]
    for axis in _MERGED:
        merged: dict[tuple[tuple[str, ...], ...], dict[str, tuple[str, ...]]] = {}
        for values in products:
            rest = tuple(texts for name, texts in values.items() if name != axis)
            known = merged.setdefault(rest, {**values, axis: ()})
            known[axis] += values[axis]
        products = list(merged.values())
    return products


def _named(values: Values, every: Mapping[str, set[str]]) -> str:
    cells = 1
    for texts in values.values():
        cells *= len(texts)
    shown = [
        f"{axis} {', '.join(few)}" for axis, few in values.items() if len(few) < len(every[axis])
    ]
    count = "1 cell" if cells == 1 else f"{cells} cells"
    return f"{count}: {'; '.join(shown)}" if shown else f"all {count}"
