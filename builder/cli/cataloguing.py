"""`build-images catalog`: a web site of the images that are built."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.artifacts.manifests import read_manifest
from builder.model.errors import BadInput, EmptySelection, Fault, counted
from builder.model.manifest import MANIFEST, SCHEMA, Manifest
from builder.reports.catalog import Entry, read_entry, write_catalog
from builder.reports.sites import Place

if TYPE_CHECKING:
    from builder.cli.options import Options


def catalog(options: Options) -> int:
    """Write the site, and print where it begins."""
    given = options.site
    if given.registry:
        Place(registry=given.registry, folder=given.folder)
    source = given.images or options.project / "out"
    out = options.out
    found = dict(_images(source))
    if not found:
        hint = "build some, or name their folder: --images-in DIR"
        raise EmptySelection(f"there is no image in {source}", hint=hint)
    folders = {image: source / image for image in found}
    if out.resolve() in {one.resolve() for one in (source, *folders.values())}:
        raise BadInput(f"{out} holds images; the site needs a folder of its own")
    entries = _entries(found, folders)
    write_catalog(entries, folders, out, registry=given.registry)
    for one in entries:
        for fault in one.faults:
            print(f"{one.image}: {fault}", file=sys.stderr)
    print(f"{counted(len(entries), 'image')}: {out / 'index.html'}")
    return 0


def _entries(found: Mapping[str, Manifest | None], folders: Mapping[str, Path]) -> list[Entry]:
    """What there is to show of each image; raises BadInput that names all that cannot be read."""
    entries, faults = [], []
    for image, manifest in found.items():
        entry = read_entry(folders[image], manifest) if manifest else None
        if entry:
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
