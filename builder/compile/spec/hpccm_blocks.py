"""The classes of hpccm's blocks, with our own `copy` and `pip`, and objects made from them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import posixpath
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from logging.handlers import BufferingHandler
from typing import Any

import hpccm.building_blocks
import hpccm.config
import hpccm.primitives
from hpccm.building_blocks import packages
from hpccm.building_blocks.base import bb_base
from hpccm.common import linux_distro
from hpccm.primitives import comment, environment, shell
from hpccm.toolchain import toolchain

from builder.compile.spec.catalogue import DEBIAN, block_notes, notes_on, registered_block
from builder.compile.spec.quirks import adjusted, downloads, fetches, target_of
from builder.compile.spec.rules import fault, rendered_faults
from builder.model import DEVELOPMENT, FILE_ARGUMENTS, BlockUse, PlannedImage, StageRecipe
from builder.model.errors import BadInput
from builder.system.home import PIP_CONFIG

FILES = "files/project"  # folder of the project's own files in a spec
CERTIFICATES = "ca-certificates"
PRIMITIVES = ("comment", "copy", "environment", "label", "raw", "shell", "user", "workdir")
REQUIREMENTS = "/usr/local/src"  # in every distribution, and not hidden by Singularity


def block_object(use: BlockUse, image: PlannedImage) -> bb_base:
    """Return the object for a block of hpccm's, or for a site's own block.

    It gets copies of all arguments, because blocks change them: hpccm's `ucx` adds flags to its
    toolchain, and other blocks extend lists.
    """
    cls = block_classes().get(use.name) or registered_block(use.name)
    if cls is None:
        raise LookupError(f"unknown block: {use.name}")
    arguments = adjusted(use.name, deepcopy(dict(use.arguments)), target_of(image))
    if use.name == "copy" and arguments.get("from"):
        return from_development(arguments, image)
    if "toolchain" in arguments:
        arguments["toolchain"] = _toolchain(use, arguments["toolchain"], image)
    for key in FILE_ARGUMENTS.get(use.name, ()):  # the project's files in the spec's folder
        value = arguments.get(key)
        if isinstance(value, Mapping):
            arguments[key] = {f"{FILES}/{source}": dest for source, dest in value.items()}
        elif isinstance(value, list):
            arguments[key] = [f"{FILES}/{source}" for source in value]
        elif value:
            arguments[key] = f"{FILES}/{value}"
    return cls(**arguments)


def check(image: PlannedImage) -> None:
    """Raise `BadInput` with all faults of an image's blocks, whose templates are rendered."""
    if faults := [fault for use in _uses(image.stages) for fault in rendered_faults(use)]:
        raise BadInput.of(faults)


def prerequisites(image: PlannedImage, recipe: StageRecipe) -> bb_base | None:
    """Return the packages that a recipe's downloads need first; None if they need none.

    hpccm installs wget with every block except the generic ones, but certificates only with a few;
    images of Debian's family have neither. Its `packages` fetches keys with wget and gpg, but
    installs neither.
    """
    before = itertools.takewhile(lambda other: other.name != recipe.name, image.stages)
    have: set[str] = set().union(*(_needed(earlier.development, image) for earlier in before))
    return _installed(_needed(recipe.development, image) - have)


def runtime_prerequisites(image: PlannedImage, text: str) -> bb_base | None:
    """Return the packages that the run-time stage needs; `text` is its part from development."""
    needed: set[str] = set().union(*(_needed(recipe.runtime, image) for recipe in image.stages))
    return _installed(needed | (_certificates(image) if fetches(text) else set()))


def project_files(image: PlannedImage) -> dict[str, str]:
    """Return the project's files that an image's blocks copy, by path in the spec's folder."""
    return {
        f"{FILES}/{path}": text for use in _uses(image.stages) for path, text in use.files.items()
    }


def _uses(stages: Iterable[StageRecipe]) -> Iterator[BlockUse]:
    for recipe in stages:
        yield from (*recipe.development, *recipe.runtime)


_MPI_COMPILERS = {"CC": "mpicc", "CXX": "mpicxx", "FC": "mpifort", "F77": "mpif77", "F90": "mpif90"}


def _toolchain(use: BlockUse, value: object, image: PlannedImage) -> toolchain:
    """Return a toolchain from the variables in the recipe, of an earlier block, or of the MPI.

    The earlier block is constructed again, so that the toolchain is not shared.
    """
    if isinstance(value, Mapping):
        return toolchain(**value)
    mpis = (name for name, notes in block_notes().items() if notes.mpi)
    names = {*mpis} if value == "mpi" else {value}
    uses = (other for recipe in image.stages for other in recipe.development)
    before = list(itertools.takewhile(lambda other: other is not use, uses))
    earlier = [other for other in before if other.name in names]
    if not earlier and value == "mpi" and image.mpi:  # from packages: its compilers are on PATH
        return toolchain(**_MPI_COMPILERS)
    if not earlier:
        problem = f"no toolchain: no block {value} comes before this one"
        usable = {"mpi": None} if image.mpi else {}
        usable |= {o.name: None for o in before if hasattr(block_object(o, image), "toolchain")}
        valid = f"valid: {', '.join([*usable, '{CC: gcc, FC: gfortran, ...}'])}"
        raise BadInput.of([fault(use, problem, valid, argument="toolchain")])
    return block_object(earlier[-1], image).toolchain


def _needed(uses: Iterable[BlockUse], image: PlannedImage) -> set[str]:
    """Return the packages for downloads of blocks: wget for generic blocks, certificates, gnupg."""
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
    """Return the package of certificates if the base lacks it."""
    bootstrap = image.base.bootstrap
    has = bootstrap is not None and CERTIFICATES in bootstrap.packages
    return set() if has or target_of(image).family != DEBIAN else {CERTIFICATES}


def _installed(names: set[str]) -> bb_base | None:
    return packages(ospackages=sorted(names)) if names else None


# Beginnings of hpccm's messages that do not affect its text, each with the reason.
EXPLAINED = {'unrecognized CPU target "None"': "deliberate: the text is for any processor"}


@contextlib.contextmanager
def complaints() -> Iterator[list[str]]:
    """Collect hpccm's warnings and errors, each once; the list is filled at the end of the context.

    hpccm logs all of them with the root logger.
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


@functools.cache
def block_classes() -> dict[str, type]:
    """Return the blocks and primitives that every recipe can name."""
    blocks = {
        name: value
        for name, value in vars(hpccm.building_blocks).items()
        if inspect.isclass(value) and not name.startswith("_")
    }
    blocks |= {name: getattr(hpccm.primitives, name) for name in PRIMITIVES}
    return dict(sorted((blocks | {"copy": copy, "pip": pip}).items()))


class copy(hpccm.primitives.copy):  # type: ignore[misc]  # noqa: N801 - hpccm has no types
    """The `copy` block copies files of the project, or of the development stage.

    # Parameters

    dest: Path in the image.

    files: Dictionary of files of the project, each with its path in
    the image.

    from: `development` copies from the development stage, in
    `runtime` alone.

    src: File of the project, or a path in the development stage.

    # Examples
    """


def from_development(
    arguments: Mapping[str, object], image: PlannedImage
) -> hpccm.primitives.shell | hpccm.primitives.copy:
    """Return hpccm's object that copies paths of the development stage into the last stage."""
    src, dest = arguments["src"], arguments["dest"]
    if image.cell.flavour == DEVELOPMENT:  # the last stage contains the development stage
        sources = [str(path) for path in src] if isinstance(src, list) else [str(src)]
        return shell(commands=[_copied(str(dest), sources)])
    is_docker = hpccm.config.get_format() == "docker"
    stage = f"{image.stages[-1].name}-{DEVELOPMENT}" if is_docker else DEVELOPMENT
    return hpccm.primitives.copy(_from=stage, src=src, dest=dest)


def _copied(dest: str, sources: list[str]) -> str:
    """Return a command that copies paths, except those that would be copied to themselves."""
    folder = dest if dest.endswith("/") else posixpath.dirname(dest)
    others = [
        source for source in sources if posixpath.normpath(source) != posixpath.normpath(dest)
    ]
    if not others:
        return "true"
    return f"mkdir -p {shlex.quote(folder)} && cp -r {shlex.join(others)} {shlex.quote(dest)}"


class pip(bb_base):  # type: ignore[misc]  # noqa: N801 - a recipe's word, and hpccm has no types
    # It replaces hpccm's block, which installs Python 2 packages by default, ignores externally
    # managed environments (https://peps.python.org/pep-0668/), and has no run-time part.
    """The `pip` block installs Python packages from an index.

    # Parameters

    args: List of arguments of `pip`, before `install`.  The default
    is `--no-cache-dir`.

    install_args: List of arguments of `pip install`.  The default is
    an empty list.

    ospackages: List of OS packages to install first.  The default
    is what the tool needs.

    packages: List of Python packages to install.

    pip: The name of the tool.  The default is `pip3`; with `venv`, it
    is the environment's own.

    requirements: Path of a requirements file below the project's
    `files/`.

    system_site_packages: Boolean flag to let the virtual environment
    see the Python packages of the distribution.  The default is False.

    upgrade: Boolean flag to upgrade pip first.  The default is False.

    venv: Path of a virtual environment to make and to install into.
    The run-time stage gets it as well.  The default is none.

    # Examples
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._venv = kwargs.get("venv", "")
        self._path = {"PATH": f"{posixpath.join(self._venv, 'bin')}:$PATH"}
        requirements = kwargs.get("requirements", "")
        copied = posixpath.join(REQUIREMENTS, posixpath.basename(requirements))
        self += comment("pip")
        self += packages(ospackages=list(kwargs.get("ospackages", self._needed())))
        if requirements:
            self += hpccm.primitives.copy(src=requirements, dest=copied)
        commands = []
        if self._venv:
            is_open = kwargs.get("system_site_packages", False)
            options = "--system-site-packages " if is_open else ""
            commands.append(f"python3 -m venv {options}{self._venv}")
        install = self._install(kwargs)
        if kwargs.get("upgrade", False):
            commands.append(f"{install} --upgrade pip")
        if requirements:
            commands.append(f"{install} -r {copied}")
        if names := kwargs.get("packages", []):
            commands.append(f"{install} {shlex.join(names)}")
        self += shell(commands=commands)
        if self._venv:
            self += environment(variables=self._path)

    def runtime(self, _from: str = "0") -> str:
        """Return text that installs Python and copies the virtual environment, if there is one."""
        if not self._venv:
            return ""
        self.rt += comment("pip")
        self.rt += packages(ospackages=["python3"])
        self.rt += hpccm.primitives.copy(_from=_from, src=self._venv, dest=self._venv)
        self.rt += environment(variables=self._path)
        return str(self.rt)

    def _needed(self) -> list[str]:
        """Return the packages of the distribution that contain pip."""
        if hpccm.config.g_linux_distro == linux_distro.UBUNTU:
            return ["python3-venv"] if self._venv else ["python3-pip", "python3-setuptools"]
        return ["python3-pip"]

    def _install(self, kwargs: Mapping[str, Any]) -> str:
        """Return the install command; the index's configuration exists only while builds run."""
        tool = kwargs.get("pip", posixpath.join(self._venv, "bin", "pip") if self._venv else "pip3")
        options = kwargs.get("args", ["--no-cache-dir"])
        install = shlex.join([tool, *options, "install", *kwargs.get("install_args", [])])
        # Older versions of pip ignore unknown variables.
        for_system = "" if self._venv else "PIP_BREAK_SYSTEM_PACKAGES=1 "
        return f"{for_system}PIP_CONFIG_FILE={PIP_CONFIG} {install}"
