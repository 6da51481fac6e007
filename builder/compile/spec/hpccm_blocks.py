"""From a use of a block to hpccm's object, each with values of its own."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping

from hpccm.building_blocks import packages
from hpccm.building_blocks.base import bb_base
from hpccm.toolchain import toolchain

from builder.compile.spec.classes import block_class
from builder.compile.spec.copying import from_development
from builder.compile.spec.limits import DEBIAN
from builder.compile.spec.quirks import adjusted, downloads, fetches, target_of
from builder.compile.spec.rules import MPIS, fault, rendered_faults
from builder.model import FILE_ARGUMENTS, BlockUse, PlannedImage, StageRecipe
from builder.model.errors import BadInput, Fault

FILES = "files/project"  # where a spec's folder has the project's own files
CERTIFICATES = "ca-certificates"


def made(use: BlockUse, image: PlannedImage) -> bb_base:
    """The object of hpccm's for a block, or of a site's own.

    It gets its own copy of everything: hpccm's `ucx` adds to the flags of the toolchain that it
    is given, and others to lists.
    """
    cls = block_class(use.name)
    if cls is None:
        raise LookupError(f"there is no block {use.name}")
    given = adjusted(use.name, copy.deepcopy(dict(use.arguments)), target_of(image))
    if use.name == "copy" and given.get("from"):
        return from_development(given, image)
    if "toolchain" in given:
        given["toolchain"] = _toolchain(use, given["toolchain"], image)
    return cls(**_with_paths(use.name, given))


def check(image: PlannedImage) -> None:
    """Raise `BadInput` with every fault of the blocks of an image, their templates rendered."""
    if faults := [one for use in _uses(image.stages) for one in rendered_faults(use, image)]:
        raise BadInput.of(faults)


def refused(image: PlannedImage, problem: object) -> BadInput:
    """What hpccm raised or logged, at the block that caused it: each is tried by itself."""
    found = [one for use in _uses(image.stages) for one in _complaints_about(use, image)]
    if found:
        return BadInput.of(found)
    return BadInput(f"{image.identifier}: hpccm cannot compile it: {problem}")


def prerequisites(image: PlannedImage, recipe: StageRecipe) -> bb_base | None:
    """The packages that a recipe's downloads need first; None where the base has them.

    hpccm installs wget with each block but the generic ones, and the certificates with few of them;
    images of Debian's family have neither. Its `packages` fetches keys with wget and gpg, and
    installs none of them.
    """
    before = itertools.takewhile(lambda one: one.name != recipe.name, image.stages)
    have: set[str] = set().union(*(_needed(one.development, image) for one in before))
    return _installed(_needed(recipe.development, image) - have)


def runtime_prerequisites(image: PlannedImage, text: str) -> bb_base | None:
    """The same for the run-time stage, of which `text` is what the development blocks leave."""
    needed: set[str] = set().union(*(_needed(recipe.runtime, image) for recipe in image.stages))
    if (certificates := _certificates(image)) and fetches(text):
        needed |= certificates
    return _installed(needed)


def project_files(image: PlannedImage) -> dict[str, str]:
    """The project's own files that the blocks of an image copy, by path in the spec's folder."""
    return {
        f"{FILES}/{path}": text for use in _uses(image.stages) for path, text in use.files.items()
    }


def _uses(stages: Iterable[StageRecipe]) -> Iterator[BlockUse]:
    for recipe in stages:
        yield from (*recipe.development, *recipe.runtime)


def _complaints_about(use: BlockUse, image: PlannedImage) -> Iterator[Fault]:
    with complaints() as said:
        try:
            block = made(use, image)
            str(block)
            if hasattr(block, "runtime"):
                str(block.runtime())
        except BadInput as error:
            yield from error.faults
        except Exception as error:  # whatever hpccm raises
            yield fault(use, f"hpccm refuses this block: {error}")
    for message in said.messages:
        yield fault(use, f"hpccm warns: {message}")


def _toolchain(use: BlockUse, value: object, image: PlannedImage) -> toolchain:
    """A toolchain from the variables in the recipe, or that of a block before this one.

    That block is made anew for it, so that nobody else has the same object.
    """
    if isinstance(value, Mapping):
        return toolchain(**value)
    names = MPIS if value == "mpi" else (value,)
    earlier = [one for one in _before(use, image) if one.name in names]
    if not earlier:
        problem = f"no block {value} stands before this one, so there is no toolchain of it"
        raise BadInput.of([fault(use, problem, argument="toolchain")])
    return made(earlier[-1], image).toolchain


def _before(use: BlockUse, image: PlannedImage) -> Iterator[BlockUse]:
    for recipe in image.stages:
        for one in recipe.development:
            if one is use:
                return
            yield one


def _with_paths(name: str, given: dict[str, object]) -> dict[str, object]:
    """Names of the project's files as paths in the spec's folder."""
    for key in FILE_ARGUMENTS.get(name, ()):
        value = given.get(key)
        if isinstance(value, Mapping):
            given[key] = {f"{FILES}/{source}": dest for source, dest in value.items()}
        elif isinstance(value, list):
            given[key] = [f"{FILES}/{source}" for source in value]
        elif value:
            given[key] = f"{FILES}/{value}"
    return given


def _needed(uses: Iterable[BlockUse], image: PlannedImage) -> set[str]:
    needed = {"wget" for use in uses if _is_generic_download(use)}
    if target_of(image).family != DEBIAN:
        return needed
    certificates = _certificates(image)
    for use in uses:
        if certificates and downloads(use.name, use.arguments):
            needed |= certificates
        if _fetches_keys(use):
            needed |= {"gnupg", "wget"}
    return needed


def _is_generic_download(use: BlockUse) -> bool:
    """Return whether a block runs wget that installs none: each of the others of hpccm's does."""
    return use.name.startswith("generic_") and bool(use.arguments.get("url"))


def _fetches_keys(use: BlockUse) -> bool:
    values = [use.arguments.get(key) for key in _KEYS.get(use.name, ())]
    lists = [value for value in values if isinstance(value, list | tuple)]
    return any(str(text).startswith("https:") for texts in lists for text in texts)


_KEYS = {"packages": ("apt_keys", "apt_repositories"), "apt_get": ("keys", "repositories")}


def _certificates(image: PlannedImage) -> set[str]:
    made_here = image.base.bootstrap
    has = made_here is not None and CERTIFICATES in made_here.packages
    return set() if has or target_of(image).family != DEBIAN else {CERTIFICATES}


def _installed(names: set[str]) -> bb_base | None:
    return packages(ospackages=sorted(names)) if names else None


# Beginnings of messages that say nothing about the text that hpccm makes, each with the reason.
EXPLAINED = {
    'unrecognized CPU target "None"': "none is meant: the text is for any processor",
}


class Complaints(logging.Handler):
    """Gathers what hpccm logs; it uses the root logger for all of it."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._messages: list[str] = []

    @property
    def messages(self) -> list[str]:
        """Each message once, in order."""
        return list(dict.fromkeys(self._messages))

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith(tuple(EXPLAINED)):
            self._messages.append(" ".join(message.split()))


@contextlib.contextmanager
def complaints() -> Iterator[Complaints]:
    """Gather hpccm's warnings and errors within the block."""
    root = logging.getLogger()
    handler = Complaints()
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
