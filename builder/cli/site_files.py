"""`build-images site-files`: what a site gets ready to use."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from builder.artifacts.manifests import read_manifest
from builder.cli.commands import load_plan
from builder.model import PlannedImage
from builder.model.errors import counted
from builder.reports.sites import Place, site_files, site_image

if TYPE_CHECKING:
    from builder.cli.options import Options


def write_site_files(options: Options) -> int:
    """Write the files of the selected images, and print the folder of each."""
    given = options.site
    place = Place(registry=given.registry, folder=given.folder, gpus=given.gpus)
    images = load_plan(options).images
    digests = _digests(images, given.images or options.project / "out")
    folder = options.out
    texts = site_files([site_image(image, place, digests) for image in images])
    for name, text in texts.items():
        _write(folder / name, text)
    if rest := len(images) - len(digests):
        told = f"{counted(rest, 'image')} not built here: named by tag, and without an shpc entry"
        print(told, file=sys.stderr)
    print("\n".join(str(folder / image.identifier) for image in images))
    return 0


def _digests(images: Iterable[PlannedImage], folder: Path) -> dict[str, str]:
    """The digest of each image's OCI manifest, where it is built from these very inputs."""
    found = {}
    for image in images:
        manifest = read_manifest(folder / image.identifier)
        if manifest and manifest.content_key == image.content_key:
            found[image.identifier] = manifest.artifacts["oci"].digest
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)
