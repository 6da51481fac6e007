"""The catalogue: a static web site of images, made from their output folders.

It proves nothing itself: it shows the evidence, and says if evidence is not for the artifacts
beside it. All texts are escaped; the pages load nothing from other sites.
docs/catalog.md describes it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote, unquote

import builder
from builder.model import NONE
from builder.model.errors import BadInput
from builder.reports import report
from builder.reports.catalog.entries import CatalogEntry
from builder.reports.templates import page_environment

CATALOG = "catalog.json"  # written last
SCHEMA = "build-images/catalog/v1"
_HERE = Path(__file__).parent
_TITLES = {
    "architecture": "Architecture",
    "framework": "Framework",
    "cuda": "CUDA",
    "mpi": "MPI",
    "base": "Base",
}


def write_catalog(
    entries: Sequence[CatalogEntry], source: Path, out: Path, *, registry: str = ""
) -> None:
    """Write the site to `out`; `source` is the folder of the images' folders.

    It replaces an earlier site. Raises BadInput for a folder with other content.
    """
    environment = page_environment(_HERE)
    index_page, image_page = map(environment.get_template, ("index.html.j2", "image.html.j2"))
    ordered = sorted(entries, key=lambda entry: entry.image)
    pages = out / "images"
    _make_room(out)
    pages.mkdir(parents=True, exist_ok=True)
    values = {"version": builder.__version__, "registry": registry}
    text = index_page.render(entries=ordered, filters=_filters(ordered), **values)
    _write(out / "index.html", text)
    for entry in ordered:
        links = [(name, name) for name in entry.files]
        text = image_page.render(entry=entry, card=entry.card, links=links, **values)
        _write(pages / f"{entry.image}.html", text)
        for name in entry.files:
            target = pages / entry.image / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / entry.image / name, target)
    css = (Path(report.__file__).parent / "report.css", _HERE / "catalog.css")
    _write(out / "catalog.css", "".join(path.read_text() for path in css))
    _write(out / "catalog.js", (_HERE / "catalog.js").read_text())
    document = {"schema": SCHEMA, "images": [_as_json(entry, registry) for entry in ordered]}
    _write(out / CATALOG, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _filters(entries: Sequence[CatalogEntry]) -> dict[str, tuple[str, list[str]]]:
    """Return the filters whose values differ between images: title and values, by name."""
    filters = {}
    for name, title in _TITLES.items():
        values = {value for entry in entries for value in entry.filters[name]}
        if len(values) > 1:
            filters[name] = title, sorted(values, key=lambda value: (value == NONE, value))
    return filters


def _as_json(entry: CatalogEntry, registry: str) -> dict[str, object]:
    cell, digest = entry.manifest.cell, entry.manifest.artifacts["oci"].digest
    page = f"images/{quote(entry.image)}"
    return {
        "image": entry.image,
        "state": entry.card.state,
        "cell": asdict(cell),
        "digest": digest,
        **({"reference": f"{registry}/{cell.recipe}@{digest}"} if registry else {}),
        "faults": list(entry.faults),
        "page": f"{page}.html",
        "files": [f"{page}/{quote(name)}" for name in entry.files],
    }


def _make_room(out: Path) -> None:
    """Remove the files of an earlier catalogue, and nothing else.

    Raises BadInput for a folder with other things in it.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        earlier = json.loads((out / CATALOG).read_text(encoding="utf-8"))
        names = [name for image in earlier["images"] for name in (image["page"], *image["files"])]
        is_catalog = earlier["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        is_catalog, names = False, []
    if not is_catalog:
        hint = "name a folder that is new, empty, or contains an earlier catalogue"
        raise BadInput(f"{out} has files that do not belong to a catalogue", hint=hint)
    pages = (out / "images").resolve()
    for name in names:
        path = out / unquote(str(name))
        if pages in path.resolve().parents:
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")
