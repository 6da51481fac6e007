"""Attach evidence that published images fail (`publish --attach-failures`).

`publish` refuses an image whose newest verification failed. If the registry already has an image of
the same digest, the evidence is attached to it, so that policies of sites can refuse it. No tag of
a release is changed, nothing else is sent, and the image itself is not signed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.distribute.publish.proof import attach, attest_with, read_or_none
from builder.distribute.publish.releases import Declared, finished, has_failed, is_test_result
from builder.model import PlannedImage
from builder.model.errors import BuildImagesError, Interrupted
from builder.model.predicates import result_of
from builder.registry import Registry
from builder.system.process import Processes

_UNSIGNED = "; it is not signed, so policies ignore it: name a key with --key"


@dataclass(frozen=True, kw_only=True, slots=True)
class _FailedImage:
    """An image whose checks failed, with the statements of the failures, by file name.

    `finished` is when the last of these runs ended, ISO 8601. Inputs that changed after the build
    do not matter: the published image does not change with them.
    """

    label: str
    recipe: str
    digest: str
    evidence: Mapping[str, bytes]

    @property
    def finished(self) -> str:
        return max(map(finished, self.evidence.values()))


def attach_failures(
    declared: Sequence[Declared],
    out: Path,
    to: Callable[[str], Registry],
    *,
    key: str,
    dry_run: bool,
    processes: Processes,
) -> list[str]:
    """Attach evidence of failures to published images; return a line for each image.

    An error for one image becomes its line; the other images are still processed.
    """
    attest = functools.cache(lambda: attest_with(key, processes))
    note = "" if key else _UNSIGNED
    lines = []
    for image in _failed_images(declared, out):
        registry = to(image.recipe)
        target = f"{registry.name}@{image.digest}: {', '.join(image.evidence)}"
        try:
            published = read_or_none(registry, image.digest)
            if published is None:
                continue
            if not dry_run:
                statements = list(image.evidence.values())
                prove = partial(attest(), registry, published[0], statements, image.finished)
                attach(registry, image.digest, prove)
        except Interrupted:
            raise
        except BuildImagesError as error:
            reason = str(error.args[0]).splitlines()[0]
            lines.append(f"{image.label}: evidence could not be attached to {target}: {reason}")
        else:
            done = "would be attached" if dry_run else "attached"
            lines.append(f"{image.label}: evidence {done} to {target}{note}")
    return lines


def any_failing(declared: Sequence[Declared], out: Path) -> bool:
    """Return whether there is evidence that an image fails."""
    return any(True for _ in _failed_images(declared, out))


def _failed_images(declared: Sequence[Declared], out: Path) -> Iterator[_FailedImage]:
    for release in declared:
        for image in release.images:
            folder = out / image.identifier
            if (manifest := read_manifest(folder)) is None:
                continue
            digest = manifest.artifacts["oci"].digest
            statements = {name: _failed(folder / name, image, digest) for name in manifest.evidence}
            if evidence := {name: content for name, content in statements.items() if content}:
                yield _FailedImage(
                    label=f"{release}: {image.cell.arch}",
                    recipe=release.recipe,
                    digest=digest,
                    evidence=evidence,
                )


def _failed(file: Path, image: PlannedImage, digest: str) -> bytes:
    """Return the bytes of a statement that an image fails; empty if the file has none."""
    try:
        content = file.read_bytes()
        statement = json.loads(content)
        finished(content)
        if is_test_result(statement):
            result = result_of(statement)
            is_of_image = result.subjects.get(f"{image.identifier}/oci") == digest
            return content if has_failed(result.lists) and is_of_image else b""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # `ready` reports unreadable files
    return b""
