"""Finished images in the site's store: images with their evidence, by what they were made from."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.artifacts.manifests import read_manifest
from builder.build.inputs import program_digest
from builder.build.run import BuildSettings, Run
from builder.build.workspace import output_folder, remove
from builder.model import PlannedImage
from builder.model.digests import sha256_of_json
from builder.model.manifest import MANIFEST, Manifest
from builder.system.locks import locked

_WAITING = "waiting for another build-images that builds this image"


def take_image(run: Run, image: PlannedImage) -> bool:
    """Fill an image's output folder from the site's store; return whether the store has it."""
    if not run.shared.is_used:
        return False
    work = run.tools.home.work
    work.mkdir(parents=True, exist_ok=True)
    with (
        locked(
            work,
            f"{image.identifier}-{run.engine.name}",  # as for builders of the image
            waiting=lambda: run.progress.step(image.identifier, _WAITING),
            stopped=lambda: run.tools.processes.stopping,
        ),
        TemporaryDirectory(prefix="site-store-", dir=work) as scratch,
    ):
        taken = Path(scratch)
        if not run.shared.take(_tag(image, run.settings), taken) or read_manifest(taken) is None:
            return False
        try:
            _move(taken, run.settings.out / image.identifier)
        except OSError as error:
            run.progress.say(f"{image.identifier}: not taken from the site's store: {error}")
            return False
    return True


def _move(taken: Path, folder: Path) -> None:
    """Move an image to its output folder; the manifest is the last: it says that all is there."""
    output_folder(folder)
    remove(folder / MANIFEST)
    for path in sorted(taken.iterdir(), key=lambda path: path.name == MANIFEST):
        remove(folder / path.name)
        shutil.move(path, folder / path.name)


def share_image(run: Run, image: PlannedImage, manifest: Manifest) -> None:
    """Add a verified image to the site's store, with its evidence."""
    if run.shared.is_used and manifest.outcome == "verified":
        run.progress.step(image.identifier, "adding it to the site's store")
        folder = run.settings.out / image.identifier
        run.shared.put(_tag(image, run.settings), folder, f"image {image.identifier}")


def _tag(image: PlannedImage, settings: BuildSettings) -> str:
    content = [
        *(image.identifier, image.content_key, settings.engine, settings.epoch),
        # What another version of this program proved may be less.
        *(settings.native_tools, *settings.formats, program_digest()),
    ]
    return f"image-{sha256_of_json(content)}"
