"""`build-images catalog`: a web site of the images that are built."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.cli.options import Options, Parser, add_images_in, add_output, add_project, not_empty
from builder.model.errors import BadInput, EmptySelection, Fault, counted
from builder.model.manifest import MANIFEST, SCHEMA, Manifest
from builder.reports.catalog import Entry, read_entry, write_catalog
from builder.reports.sites import Place

_DESCRIPTION = """\
Write a web site of the images in a folder, as `build-images` and `build-images verify` left them:
what is in each, what is proven, how to pull and run it. It is files alone, for any web server, or
to be opened as they are.
"""


class CatalogOptions(Options):
    """The options of `catalog`."""

    registry: str | None
    images_in: Path | None


def declare(parser: Parser) -> None:
    """Add the options of `catalog`."""
    parser.description = _DESCRIPTION
    add_project(parser)
    parser.add_argument(
        "--registry",
        type=not_empty,
        metavar="HOST/NAMESPACE",
        help="where the images are published, if they are",
    )
    add_output(parser, "where to write it (default: PROJECT/out/catalog)")
    add_images_in(parser, "the folder of the images' folders")


def run(options: CatalogOptions) -> int:
    """Write the site, and print where it begins."""
    if options.registry:
        Place(registry=options.registry)  # or it says what is wrong with it
    source = options.images_in or options.project / "out"
    out = options.output or options.project / "out/catalog"
    manifests = dict(_images(source))
    if not manifests:
        hint = "build some, or name their folder: --images-in DIR"
        raise EmptySelection(f"there is no image in {source}", hint=hint)
    folders = {image: source / image for image in manifests}
    if out.resolve() in {path.resolve() for path in (source, *folders.values())}:
        raise BadInput(f"{out} holds images; the site needs a folder of its own")
    entries = _entries(manifests, folders)
    write_catalog(entries, folders, out, registry=options.registry or "")
    for entry in entries:
        for fault in entry.faults:
            print(f"{entry.image}: {fault}", file=sys.stderr)
    print(f"{counted(len(entries), 'image')}: {out / 'index.html'}")
    return 0


def _entries(manifests: Mapping[str, Manifest | None], folders: Mapping[str, Path]) -> list[Entry]:
    """Read the entry of each image; raise BadInput with every manifest that cannot be read."""
    entries, faults = [], []
    for image, manifest in manifests.items():
        if manifest and (entry := read_entry(folders[image], manifest)):
            entries.append(entry)
        else:
            text = "it has another shape than this version writes"
            faults.append(Fault(file=f"{image}/{MANIFEST}", line=1, key="", problem=text))
    if faults:
        raise BadInput.of(faults, "no catalogue was written")
    return entries


def _images(folder: Path) -> Iterator[tuple[str, Manifest | None]]:
    """The images that are done, by identifier; a folder is named as its image.

    Of one whose manifest is damaged there is nothing, so that it is told of.
    """
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        if manifest and manifest.image == path.parent.name:
            yield path.parent.name, manifest
        elif manifest is None and path.is_file() and SCHEMA in path.read_text(errors="replace"):
            yield path.parent.name, None
