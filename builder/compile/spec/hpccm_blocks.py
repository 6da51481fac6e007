"""From a use of a block to hpccm's object, each with values of its own."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from logging.handlers import BufferingHandler

from hpccm.building_blocks import packages
from hpccm.building_blocks.base import bb_base
from hpccm.toolchain import toolchain

from builder.compile.spec.blocks import DEBIAN, block_notes, notes_on
from builder.compile.spec.catalogue import registered_block
from builder.compile.spec.own_blocks import block_classes, from_development
from builder.compile.spec.quirks import adjusted, downloads, fetches, target_of
from builder.compile.spec.rules import fault, rendered_faults
from builder.model import FILE_ARGUMENTS, BlockUse, PlannedImage, StageRecipe
from builder.model.errors import BadInput

FILES = "files/project"  # where a spec's folder has the project's own files
CERTIFICATES = "ca-certificates"


def block_object(use: BlockUse, image: PlannedImage) -> bb_base:
    """The object of hpccm's for a block, or of a site's own.

    It gets its own copy of everything: hpccm's `ucx` adds to the flags of the toolchain that it
    is given, and others to lists.
    """
    cls = block_classes().get(use.name) or registered_block(use.name)
    if cls is None:
        raise LookupError(f"there is no block {use.name}")
    arguments = adjusted(use.name, copy.deepcopy(dict(use.arguments)), target_of(image))
    if use.name == "copy" and arguments.get("from"):
        return from_development(arguments, image)
    if "toolchain" in arguments:
        arguments["toolchain"] = _toolchain(use, arguments["toolchain"], image)
    for key in FILE_ARGUMENTS.get(use.name, ()):  # the project's files, in the spec's folder
        value = arguments.get(key)
        if isinstance(value, Mapping):
            arguments[key] = {f"{FILES}/{source}": dest for source, dest in value.items()}
        elif isinstance(value, list):
            arguments[key] = [f"{FILES}/{source}" for source in value]
        elif value:
            arguments[key] = f"{FILES}/{value}"
    return cls(**arguments)


def check(image: PlannedImage) -> None:
    """Raise `BadInput` with every fault of the blocks of an image, their templates rendered."""
    if faults := [fault for use in _uses(image.stages) for fault in rendered_faults(use)]:
        raise BadInput.of(faults)


def prerequisites(image: PlannedImage, recipe: StageRecipe) -> bb_base | None:
    """The packages that a recipe's downloads need first; None where the base has them.

    hpccm installs wget with each block but the generic ones, and the certificates with few of them;
    images of Debian's family have neither. Its `packages` fetches keys with wget and gpg, and
    installs none of them.
    """
    before = itertools.takewhile(lambda other: other.name != recipe.name, image.stages)
    have: set[str] = set().union(*(_needed(earlier.development, image) for earlier in before))
    return _installed(_needed(recipe.development, image) - have)


def runtime_prerequisites(image: PlannedImage, text: str) -> bb_base | None:
    """The same for the run-time stage, of which `text` is what the development blocks leave."""
    needed: set[str] = set().union(*(_needed(recipe.runtime, image) for recipe in image.stages))
    return _installed(needed | (_certificates(image) if fetches(text) else set()))


def project_files(image: PlannedImage) -> dict[str, str]:
    """The project's own files that the blocks of an image copy, by path in the spec's folder."""
    return {
        f"{FILES}/{path}": text for use in _uses(image.stages) for path, text in use.files.items()
    }


def _uses(stages: Iterable[StageRecipe]) -> Iterator[BlockUse]:
    for recipe in stages:
        yield from (*recipe.development, *recipe.runtime)


def _toolchain(use: BlockUse, value: object, image: PlannedImage) -> toolchain:
    """A toolchain from the variables in the recipe, or that of a block before this one.

    That block is made anew for it, so that nobody else has the same object.
    """
    if isinstance(value, Mapping):
        return toolchain(**value)
    mpis = (name for name, notes in block_notes().items() if notes.mpi)
    names = {*mpis} if value == "mpi" else {value}
    uses = (other for recipe in image.stages for other in recipe.development)
    before = itertools.takewhile(lambda other: other is not use, uses)
    earlier = [other for other in before if other.name in names]
    if not earlier:
        problem = f"no block {value} stands before this one, so there is no toolchain of it"
        raise BadInput.of([fault(use, problem, argument="toolchain")])
    return block_object(earlier[-1], image).toolchain


def _needed(uses: Iterable[BlockUse], image: PlannedImage) -> set[str]:
    """The packages that the downloads of some blocks need. Only generic blocks bring no wget."""
    needed: set[str] = set()
    for use in uses:
        if use.name.startswith("generic_") and use.arguments.get("url"):
            needed |= {"wget"}
        if target_of(image).family == DEBIAN:
            if downloads(use.name, use.arguments):
                needed |= _certificates(image)
            if _fetches_keys(use):
                needed |= {"gnupg", "wget"}
    return needed


def _fetches_keys(use: BlockUse) -> bool:
    values = [use.arguments.get(key) for key in notes_on(use.name).keys]
    lists = [value for value in values if isinstance(value, list | tuple)]
    return any(str(text).startswith("https:") for texts in lists for text in texts)


def _certificates(image: PlannedImage) -> set[str]:
    """The package of certificates, where the base lacks it."""
    bootstrap = image.base.bootstrap
    has = bootstrap is not None and CERTIFICATES in bootstrap.packages
    return set() if has or target_of(image).family != DEBIAN else {CERTIFICATES}


def _installed(names: set[str]) -> bb_base | None:
    return packages(ospackages=sorted(names)) if names else None


# Beginnings of messages that say nothing about the text that hpccm makes, each with the reason.
EXPLAINED = {
    'unrecognized CPU target "None"': "none is meant: the text is for any processor",
}


@contextlib.contextmanager
def complaints() -> Iterator[list[str]]:
    """Gather hpccm's warnings and errors within the block, each once; they are there after it.

    It uses the root logger for all of them.
    """
    root, handler = logging.getLogger(), BufferingHandler(capacity=sys.maxsize)
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)
    messages: list[str] = []
    try:
        yield messages
    finally:
        root.removeHandler(handler)
        texts = (" ".join(record.getMessage().split()) for record in handler.buffer)
        messages += dict.fromkeys(text for text in texts if not text.startswith(tuple(EXPLAINED)))
