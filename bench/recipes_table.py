"""The README's table of recipes, from what was built and from rehearsals.

usage: recipes_table.py [REHEARSAL.json | out/IDENTIFIER/manifest.json]...

Manifests of verified images, and rehearsals, as `build-images rehearse --json` prints them, are
noted in docs/evidence/recipes.json: of each recipe and architecture, with and without CUDA, the
first image. The table is printed. A test compares it with the README, and what was tried with what
the recipes ask for today. If the content key that was noted has changed since, the table says so.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from builder.build.planning import load_images
from builder.model import Selection

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/evidence/recipes.json"
ARCHS = ("x86_64", "ppc64le")
PROVEN, REHEARSED, COMPILED = "built and proven", "rehearsed", "compiled only"
EARLIER = "built and proven before it or its checks changed"
Row = tuple[str, bool]  # a recipe, and whether with CUDA


class First(NamedTuple):
    """The first image of a row and an architecture, in build order."""

    identifier: str
    content_key: str = ""


@functools.cache
def first_images() -> dict[tuple[Row, str], First]:
    """For each row and architecture its first image."""
    found: dict[tuple[Row, str], First] = {}
    for image in load_images(ROOT, Selection(everything=True)):
        row = (image.cell.recipe, image.cuda is not None)
        if image.cell.arch in ARCHS:
            found.setdefault((row, image.cell.arch), First(image.identifier, image.content_key))
    return found


def table(record: dict[str, Any], images: dict[tuple[Row, str], First]) -> list[str]:
    """The lines of the table: what was seen of each recipe and architecture, and never more."""
    lines = [f"| recipe | {' | '.join(ARCHS)} |", "|---|---|---|"]
    for row in sorted({row for row, _ in images}):
        name = f"`{row[0]}`" + (" with CUDA" if row[1] else "")
        firsts = [images.get((row, arch)) for arch in ARCHS]
        cells = [
            _seen(record, _key(row, arch), first) if first else "no cell"
            for arch, first in zip(ARCHS, firsts, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _key(row: Row, arch: str) -> str:
    return f"{row[0]}{' cuda' if row[1] else ''} {arch}"


def _seen(record: dict[str, Any], key: str, first: First) -> str:
    if proven := record["built"].get(key):
        how = proven["how"]
        # Rows of earlier dates have no key.
        state = PROVEN if proven.get("key", first.content_key) == first.content_key else EARLIER
        return f"{state}{', ' + how if how != 'yes' else ''}"
    rehearsal = record["rehearsed"].get(key)
    if rehearsal is None or rehearsal["failed"]:
        return COMPILED
    tried = rehearsal["passed"]
    return f"{REHEARSED}: {tried} of {tried + rehearsal['not_tried']}"


def note(record: dict[str, Any], document: dict[str, Any]) -> None:
    """Take a manifest, or rehearsals, of first images into the record."""
    keys = {first.identifier: _key(row, arch) for (row, arch), first in first_images().items()}
    if key := keys.get(document.get("image", "")):
        if document["outcome"] != "verified" or not document["formats_equal"]:
            sys.exit(f"{document['image']}: {document['outcome']}, and not in three equal formats")
        limits = {
            "emulated": document["emulated"],
            "without a GPU": document["proven_on_gpu"] is False,
        }
        record["built"][key] = {
            "how": ", ".join(name for name, holds in limits.items() if holds) or "yes",
            "image": document["image"],
            "key": document["content_key"],
            "date": document["started"][:10],
            "artifacts": {name: one["digest"] for name, one in document["artifacts"].items()},
        }
    elif "cells" not in document:
        sys.exit(f"{document.get('image')}: the table has first images only, and this is none")
    cells = document.get("cells", [])
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
        note(record, json.loads(Path(path).read_text()))
    record["rehearsed"] = dict(sorted(record["rehearsed"].items()))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(record, first_images())))


if __name__ == "__main__":
    main(sys.argv[1:])
