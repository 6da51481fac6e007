"""Cells, the names of axes, formats and outcomes, and selections of cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

AXES = ("arch", "base", "cuda", "mpi")
SELECTABLE = ("recipe", *AXES)
NONE = "none"
FORMATS = ("oci", "sif", "charliecloud")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

# What an image is made for: to run programs, or to build them too.
RUNTIME, DEVELOPMENT = "runtime", "development"
FLAVOURS = (RUNTIME, DEVELOPMENT)
# Compiled for every processor of the architecture, not for one of hpccm's CPU targets.
GENERIC = "generic"

# The blocks of a recipe that stand for the blocks of a cell's route, which the plan puts there.
TOOLKITS = ("cuda", "mpi")

# The arguments that name files of the project, below files/, by block.
FILE_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "conda": ("environment",),
    "copy": ("src", "files"),
    "pip": ("requirements",),
}

# Ways to a CUDA toolkit: NVIDIA's image as base, or on the plain distribution packages or wheels.
CUDA_ROUTES = {
    "image": "NVIDIA's image",
    "repository": "NVIDIA's package repository",
    "distribution": "the distribution's packages",
    "wheels": "NVIDIA's wheels on the Python package index",
}
# Libraries of CUDA that programs load, each with those that it loads itself.
CUDA_LIBRARIES: dict[str, tuple[str, ...]] = {
    "cudart": (),
    "cublas": ("nvrtc",),
    "cufft": ("nvjitlink",),
    "curand": (),
    "cusolver": ("cublas", "cusparse", "nvjitlink", "nvrtc"),
    "cusparse": ("nvjitlink",),
    "nvjitlink": (),
    "nvrtc": (),
}
# Ways to an MPI: the distribution's packages; built from source; bound in from the host.
MPI_ROUTES: tuple[str, ...] = ("package", "source", "host")
# The time that no file of an image is later than, and that build steps are told: 2000-01-01, after
# 1980, before which ZIP files, and so wheels, cannot hold a time. In seconds since 1970, UTC.
EPOCH = 946_684_800
# What a recipe takes with its toolkit where the route has it, and does without elsewhere.
OPTIONAL = "optional"


def merged_environment(known: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `known`, overridden by those of `more`.

    One that goes on from the value before it keeps that: `/cuda/bin:$PATH` after `/mpi/bin:$PATH`
    is `/cuda/bin:/mpi/bin:$PATH`.
    """
    merged = dict(known)
    for name, value in more.items():
        itself = re.compile(rf"\$(?:{re.escape(name)}\b|{{{re.escape(name)}}})")
        before = known.get(name, "")
        merged[name] = before.join(itself.split(value)) if before else value
    return merged


OWN = "localhost/build-images/"  # of no registry, so no engine looks for one elsewhere


def base_tag(digest: str) -> str:
    """Return the tag of a base by its digest (`sha256:...`)."""
    return f"{OWN}base:{digest.removeprefix('sha256:')[:32]}"


def stage_tag(key: str) -> str:
    """Return the tag of a stage by its content key."""
    return f"{OWN}stage:{key[:32]}"


def rehearsal_tag(identifier: str, stage: str) -> str:
    """Return the tag of a stage whose steps ran on a substitute for its base."""
    return f"{OWN}rehearsal-{identifier}:{stage}"


def image_tag(identifier: str, content_key: str) -> str:
    return f"{OWN}{identifier}:{content_key[:12]}"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Cell:
    """One combination of axis values for one recipe.

    `cuda` is a version or `none`; `mpi` is a family and a version (`openmpi5.0`) or `none`.
    `flavour` is runtime or development; `cpu` is generic or one of hpccm's CPU targets.
    """

    recipe: str
    recipe_version: str
    base: str
    cuda: str
    mpi: str
    arch: str
    flavour: str = RUNTIME
    cpu: str = GENERIC

    @property
    def identifier(self) -> str:
        """`hpc-base-1.0-debian13-openmpi5.0-ppc64le`: names directories and test ids."""
        return f"{self.recipe}-{self.tag}-{self.arch}"

    @property
    def tag(self) -> str:
        """`1.0-debian13-openmpi5.0`: its tag in its recipe's repository, for all architectures."""
        parts = [self.recipe_version, self.base]
        if self.cuda != NONE:
            parts.append(f"cuda{self.cuda}")
        if self.mpi != NONE:
            parts.append(self.mpi)
        if self.flavour != RUNTIME:
            parts.append(self.flavour)
        if self.cpu != GENERIC:
            parts.append(self.cpu)
        return "-".join(parts)

    def axis(self, name: str) -> str:
        """Return the value of an axis, or of `recipe`."""
        return str(getattr(self, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The user's request: patterns by axis, globs over identifiers. Empty means default.

    `flavours` and `cpu_targets` are no axes: every selected cell is taken in each of them.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    everything: bool = False
    flavours: tuple[str, ...] = (RUNTIME,)
    cpu_targets: tuple[str, ...] = (GENERIC,)
