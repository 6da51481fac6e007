"""The pages: an index, a page for each image, and the files that they name."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import jinja2

import builder
from builder.facts.runtimes import RUNTIMES
from builder.model import NONE
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput
from builder.reports import report
from builder.reports.catalog.entries import Entry
from builder.reports.report.commands import RUN_CHECKS, Command, Recipe
from builder.reports.report.view import Link
from builder.reports.sites import tag_of_identifier

CATALOG = "catalog.json"  # the last that is written
SCHEMA = "build-images/catalog/v1"
_HERE = Path(__file__).parent
_REPORT = Path(report.__file__).parent
_TITLES = {
    "architecture": "Architecture",
    "framework": "Framework",
    "cuda": "CUDA",
    "mpi": "MPI",
    "base": "Base",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """One choice above the list; `values` are those of the images that are in it."""

    name: str
    title: str
    values: tuple[str, ...]


def write_catalog(
    entries: Sequence[Entry], folders: Mapping[str, Path], out: Path, *, registry: str = ""
) -> None:
    """Write the site to `out`; `folders` maps images to their output folders.

    It replaces an earlier one. Raises BadInput for a folder that holds something else.
    """
    environment = _environment()
    ordered = sorted(entries, key=lambda one: one.image)
    pages = out / "images"
    _make_room(out)
    pages.mkdir(parents=True, exist_ok=True)
    values = {"version": builder.__version__, "registry": registry}
    index = environment.get_template("index.html.j2")
    _write(out / "index.html", index.render(entries=ordered, filters=_filters(ordered), **values))
    for one in ordered:
        page = environment.get_template("image.html.j2")
        how = _recipes(one, registry)
        links = _links(one)
        text = page.render(entry=one, card=one.card, recipes=how, links=links, **values)
        _write(pages / f"{one.image}.html", text)
        for name in one.files:
            _copy(folders[one.image] / name, pages / one.image / name)
    css = (_REPORT / "report.css").read_text() + (_HERE / "catalog.css").read_text()
    _write(out / "catalog.css", css)
    _write(out / "catalog.js", (_HERE / "catalog.js").read_text())
    document = {"schema": SCHEMA, "images": [_as_json(one, registry) for one in ordered]}
    _write(out / CATALOG, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _filters(entries: Sequence[Entry]) -> tuple[Filter, ...]:
    """Those by which images differ."""
    found = []
    for name, title in _TITLES.items():
        values = {value for one in entries for value in one.filters[name]}
        ordered = sorted(values - {NONE}) + ([NONE] if NONE in values else [])
        if len(ordered) > 1:
            found.append(Filter(name=name, title=title, values=tuple(ordered)))
    return tuple(found)


def _recipes(one: Entry, registry: str) -> tuple[Recipe, ...]:
    """By registry where images are published, else from the folder that they were built to."""
    if not registry:
        return one.card.recipes
    return pull_recipes(
        one.image,
        one.cell,
        registry=registry,
        tag=tag_of_identifier(one.image, recipe=one.cell["recipe"], arch=one.cell["arch"]),
        digest=one.digest,
        gpu=one.cell.get("cuda", NONE) != NONE,
    )


def _links(one: Entry) -> tuple[Link, ...]:
    return tuple(Link(text=name, href=f"./{quote(one.image)}/{quote(name)}") for name in one.files)


def _as_json(one: Entry, registry: str) -> dict[str, object]:
    reference = f"{registry}/{one.cell['recipe']}@{one.digest}" if registry else ""
    return {
        "image": one.image,
        "state": one.state,
        "cell": dict(one.cell),
        "digest": one.digest,
        **({"reference": reference} if reference else {}),
        "faults": list(one.faults),
        "page": f"images/{quote(one.image)}.html",
        "files": [f"images/{quote(one.image)}/{quote(name)}" for name in one.files],
    }


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE, _REPORT]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _make_room(out: Path) -> None:
    """Remove what an earlier catalogue has written here, and nothing else.

    Raises BadInput for a folder with other things in it.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        earlier = json.loads((out / CATALOG).read_text(encoding="utf-8"))
        names = [name for one in earlier["images"] for name in (one["page"], *one["files"])]
        known = earlier["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        known, names = False, []
    if not known:
        hint = "name a folder that is new, empty, or holds an earlier catalogue"
        raise BadInput(f"{out} holds other things than a catalogue", hint=hint)
    pages = (out / "images").resolve()
    for name in names:
        path = out / unquote(str(name))
        if pages in path.resolve().parents:
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def pull_recipes(
    image: str, cell: Mapping[str, str], *, registry: str, tag: str, digest: str, gpu: bool
) -> tuple[Recipe, ...]:
    """The commands for an image at HOST/NAMESPACE; other programs than ours take it by digest.

    `build-images pull` looks at the proof; none of the others does.
    """
    repository = f"{registry}/{cell['recipe']}"
    ours, pinned = shlex.quote(f"{repository}:{tag}"), shlex.quote(f"{repository}@{digest}")
    arch = ARCHITECTURES[cell["arch"]].oci
    # ch-image(1), --arch: it has names with the variant alone where there are variants.
    ch_arch = {"arm64": "arm64/v8"}.get(arch, arch)
    sif, folder = shlex.quote(f"{image}.sif"), shlex.quote(f"./{image}")
    sif_source = shlex.quote(f"docker://{repository}@{digest}")
    nv = f" {RUNTIMES['apptainer'].gpu}" if gpu else ""
    cdi = f" {RUNTIMES['podman'].gpu}" if gpu else ""
    gpus = f" {RUNTIMES['docker'].gpu}" if gpu else ""
    driver = [("bring the driver's libraries in", f"ch-fromhost --nvidia {folder}")] if gpu else []
    return (
        _recipe(
            "build-images, which looks at the proof",
            ("as SIF", f"build-images pull {ours} --arch {cell['arch']} --format sif"),
            (
                "for Charliecloud",
                f"build-images pull {ours} --arch {cell['arch']} --format charliecloud",
            ),
        ),
        _recipe(
            "Apptainer",
            ("pull", f"apptainer pull --arch {arch} {sif} {sif_source}"),
            ("run the checks in it", f"apptainer exec{nv} {sif} {RUN_CHECKS}"),
        ),
        _recipe(
            "Charliecloud",
            ("pull", f"ch-image pull --arch={ch_arch} {pinned} {shlex.quote(image.lower())}"),
            ("unpack", f"ch-convert {shlex.quote(image.lower())} {folder}"),
            *driver,
            ("run the checks in it", f"ch-run --set-env {folder} -- {RUN_CHECKS}"),
        ),
        _recipe(
            "Podman",
            ("pull", f"podman pull --arch={arch} {pinned}"),
            ("run the checks in it", f"podman run --rm --arch={arch}{cdi} {pinned} {RUN_CHECKS}"),
        ),
        _recipe(
            "Docker",
            ("pull", f"docker pull --platform=linux/{arch} {pinned}"),
            (
                "run the checks in it",
                f"docker run --rm --platform=linux/{arch}{gpus} {pinned} {RUN_CHECKS}",
            ),
        ),
    )


def _recipe(runtime: str, *commands: tuple[str, str]) -> Recipe:
    lines = tuple(Command(about=about, line=line) for about, line in commands)
    return Recipe(runtime=runtime, commands=lines)
