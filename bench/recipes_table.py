"""The README's table of recipes, from what was built and from rehearsals.

usage: recipes_table.py [REHEARSAL.json | out/IDENTIFIER/manifest.json]...

Manifests of verified images, and rehearsals, as `build-images rehearse --json` prints them, are
noted in docs/evidence/recipes.json: of each recipe and architecture, with and without CUDA, the
last image that was noted, and the rehearsal of the first. The table is printed. A test compares it
with the README, and what was tried with what the recipes ask for today. If the content key that was
noted has changed since, the table says so. Rows that were noted before 28 November 2026 have none.
Nothing is noted if one file is refused.
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
from builder.model.manifest import manifest_from
from builder.verify.proof import formats_on_gpus

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/evidence/recipes.json"
ARCHS = ("x86_64", "ppc64le", "aarch64")
PROVEN, REHEARSED, COMPILED = "built and proven", "rehearsed", "compiled only"
FORMATS = {"oci": "OCI image", "sif": "SIF", "charliecloud": "tarball"}
EARLIER = "; recipe or checks have changed since"
Row = tuple[str, bool]  # a recipe, and whether with CUDA


class MatrixImage(NamedTuple):
    """An image of today's matrix."""

    identifier: str
    content_key: str = ""


Images = dict[tuple[Row, str], list[MatrixImage]]


@functools.cache
def images_of_rows() -> Images:
    """For each row and architecture its images, in build order."""
    rows: Images = {}
    for image in load_images(ROOT, Selection(everything=True)):
        row = (image.cell.recipe, image.cuda is not None)
        if image.cell.arch in ARCHS:
            matrix_image = MatrixImage(image.identifier, image.content_key)
            rows.setdefault((row, image.cell.arch), []).append(matrix_image)
    return rows


def table(record: dict[str, Any], images: Images) -> list[str]:
    """The lines of the table: what was seen of each recipe and architecture, and never more."""
    lines = [f"| recipe | {' | '.join(ARCHS)} |", "|---" * (1 + len(ARCHS)) + "|"]
    for row in sorted({row for row, _ in images}):
        name = f"`{row[0]}`" + (" with CUDA" if row[1] else "")
        cells = [
            _seen(record, _key(row, arch), images[row, arch])
            if (row, arch) in images
            else "no cell"
            for arch in ARCHS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _key(row: Row, arch: str) -> str:
    return f"{row[0]}{' cuda' if row[1] else ''} {arch}"


def _seen(record: dict[str, Any], key: str, images: list[MatrixImage]) -> str:
    if proven := record["built"].get(key):
        # Rows of earlier dates have no key, and are of the first image: checks have changed since.
        name = proven.get("image", images[0].identifier)
        current = dict(images).get(name)
        since = "" if current and proven.get("key") == current else EARLIER
        axes = "-".join(name.removeprefix(f"{key.split(maxsplit=1)[0]}-").split("-")[1:-1])
        limits = [] if proven["how"] == "yes" else [proven["how"]]
        other = [] if name == images[0].identifier else [f"`{axes}`"]
        return ", ".join([PROVEN, *limits, *other]) + since
    rehearsal = record["rehearsed"].get(key)
    if rehearsal is None or rehearsal["failed"]:
        return COMPILED
    tried = rehearsal["passed"]
    return f"{REHEARSED}: {tried} of {tried + rehearsal['not_tried']}"


def note(record: dict[str, Any], document: dict[str, Any]) -> None:
    """Take a manifest, or rehearsals of first images, into the record."""
    rows = images_of_rows().items()
    keys = {image.identifier: _key(row, arch) for (row, arch), images in rows for image in images}
    firsts = {images[0].identifier for _, images in rows}
    if key := keys.get(document.get("image", "")):
        if document["outcome"] != "verified" or not document["formats_equal"]:
            sys.exit(f"{document['image']}: {document['outcome']}, and not in three equal formats")
        on_gpus = formats_on_gpus(manifest_from(document))
        formats = " and ".join(title for name, title in FORMATS.items() if name in on_gpus)
        unproven = document["proven_on_gpu"] is False
        limits = {
            "emulated": document["emulated"],
            "without a GPU": unproven and not formats,
            f"on a GPU as {formats} only": unproven and formats,
        }
        record["built"][key] = {
            "how": ", ".join(name for name, holds in limits.items() if holds) or "yes",
            "image": document["image"],
            "key": document["content_key"],
            "date": document["started"][:10],
            "artifacts": {name: one["digest"] for name, one in document["artifacts"].items()},
        }
    elif "cells" not in document:
        sys.exit(f"{document.get('image')}: the table has no such image")
    cells = document.get("cells", [])
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    for cell in cells:
        if cell["image"] in firsts:
            # Steps on a stand-in (--steps) say nothing of the image.
            tried = (trial for trial in cell["trials"] if trial["kind"] != "steps")
            counts = Counter(trial["outcome"] for trial in tried)
            record["rehearsed"][keys[cell["image"]]] = {
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
    print("\n".join(table(record, images_of_rows())))


if __name__ == "__main__":
    main(sys.argv[1:])
