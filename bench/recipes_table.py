"""The README's table of recipes, from what was built and from rehearsals.

usage: recipes_table.py [REHEARSAL.json...]

Rehearsals, as `build-images rehearse --json` prints them, are noted in docs/evidence/recipes.json:
of each recipe and architecture, with and without CUDA, the first image. The table is printed. A
test compares it with the README, and what was tried with what the recipes ask for today.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from builder.build.planning import load_images
from builder.model import Selection

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/evidence/recipes.json"
ARCHS = ("x86_64", "ppc64le")
PROVEN, REHEARSED, COMPILED = "built and proven", "rehearsed", "compiled only"
Row = tuple[str, bool]  # a recipe, and whether with CUDA


@functools.cache
def first_images() -> dict[tuple[Row, str], str]:
    """For each row and architecture the identifier of its first image, in build order."""
    found: dict[tuple[Row, str], str] = {}
    for image in load_images(ROOT, Selection(everything=True)):
        row = (image.cell.recipe, image.cuda is not None)
        if image.cell.arch in ARCHS:
            found.setdefault((row, image.cell.arch), image.identifier)
    return found


def table(record: dict[str, Any], images: dict[tuple[Row, str], str]) -> list[str]:
    """The lines of the table: what was seen of each recipe and architecture, and never more."""
    lines = [f"| recipe | {' | '.join(ARCHS)} |", "|---|---|---|"]
    for row in sorted({row for row, _ in images}):
        name = f"`{row[0]}`" + (" with CUDA" if row[1] else "")
        cells = [_seen(record, row, arch) if (row, arch) in images else "no cell" for arch in ARCHS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _seen(record: dict[str, Any], row: Row, arch: str) -> str:
    key = f"{row[0]}{' cuda' if row[1] else ''} {arch}"
    if proven := record["built"].get(key):
        return f"{PROVEN}{', ' + proven if proven != 'yes' else ''}"
    rehearsal = record["rehearsed"].get(key)
    if rehearsal is None or rehearsal["failed"]:
        return COMPILED
    tried = rehearsal["passed"]
    return f"{REHEARSED}: {tried} of {tried + rehearsal['not_tried']}"


def note(record: dict[str, Any], cells: list[dict[str, Any]]) -> None:
    """Take rehearsals of first images into the record."""
    keys = {
        identifier: f"{row[0]}{' cuda' if row[1] else ''} {arch}"
        for (row, arch), identifier in first_images().items()
    }
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    for cell in cells:
        if key := keys.get(cell["image"]):
            # Steps on a stand-in (--steps) say nothing of the image.
            tried = (trial for trial in cell["trials"] if trial["kind"] != "steps")
            counts = Counter(trial["outcome"] for trial in tried)
            record["rehearsed"][key] = {
                "image": cell["image"],
                "asked": cell["asked"],
                "date": today,
                "passed": counts["passed"],
                "failed": counts["failed"],
                "not_tried": counts["not tried"],
            }


def main(paths: list[str]) -> None:
    record = json.loads(RECORD.read_text())
    for path in paths:
        note(record, json.loads(Path(path).read_text())["cells"])
    record["rehearsed"] = dict(sorted(record["rehearsed"].items()))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(record, first_images())))


if __name__ == "__main__":
    main(sys.argv[1:])
