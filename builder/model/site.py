"""The sources of a project's files and inputs: its layers, and `site.yaml` of its site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.model.cells import MPI_ROUTES

SHIPPED, SITE, PROJECT = "shipped", "site", "project"  # names of layers, the lowest first
RUN_CHECKS = "tests/images/run-checks"
PACKED = ".layers"  # the lower layers of a project that was packed for another machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A folder with recipes, base images, checks, a matrix: the shipped one, a site's, a project's.

    `name` is `shipped`, `site` or `project`.
    """

    name: str
    folder: Path

    def shown(self, path: str) -> str:
        """Return the name of its file in messages; a project's own file has no prefix."""
        return path if self.name == PROJECT else f"{self.name}:{path}"


def layer_of(file: str) -> str:
    """Return the name of the layer of a file, from its name in messages."""
    name, colon, _ = file.partition(":")
    return name if colon and name in {SHIPPED, SITE} else PROJECT


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """The folders that a project's files come from, the lowest first; the last is its own.

    A file, and what a file declares, replaces what a lower layer has under the same name. `shipped`
    is the folder of the program's files, also where it is not among the layers.
    """

    each: tuple[Layer, ...]
    shipped: Path = Path()

    @property
    def own(self) -> Layer:
        """The project's own layer."""
        return self.each[-1]

    def upto(self, name: str) -> Layers:
        """Return a layer and those below it, which are all that its files may refer to."""
        names = [layer.name for layer in self.each]
        return replace(self, each=self.each[: names.index(name) + 1])

    def holders(self, path: str) -> list[Layer]:
        """Return the layers that have a file, a folder or a broken link, the lowest first."""
        paths = {layer: layer.folder / path for layer in self.each}
        return [layer for layer, own in paths.items() if own.exists() or own.is_symlink()]

    def find(self, path: str) -> Path:
        """Return the file of the highest layer that has it, else the path in the project."""
        return [self.own, *self.holders(path)][-1].folder / path

    @property
    def run_checks(self) -> Path:
        """The script that runs the checks in an image; the shipped one if no layer has it."""
        has_own = self.holders(RUN_CHECKS)
        return self.find(RUN_CHECKS) if has_own else self.shipped / RUN_CHECKS


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJobs:
    """The Slurm jobs of a pool: options of sbatch, the number, shell lines before a worker."""

    options: tuple[str, ...] = ()
    workers: int = 1
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePool:
    """Workers of a site that are alike: their architecture, those that they build for, their GPUs.

    Without `builds`, they build for their own architecture only.
    """

    arch: str
    builds: tuple[str, ...] = ()
    gpus: int = 0
    slurm: SlurmJobs | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """Files that a scheduler and its workers prove themselves with, as absolute paths."""

    ca: str
    certificate: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """`site.yaml`: what differs from site to site; only its `layer` changes images' content.

    `registries` maps a registry (`docker.io`) to the mirror that stands in for it, and `mirrors` a
    base to its own: URLs of a Debian archive, or a repository. `sources` are
    URLs of folders that mirror source files, `packages` those of package repositories by base.
    Routes are tried in their order; without one for CUDA, the release decides. `shared` is a folder
    that this machine's users share; empty for the usual one. `layer` is the folder with the site's
    recipes, bases and checks; empty for none. `store` is the folder or the repository where several
    machines share what they build; empty for none. `pools` are the workers of other machines, by
    name, and `security` the files for TLS with their scheduler.
    """

    registries: Mapping[str, str] = field(default_factory=dict)
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cuda_routes: tuple[str, ...] = ()
    mpi_routes: tuple[str, ...] = MPI_ROUTES
    shared: str = ""
    layer: str = ""
    store: str = ""
    pools: Mapping[str, SitePool] = field(default_factory=dict)
    security: TlsFiles | None = None


def mirrored_part(reference: str, registries: Iterable[str]) -> str:
    """Return the registry or namespace of an image reference that the site mirrors; empty if none.

    A namespace (`docker.io/nvidia`) comes before its whole registry, and the reference itself,
    without a digest, before both.
    """
    parts = (part for part in registries if re.match(rf"{re.escape(part)}(/|@|$)", reference))
    return max(parts, key=len, default="")


def at_digest(reference: str, digest: str) -> str:
    """Return `name@sha256:...`, or the reference itself without a digest.

    The tag is left out: not every engine takes a reference that has both.
    """
    folder, slash, name = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}@{digest}" if digest else reference


def at_mirror(reference: str, registries: Mapping[str, str]) -> str:
    """Return an image reference with its registry or namespace replaced by its mirror."""
    part = mirrored_part(reference, registries)
    return registries[part] + reference.removeprefix(part) if part else reference
