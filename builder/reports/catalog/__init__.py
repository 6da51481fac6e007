"""The catalogue: a static web site of images, made from their output folders.

It proves nothing itself: it shows the evidence, and says if evidence is not for the artifacts
beside it. All texts are escaped; the pages load nothing from other sites.
docs/catalog.md describes it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote, unquote

import builder
from builder.model import NONE
from builder.model.contract import SiteAnswer
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
    "flavour": "Flavour",
    "cpu": "Processor",
    "proof": "Proof",
}
# Ways of starting ranks, as docs/launchers.md names them
_WAYS = {
    "once": "once, before the first start",
    "in-container": "all ranks in one container, on one node",
    "hybrid": "each rank in a container of its own, started by the host",
}
_PAGES = ("index.html", "compare.html")


def write_catalog(
    entries: Sequence[CatalogEntry], source: Path, out: Path, *, registry: str = ""
) -> None:
    """Write the site to `out`; `source` is the folder of the images' folders.

    It replaces an earlier site. Raises BadInput for a folder with other content.
    """
    environment = page_environment(_HERE)
    image_page = environment.get_template("image.html.j2")
    ordered = sorted(entries, key=lambda entry: entry.image)
    pages = out / "images"
    _make_room(out)
    pages.mkdir(parents=True, exist_ok=True)
    values = {"version": builder.__version__, "registry": registry}
    sites = sorted({answer.site for entry in ordered for answer in entry.sites})
    for name in _PAGES:
        page = environment.get_template(f"{name}.j2")
        text = page.render(entries=ordered, filters=_filters(ordered), sites=sites, **values)
        _write(out / name, text)
    for entry in ordered:
        links = [(name, name) for name in entry.files]
        runs = [(answer, commands_of(entry, answer, registry)) for answer in entry.sites]
        text = image_page.render(entry=entry, card=entry.card, links=links, runs=runs, **values)
        _write(pages / f"{entry.image}.html", text)
        for name in entry.files:
            target = pages / entry.image / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / entry.image / name, target)
    css = (Path(report.__file__).parent / "report.css", _HERE / "catalog.css")
    _write(out / "catalog.css", "".join(path.read_text() for path in css))
    _write(out / "catalog.js", (_HERE / "catalog.js").read_text())
    data = json.dumps(_data(ordered, registry), separators=(",", ":"), ensure_ascii=False)
    _write(out / "data.js", f"var catalogData = {data};\n")
    document = {"schema": SCHEMA, "images": [_as_json(entry, registry) for entry in ordered]}
    _write(out / CATALOG, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def commands_of(entry: CatalogEntry, answer: SiteAnswer, registry: str) -> list[tuple[str, str]]:
    """Return the commands that run an image at a site, each with its purpose."""
    if not answer.commands:
        return []
    command, name = entry.brought(answer.runtime, registry)
    lines = [(about, line.replace("IMAGE", name)) for about, line in _lines(answer)]
    return [("get the image", command), *lines] if command else lines


def _lines(answer: SiteAnswer) -> tuple[tuple[str, str], ...]:
    """Return the commands of an answer with their purposes, with IMAGE in them."""
    before = [("once", answer.before)] if answer.before else []
    return tuple((_WAYS[way], line) for way, line in (*before, *answer.commands))


def _shown(answer: SiteAnswer) -> tuple[object, ...]:
    """Return what the list shows of an answer: site, answer, runtime, reasons, commands."""
    reasons = "; ".join(f"{rule}: {reason}" for rule, reason, _ in answer.reasons)
    return answer.site, answer.answer, answer.runtime, reasons, _lines(answer)


def _data(entries: Sequence[CatalogEntry], registry: str) -> dict[str, object]:
    """Return what the list searches and `compare.html` compares.

    `values` are kind, name and text. Each image has the differences between their ascending
    numbers, which take a third of the space. `answers` are shared by images in the same way.
    """
    triples = {
        (kind, name, text)
        for entry in entries
        for kind, own in entry.values.items()
        for name, text in own.items()
    }
    values = {triple: number for number, triple in enumerate(sorted(triples))}
    shared = dict.fromkeys(_shown(answer) for entry in entries for answer in entry.sites)
    answers = {answer: number for number, answer in enumerate(shared)}
    return {
        "values": [*values],
        "answers": [*answers],
        "images": [
            {
                "name": entry.image,
                "path": shlex.quote(f"{entry.folder}/{entry.image}"),
                "axes": asdict(entry.manifest.cell) | {"proof": entry.card.word},
                "known": [*entry.values],
                "values": _steps(
                    values[kind, name, text]
                    for kind, own in entry.values.items()
                    for name, text in own.items()
                ),
                "answers": [answers[_shown(answer)] for answer in entry.sites],
                "brought": {
                    runtime: entry.brought(runtime, registry)
                    for runtime in {answer.runtime: 0 for answer in entry.sites if answer.commands}
                },
            }
            for entry in entries
        ],
    }


def _steps(numbers: Iterable[int]) -> list[int]:
    """Return the smallest number and the differences between the following ones."""
    ordered = sorted(numbers)
    return [after - before for before, after in zip((0, *ordered), ordered, strict=False)]


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
        "sites": {answer.site: answer.answer for answer in entry.sites},
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
