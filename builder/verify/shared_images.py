"""Finished images in the site's store: images with their evidence, by what they were made from."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import compress
from pathlib import Path

from builder.artifacts.compare import CONTENTS, keep_previous
from builder.artifacts.manifests import read_manifest
from builder.build.base_store import base_key
from builder.build.inputs import program_digest
from builder.build.mirror import find_mirror, mirror_of
from builder.build.run import Run
from builder.build.workspace import FAILED_STEP, SPEC_FILES, output_folder, remove
from builder.compile.spec import base_archive
from builder.model import PlannedImage, Spec
from builder.model.digests import sha256_of_json
from builder.model.errors import Interrupted, MissingPrerequisite, counted
from builder.model.manifest import FILES, LOG, MANIFEST, SBOM, Manifest
from builder.system.files import temporary_folder
from builder.system.locks import locked
from builder.system.threads import in_threads
from builder.verify.finished_images import proven_state
from builder.verify.targets import digests_of

EVIDENCE = "evidence"


def take_images(run: Run, specs: Sequence[Spec], *, jobs: int) -> list[Spec]:
    """Fill the output folders of images from the site's store; return those that it lacks.

    `specs` are of images that are not finished. Those that are only to be verified stay as they
    are, and all without a cache.
    """
    if not (run.shared.is_used and run.settings.cache):
        return list(specs)
    run.progress.say(f"looking for {counted(len(specs), 'image')} in the site's store")
    is_lacking = in_threads(partial(_lacks, run), specs, jobs=jobs, stop=run.stop)
    return [*compress(specs, is_lacking)]


def _lacks(run: Run, spec: Spec) -> bool:
    """Return whether an image could not be taken from the site's store."""
    settings = run.settings
    try:
        state = proven_state(settings.out, spec.image, settings, digests_of(spec.files))
        return not (state.work == "build" and take_image(run, spec.image))
    except OSError as error:  # the build of the image meets it, too, and reports it
        run.progress.say(f"{spec.image.identifier}: not taken from the site's store: {error}")
        return True


def take_image(run: Run, image: PlannedImage) -> bool:
    """Fill an image's output folder from the site's store; return whether the store has it.

    If another builder is at work on the image, this run waits for that one's image. Without a
    mirror it is unknown which base the image would have, and nothing is taken.
    """
    try:
        tag = image_tag(run, image, _expected_base(run, image))
    except MissingPrerequisite:
        return False
    work, name = run.tools.home.work, f"{image.identifier}-{run.engine.name}"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(work, name, stopped=lambda: True))
        except Interrupted:
            return False
        if not take_entry(run, image, tag):
            return False
    run.progress.say(f"{image.identifier}: from the site's store")
    return True


def take_entry(run: Run, image: PlannedImage, tag: str) -> bool:
    """Fill an image's output folder with an entry; return whether the store has all of it."""
    with temporary_folder(run.tools.home.work, "site-store-") as taken:
        if not run.shared.take(tag, taken) or read_manifest(taken) is None:
            return False
        _move(taken, run.settings.out / image.identifier)
    return True


def find_packed(run: Run, image: PlannedImage) -> str:
    """Return the digest of the entry of an image that was packed before; empty for none."""
    try:
        return run.shared.digest(image_tag(run, image, _expected_base(run, image), "packed"))
    except MissingPrerequisite:
        return ""


def _move(taken: Path, folder: Path) -> None:
    """Move an image to its output folder; the manifest is the last: it says that all is there."""
    output_folder(folder)
    keep_previous(folder)
    for name in (FAILED_STEP, *FILES.values(), EVIDENCE):  # those of an older image
        remove(folder / name)
    for path in sorted(taken.iterdir(), key=lambda path: path.name == MANIFEST):
        remove(folder / path.name)
        shutil.move(path, folder / path.name)


def share_image(run: Run, spec: Spec, manifest: Manifest) -> None:
    """Add a verified image to the site's store, with its evidence."""
    if run.shared.is_used and manifest.outcome == "verified":
        put_image(run, spec, manifest, "image")


def put_image(run: Run, spec: Spec, manifest: Manifest, kind: str) -> str:
    """Add an image from its output folder; return the digest of the entry, empty after a failure.

    `kind` is "image" for one that is verified, else "packed".
    """
    image = spec.image
    run.progress.step(image.identifier, "adding it to the site's store")
    names = {
        *(MANIFEST, SBOM, EVIDENCE, CONTENTS, LOG, base_archive(image)),
        *(FILES[name] for name in manifest.artifacts),
        *(*SPEC_FILES, "files"),
    }
    folder = run.settings.out / image.identifier
    tag = image_tag(run, image, manifest.inputs.base.key, kind)
    run.shared.put(tag, folder, f"{kind} {image.identifier}", names=names)
    return run.shared.added.get(tag, "")


def _expected_base(run: Run, image: PlannedImage) -> str:
    """Return the key of the base that the image would be built on; empty for a registry's.

    It covers the mirror: one may have security updates, and another none.
    """
    if not image.is_bootstrapped:
        return ""
    mirror = mirror_of(image.base, lambda: run.mirror or find_mirror())
    return base_key(image.base, image.cell.arch, mirror)


def image_tag(run: Run, image: PlannedImage, base: str, kind: str = "image") -> str:
    """Return the tag of an image's entry; `base` is the key of the base that it is built on."""
    settings = run.settings
    content = [
        *(image.identifier, image.content_key, settings.engine, settings.epoch),
        # Another version of this program may have proved less.
        *(settings.native_tools, *settings.formats, base, program_digest()),
    ]
    return f"{kind}-{sha256_of_json(content)}"
