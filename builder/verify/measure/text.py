"""A measurement as text: a table of ratios to bare, and one of what runs took."""

from __future__ import annotations

from collections.abc import Sequence

from builder.model.errors import counted
from builder.verify.measure.measurement import BARE, Completion, Measured, Row


def as_text(measured: Measured) -> str:
    """The tables, with the verdict of each format below them."""
    return "\n".join(
        [
            _head(measured),
            "",
            *_ratios(measured),
            "",
            "Bare's median, and how fast each format is: its share of bare's speed in the same",
            "round, median (lowest to highest). More is faster, also where the unit is a time.",
            "",
            *_uses(measured),
            "",
            *(
                f"{name}: {one.check} {one.outcome}: {one.reason}"
                for name, one in measured.outcomes.items()
            ),
        ]
    )


def _head(measured: Measured) -> str:
    host = measured.host
    ran = f"emulated by {measured.emulator}, bare as well" if measured.emulator else "native"
    lines = [
        f"{measured.image}: {counted(measured.repeats, 'round')}, {ran}",
        f"{host.cpu}, {counted(host.cores, 'core')}, {host.os}, {host.kernel}",
        f"bare: {measured.bare}",
    ]
    if measured.is_disturbed:
        shares = ", ".join(f"{share:.0%}" for share in measured.others)
        lines.append(f"DISTURBED: others kept the cores busy before the rounds: {shares}")
    if measured.no_gpus:
        lines.append(f"GPUs NOT SAMPLED, or not to the end: {measured.no_gpus}")
    return "\n".join(lines)


def _ratios(measured: Measured) -> list[str]:
    places = [one for one in measured.places if one.name != BARE]
    table = [["", "bare", *(f"{one.name} ({one.runner} {one.version})" for one in places)]]
    by_quantity: dict[str, dict[str, Row]] = {}
    for row in measured.rows:
        by_quantity.setdefault(row.quantity.name, {})[row.place] = row
    for rows in by_quantity.values():
        bare = rows[BARE]
        cells = [_ratio(rows[one.name], measured.floor) for one in places]
        table.append([bare.quantity.title, _value(bare), *cells])
    return _aligned(table)


def _value(row: Row) -> str:
    return f"{figures(row.values.median)} {row.quantity.unit}" if row.values else "no result"


def _ratio(row: Row, floor: float) -> str:
    if row.problem or row.ratio is None:
        return "no result"
    low, high = row.ratio.lowest, row.ratio.highest
    collapsed = "  COLLAPSED" if row.is_below(floor) else ""
    return f"{row.ratio.median:.2f} ({low:.2f} to {high:.2f}){collapsed}"


def figures(value: float) -> str:
    """Three significant figures, without an exponent."""
    whole = 100
    return f"{value:.0f}" if value >= whole else f"{value:#.3g}"


def _uses(measured: Measured) -> list[str]:
    """Medians over the rounds of one program in one place."""
    table = [["run to completion", "time", "cores busy", "memory", "GPUs busy"]]
    table += [[f"{one.program}, {one.place}", *as_cells(one)] for one in measured.completions]
    return _aligned(table)


def as_cells(completion: Completion) -> tuple[str, str, str, str]:
    """Time, cores, memory and GPUs of a `Completion`, as they are shown."""
    gpus = completion.gpus
    return (
        f"{completion.seconds:.1f} s",
        f"{completion.cpu:.0%}",
        f"{completion.memory_bytes / 1e9:.1f} GB",
        "-" if gpus is None else f"{gpus:.0%}",
    )


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
