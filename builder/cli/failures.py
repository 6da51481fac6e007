"""What `publish --attach-failures` does for images that are published already and fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from builder.artifacts.manifests import read_manifest
from builder.distribute.publish import Attest, Failing, attach_failing, failing, published_image
from builder.distribute.publish.selection import Declared
from builder.distribute.publish.unsigned import unsigned_statements
from builder.model.errors import BuildImagesError, Interrupted
from builder.registry import Registry
from builder.system.process import Processes

if TYPE_CHECKING:
    from builder.cli.options import Options

_UNSIGNED = "; nobody signed it, so no policy counts it: name a key with --key"


def told_of_failures(
    options: Options,
    declared: Sequence[Declared],
    to: Callable[[str], Registry],
    processes: Processes,
) -> list[str]:
    """Attach evidence that fails to what the registry has; a line for each image, of what was done.

    Nothing is, unless that was asked for: what failed on one machine may be that machine's fault.
    What goes wrong with one is such a line, too, and stops no other.
    """
    if not options.attach_failures:
        return []
    attest = functools.cache(lambda: _attest(options, processes))
    lines = []
    for where, recipe, one in _failing(options, declared):
        registry = to(recipe)
        evidence = f"{registry.name}@{one.digest}: {', '.join(one.evidence)}"
        try:
            done = _done(options, registry, one, attest)
        except Interrupted:
            raise
        except BuildImagesError as error:
            why = str(error.args[0]).splitlines()[0]
            lines.append(f"{where}: could not be attached to {evidence}: {why}")
        else:
            note = "" if options.key else _UNSIGNED
            lines += [f"{where}: {done} to {evidence}{note}"] if done else []
    return lines


def any_failing(options: Options, declared: Sequence[Declared]) -> bool:
    """Whether there is evidence that an image fails."""
    return any(True for _ in _failing(options, declared))


def _done(options: Options, registry: Registry, one: Failing, attest: Callable[[], Attest]) -> str:
    """What was done with the evidence of an image; nothing if it is not in the registry."""
    image = published_image(registry, one)
    if image is None:
        return ""
    if options.dry_run:
        return "would be attached"
    attach_failing(registry, image, one, attest())
    return "attached"


def _failing(options: Options, declared: Sequence[Declared]) -> Iterator[tuple[str, str, Failing]]:
    for release in declared:
        for image in release.images:
            folder = options.out / image.identifier
            if found := failing(image, folder, read_manifest(folder)):
                yield f"{release}: {image.cell.arch}", release.recipe, found


def _attest(options: Options, processes: Processes) -> Attest:
    if not options.key:
        return unsigned_statements
    from builder.distribute.publish.signing import attesting  # noqa: PLC0415 - what signs is slow to import

    return attesting(options.key, processes)
