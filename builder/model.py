"""The values that pass between the stages, in the words of the glossary (docs/architecture.md).

All are frozen. Mappings are never changed after construction. Architectures are spelled as
`uname -m` does: x86_64, ppc64le, aarch64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AXES = ("arch", "base", "cuda", "mpi")
SELECTABLE = ("recipe", *AXES)
NONE = "none"
FORMATS = ("oci", "sif", "charliecloud")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """A place in an input file: `file` is relative to the project's root, `key` a key path."""

    file: str
    line: int
    key: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockUse:
    """One hpccm building block or primitive of a recipe, with arguments that may hold templates.

    `lines` gives the line of each argument, by name.
    """

    name: str
    arguments: Mapping[str, Any]
    where: Where
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One file under `recipes/`. `limits` narrows axes for this recipe and its children."""

    name: str
    version: str
    about: str
    parent: str | None
    limits: Mapping[str, tuple[str, ...]]
    development: tuple[BlockUse, ...]
    runtime: tuple[BlockUse, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    checks: tuple[str, ...]
    where: Where
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """How mmdebstrap makes a base's root file system from a Debian mirror.

    `pockets` are suites beside the release itself: `updates`, `security`, `backports`.
    """

    suite: str
    components: tuple[str, ...]
    packages: tuple[str, ...]
    keyring: str
    pockets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedMpi:
    """An MPI that a base's distribution packages. `version` is upstream's, without revision."""

    family: str
    version: str
    development: tuple[str, ...]
    runtime: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """One file under `base-images/`.

    Its root file system comes from `bootstrap`, or from a registry: `references` maps an
    architecture to an image reference. `hpccm_distro` is what hpccm is told (Debian is given as
    the Ubuntu release nearest to it, for hpccm knows no Debian).
    """

    name: str
    about: str
    distribution: str
    version: str
    hpccm_distro: str
    architectures: tuple[str, ...]
    bootstrap: Bootstrap | None
    references: Mapping[str, str]
    mpi: tuple[PackagedMpi, ...]
    cuda: tuple[str, ...]
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One test that runs inside the container, from `tests/images/checks.yaml`.

    `sources` are files beside it. `build` are commands of the development stage that make the
    program `$OUT/<name>` from `$SRC`. `run` is the command inside the image: exit status 0 is
    passed, 77 skipped (Automake's convention), anything else failed; its last line of standard
    output is the reason or the finding. `needs` names what must be there: mpi, gpu.
    """

    name: str
    about: str
    sources: tuple[str, ...]
    build: tuple[str, ...]
    run: str
    needs: tuple[str, ...]
    timeout_s: int
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclude:
    """Cells that the maintainer leaves out: `when` maps axes (and `recipe`) to patterns."""

    when: Mapping[str, tuple[str, ...]]
    reason: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """`matrix.yaml`: the values of each axis in order, what is excluded, the default selection."""

    axes: Mapping[str, tuple[str, ...]]
    excludes: tuple[Exclude, ...]
    default: Mapping[str, tuple[str, ...]]
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """All input files of a project, loaded and free of faults. Names are in file order."""

    root: Path
    matrix: Matrix
    recipes: Mapping[str, Recipe]
    bases: Mapping[str, BaseImage]
    checks: Mapping[str, Check]

    def chain(self, recipe: str) -> tuple[Recipe, ...]:
        """A recipe's ancestors and itself, the oldest first."""
        found: list[Recipe] = []
        name: str | None = recipe
        while name is not None:
            found.append(self.recipes[name])
            name = found[-1].parent
        return tuple(reversed(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What the user asked for: patterns by axis, globs over identifiers. Empty means default."""

    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    everything: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Cell:
    """One combination of axis values for one recipe.

    `cuda` is a version or `none`; `mpi` is a family and a version (`openmpi5.0`) or `none`.
    """

    recipe: str
    recipe_version: str
    base: str
    cuda: str
    mpi: str
    arch: str

    @property
    def identifier(self) -> str:
        """`hpc-base-1.0-debian13-openmpi5.0-ppc64le`: names directories, tags and test ids."""
        parts = [self.recipe, self.recipe_version, self.base]
        if self.cuda != NONE:
            parts.append(f"cuda{self.cuda}")
        if self.mpi != NONE:
            parts.append(self.mpi)
        return "-".join([*parts, self.arch])

    def axis(self, name: str) -> str:
        """The value of an axis, or of `recipe`."""
        return str(getattr(self, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecipe:
    """A recipe with its templates rendered for one cell.

    `checks` are those that it adds to its ancestors'; their programs are made in its stage.
    """

    name: str
    version: str
    about: str
    development: tuple[BlockUse, ...]
    runtime: tuple[BlockUse, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    checks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCheck:
    """A check with its templates rendered for one cell; `sources` maps file names to texts."""

    name: str
    about: str
    sources: Mapping[str, str]
    build: tuple[str, ...]
    run: str
    needs: tuple[str, ...]
    timeout_s: int

    @property
    def needs_gpu(self) -> bool:
        return "gpu" in self.needs


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedImage:
    """A selected cell, ready to be compiled: everything that decides what its image holds.

    `base_image` names the base as the specs write it. `content_key` is a SHA-256 in hexadecimal
    over all of it and over the versions of hpccm and of this package.
    """

    cell: Cell
    base: BaseImage
    base_image: str
    mpi: PackagedMpi | None
    stages: tuple[StageRecipe, ...]
    checks: tuple[StageCheck, ...]
    content_key: str

    @property
    def identifier(self) -> str:
        return self.cell.identifier


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A cell that is not built, with every reason for it."""

    cell: Cell
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The selected images in build order, and the cells that were asked for but are left out."""

    images: tuple[PlannedImage, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The text compiled for a cell. `files` are the texts that the specs copy in, by path."""

    image: PlannedImage
    dockerfile: str
    singularity: str
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A built thing on disk. `format` is oci, sif or charliecloud; `size` counts bytes.

    `digest` is `sha256:…`: of the manifest for an OCI layout, of the file for the others.
    `tree_digest` is the hash over the root file system in it.
    """

    format: str
    path: Path
    digest: str
    size: int
    tree_digest: str = ""
    duration_s: float = 0.0


PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one check found in one format. `outcome` is passed, failed or skipped.

    `reason` is one line: the finding, why it failed, or why it was skipped. `data` holds
    measured values where the check printed any; `output` the end of what it printed.
    """

    check: str
    outcome: str
    reason: str
    duration_s: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
