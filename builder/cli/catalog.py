"""`build-images catalog`: write a web site of the images that are built."""

from __future__ import annotations

import sys
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.cli.options import Options, Parser, add_images_in, add_output, not_empty
from builder.host.contracts import contract_from_file
from builder.model.errors import BadInput, EmptySelection, Fault, counted
from builder.model.manifest import MANIFEST, SCHEMA
from builder.reports.catalog import write_catalog
from builder.reports.catalog.entries import CatalogEntry, read_entry
from builder.reports.sites import SitePlace

_DESCRIPTION = """\
Write a web site of the images that `build-images` and `build-images verify` left in a folder: their
content and proof, and how to pull and run them. The site consists of static files, for any web
server or for a browser without one.
"""


class CatalogOptions(Options):
    """The options of `catalog`."""

    registry: str | None
    images_in: Path | None


def declare(parser: Parser) -> None:
    """Add the options of `catalog`."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--registry",
        type=not_empty,
        metavar="HOST/NAMESPACE",
        help="where the images are published, if they are",
    )
    add_output(parser, "where to write it (default: PROJECT/out/catalog)")
    add_images_in(parser, "folder with one folder for each image")


def run(options: CatalogOptions) -> int:
    """Write the site, and print the path of its first page."""
    if options.registry:
        SitePlace(registry=options.registry)  # raises BadInput if it is malformed
    source = options.images_in or options.project / "out"
    out = options.output or options.project / "out/catalog"
    entries = _entries(source)
    if not entries:
        hint = "build images, or name their folder: --images-in DIR"
        raise EmptySelection(f"no image in {source}", hint=hint)
    if out.resolve() in {
        source.resolve(),
        *((source / entry.image).resolve() for entry in entries),
    }:
        raise BadInput(f"{out} contains images; the site needs a folder of its own")
    write_catalog(entries, source, out, registry=options.registry or "")
    for entry in entries:
        for fault in entry.faults:
            print(f"{entry.image}: {fault}", file=sys.stderr)
    print(f"{counted(len(entries), 'image')}: {out / 'index.html'}")
    return 0


def _entries(source: Path) -> list[CatalogEntry]:
    """Read the entries of finished images; each image is in a folder with its name.

    Raises `BadInput` with every manifest that cannot be read.
    """
    entries, faults = [], []
    for path in sorted(source.glob(f"*/{MANIFEST}")):
        folder = path.parent
        manifest = read_manifest(folder)
        if manifest and manifest.image != folder.name:
            continue
        if manifest and (entry := read_entry(folder, manifest, contract_from_file)):
            entries.append(entry)
        elif manifest or (path.is_file() and SCHEMA in path.read_text(errors="replace")):
            text = "its format differs from the one that this version writes"
            faults.append(Fault(file=f"{folder.name}/{MANIFEST}", line=1, key="", problem=text))
    if faults:
        raise BadInput.of(faults, "no catalog was written")
    return entries
