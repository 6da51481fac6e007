"""Evidence for published images that fail, attached by `publish --attach-failures`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.distribute.publish.failing import (
    Attest,
    Failing,
    attach_failing,
    failing,
    published_image,
)
from builder.distribute.publish.proof import attest_with
from builder.distribute.publish.selection import Declared
from builder.model.errors import BuildImagesError, Interrupted
from builder.registry import Registry
from builder.system.process import Processes

_UNSIGNED = "; nobody signed it, so no policy counts it: name a key with --key"


def attach_failures(
    declared: Sequence[Declared],
    out: Path,
    to: Callable[[str], Registry],
    *,
    key: str,
    dry_run: bool,
    processes: Processes,
) -> list[str]:
    """Attach evidence that fails to what the registry has; a line for each image, of what was done.

    What goes wrong with one is such a line, too, and stops no other.
    """
    attest = functools.cache(lambda: attest_with(key, processes))
    lines = []
    for where, recipe, failure in _failing(declared, out):
        registry = to(recipe)
        evidence = f"{registry.name}@{failure.digest}: {', '.join(failure.evidence)}"
        try:
            done = _done(registry, failure, attest, dry_run=dry_run)
        except Interrupted:
            raise
        except BuildImagesError as error:
            why = str(error.args[0]).splitlines()[0]
            lines.append(f"{where}: could not be attached to {evidence}: {why}")
        else:
            note = "" if key else _UNSIGNED
            lines += [f"{where}: {done} to {evidence}{note}"] if done else []
    return lines


def any_failing(declared: Sequence[Declared], out: Path) -> bool:
    """True if there is evidence that an image fails."""
    return any(True for _ in _failing(declared, out))


def _done(registry: Registry, item: Failing, attest: Callable[[], Attest], *, dry_run: bool) -> str:
    """Attach the evidence of an image; return the outcome, empty if it is not published."""
    image = published_image(registry, item)
    if image is None:
        return ""
    if dry_run:
        return "would be attached"
    attach_failing(registry, image, item, attest())
    return "attached"


def _failing(declared: Sequence[Declared], out: Path) -> Iterator[tuple[str, str, Failing]]:
    for release in declared:
        for image in release.images:
            folder = out / image.identifier
            if failure := failing(image, folder, read_manifest(folder)):
                yield f"{release}: {image.cell.arch}", release.recipe, failure
