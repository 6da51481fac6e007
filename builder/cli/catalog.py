"""`build-images catalog`: write a web site of the images that are built."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from builder.artifacts.compare import read_labels
from builder.artifacts.manifests import read_manifest
from builder.cli.options import Options, Parser, a_path
from builder.host.contracts import contract_from_file
from builder.host.records import site_hosts
from builder.host.rules import judge
from builder.load.facts import known_facts
from builder.model.errors import BadInput, EmptySelection, counted
from builder.reports.catalog import write_catalog
from builder.reports.catalog.entries import CatalogReaders, read_entries
from builder.reports.sites import SitePlace

_DESCRIPTION = """\
Write a web site of the images that `build-images` and `build-images verify` left in a folder: their
content and proof, and how to pull and run them. The site consists of static files, for any web
server or for a browser without one.
"""


class CatalogOptions(Options):
    registry: str | None
    host: Sequence[Path]
    images_in: Path | None


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    text = "where the images are published, if they are"
    parser.add_text("--registry", text, "HOST/NAMESPACE")
    text = "a host record: how images run there (repeatable; default: the project's hosts/)"
    parser.add_list("--host", text, "FILE", convert=a_path)
    parser.add_output("where to write it (default: PROJECT/out/catalog)")
    parser.add_images_in("folder with one folder for each image")


def run(options: CatalogOptions) -> int:
    """Write the site, and print the path of its first page."""
    if options.registry:
        SitePlace(registry=options.registry)  # raises BadInput if it is malformed
    source = options.images_in or options.project / "out"
    out = options.output or options.project / "out/catalog"
    known = known_facts(options.project, "no catalog was written")
    hosts = site_hosts(options.project, options.host)
    readers = CatalogReaders(
        manifest=read_manifest,
        contract=contract_from_file,
        labels=read_labels,
        answers=lambda contract: [judge(contract, host, known).at_site for host in hosts],
    )
    entries = read_entries(source, readers)
    if not entries:
        hint = "build images, or name their folder: --images-in DIR"
        raise EmptySelection(f"no image in {source}", hint=hint)
    folders = (source, *(source / entry.image for entry in entries))
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise BadInput(f"{out} contains images; the site needs a folder of its own")
    write_catalog(entries, source, out, registry=options.registry or "")
    for entry in entries:
        for fault in entry.faults:
            print(f"{entry.image}: {fault}", file=sys.stderr)
    print(f"{counted(len(entries), 'image')}: {out / 'index.html'}")
    return 0
