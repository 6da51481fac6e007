"""The words that stand for axes, formats and outcomes."""

from __future__ import annotations

import re
from collections.abc import Mapping

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

# Ways to a CUDA toolkit: NVIDIA's image as base; NVIDIA's package repository on the plain
# distribution; the distribution's own packages.
CUDA_ROUTES: tuple[str, ...] = ("image", "repository", "distribution")
# Ways to an MPI: the distribution's packages; built from source; bound in from the host.
MPI_ROUTES: tuple[str, ...] = ("package", "source", "host")
# The time that no file of an image is later than, and that build steps are told: 2000-01-01, after
# 1980, before which ZIP files, and so wheels, cannot hold a time. In seconds since 1970, UTC.
EPOCH = 946_684_800
# What a recipe takes with its toolkit where the route has it, and does without elsewhere.
OPTIONAL = "optional"


def merged_environment(known: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Two sets of variables, set one after the other: a value of `more` wins over one of `known`.

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
    """That of the base of a digest (`sha256:...`)."""
    return f"{OWN}base:{digest.removeprefix('sha256:')[:32]}"


def stage_tag(key: str) -> str:
    """That of the stage of a content key."""
    return f"{OWN}stage:{key[:32]}"


def rehearsal_tag(identifier: str, stage: str) -> str:
    """That of a stage of an image, as far as its steps ran on a stand-in for its base."""
    return f"{OWN}rehearsal-{identifier}:{stage}"


def image_tag(identifier: str, content_key: str) -> str:
    """That of the image of a cell."""
    return f"{OWN}{identifier}:{content_key[:12]}"
