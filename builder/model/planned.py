"""Planned and compiled values: cells, plans, specs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from builder.facts import SystemRelease
from builder.facts.tables import Where
from builder.model.cells import DEVELOPMENT, Cell, stage_tag
from builder.model.inputs import BaseImage, BlockUse, LockedSource, PackagedCuda


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecipe:
    """A recipe with its templates rendered for one cell.

    `checks` are those that it adds to its ancestors'; their programs are made in its stage.
    `sources` maps a name to URLs of a file, the first choice first. `command` and `entrypoint` are
    words that the image runs. `where` is the recipe's place.
    """

    name: str
    version: str
    about: str
    where: Where
    development: tuple[BlockUse, ...]
    runtime: tuple[BlockUse, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    checks: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCheck:
    """A check with its templates rendered for one cell; `sources` maps file names to texts."""

    name: str
    where: Where
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
class PlannedCuda:
    """A cell's CUDA toolkit, and the route by which the image comes to it.

    `version` is the axis value (12.4), `update` the release in full (12.4.1), `driver` the least
    Linux driver, `shipped_driver` the one that came with the update. `images` are the bases of the
    development and the run-time stage on the route `image`, else empty. `gcc` is the host
    compiler's major version where it is not the base's own, else empty. `capabilities` are those
    that nvcc compiles for, as plain numbers: 70. `sdk` is the release of the HPC SDK on the route
    `sdk`, else empty. `first` are commands before any other in `images`.
    `notes` say why it is not another route.
    """

    version: str
    update: str
    driver: str
    route: str
    capabilities: tuple[str, ...]
    packages: PackagedCuda
    shipped_driver: str = ""
    images: tuple[str, str] | None = None
    gcc: str = ""
    first: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sdk: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMpi:
    """A cell's MPI. `version` is upstream's; packages are empty but on the route `package`.

    `library` is the name of the library that programs are linked to (`libmpi.so.40`), `pmix` the
    PMIx by which it is started (`4.2`); what is not known, or is not there, is empty.
    """

    family: str
    version: str
    route: str
    library: str = ""
    pmix: str = ""
    development: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedImage:
    """A selected cell, ready to be compiled: everything that decides what its image holds.

    `base_image` names the base as the specs write it, and `runtime_image` that of the run-time
    stage; `base_reference` and `runtime_reference` are the same without a site's mirror.
    `content_key` is a SHA-256 in
    hexadecimal over all of it and over the versions of hpccm and of this package. `decided` says, a
    line each, what decided base, packages and flags. `sources` are what the lock has for the
    recipes of its chain. `system` is what is known of the base's distribution, if anything is.
    `layers` has the layer that each recipe, base, axis and check is from, by kind and name; it is
    empty in a project that inherits nothing.
    """

    cell: Cell
    base: BaseImage
    base_image: str
    runtime_image: str
    base_reference: str
    runtime_reference: str
    mpi: PlannedMpi | None
    cuda: PlannedCuda | None
    stages: tuple[StageRecipe, ...]
    checks: tuple[StageCheck, ...]
    content_key: str
    decided: tuple[str, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    system: SystemRelease | None = None
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def identifier(self) -> str:
        return self.cell.identifier

    @property
    def prepare(self) -> tuple[str, ...]:
        """The first commands of each stage that starts from a base."""
        return (*(self.cuda.first if self.cuda else ()), *self.base.prepare)

    @property
    def command(self) -> tuple[str, ...]:
        """The default command: the recipe's or its nearest ancestor's."""
        return next((stage.command for stage in reversed(self.stages) if stage.command), ())

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """The entry point, of the same recipe or ancestor."""
        return next((stage.entrypoint for stage in reversed(self.stages) if stage.entrypoint), ())

    @property
    def is_bootstrapped(self) -> bool:
        """True if the base is made here, and not fetched from a registry."""
        return self.base.bootstrap is not None and not (self.cuda and self.cuda.images)

    @property
    def final_reference(self) -> str:
        """The base of the stage that becomes the image, without a site's mirror."""
        if self.cell.flavour == DEVELOPMENT:
            return self.base_reference
        return self.runtime_reference

    @property
    def registry_bases(self) -> Mapping[str, str]:
        """The images of registries that its stages start from: what specs call each, by reference.

        The reference is the one without a site's mirror; there is none where the base is made here.
        """
        if self.is_bootstrapped:
            return {}
        return {
            self.base_reference: self.base_image,
            self.runtime_reference: self.runtime_image,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyedStage:
    """One stage of a Dockerfile, with the content key that decides whether it is built anew.

    `target` is its name in the Dockerfile. `name` names it in every image that has it, whatever
    its recipe says today; `parts` are what its key (SHA-256, hexadecimal) covers.
    """

    target: str
    name: str
    parts: Mapping[str, str]
    key: str

    @property
    def tag(self) -> str:
        """The engine's name for the stage's image."""
        return stage_tag(self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a cell is left out. `layer` is who says so: the world, the base image, the maintainer."""

    layer: str
    text: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A cell that is not built, with every reason for it."""

    cell: Cell
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The selected images in build order, and the cells that were asked for but are left out."""

    images: tuple[PlannedImage, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Lines of a Dockerfile, from `first` to `last`, and where in the project they come from."""

    first: int
    last: int
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """The text compiled for a cell. `files` are the texts that the specs copy in, by path.

    `sources` are the files from elsewhere that they copy in, each at its `in_context`. `origins`
    are those of the Dockerfile's lines.
    """

    image: PlannedImage
    dockerfile: str
    singularity: str
    files: Mapping[str, str]
    sources: tuple[LockedSource, ...] = ()
    origins: tuple[Origin, ...] = ()

    def origin_of(self, line: int) -> Where | None:
        """Return where a line of the Dockerfile comes from; None for its comments at the top."""
        places = (each.where for each in self.origins if each.first <= line <= each.last)
        return next(places, None)


MANY = 50  # cells that are left out: with their reasons, a screenful or two
_AXES = ("recipe", "base", "cuda", "mpi", "arch", "flavour", "cpu")
# Merged in this order: what stays apart is what reasons speak of most.
_MERGED = ("mpi", "recipe", "arch", "cpu", "flavour", "cuda", "base")

Values = Mapping[str, tuple[str, ...]]


def by_reason(left_out: Sequence[LeftOut]) -> Iterator[tuple[str, list[str]]]:
    """Yield each reason with lines that name its cells; an axis with all its values is omitted."""
    cells: dict[str, list[Cell]] = {}
    for excluded in left_out:
        for reason in excluded.reasons:
            cells.setdefault(str(reason), []).append(excluded.cell)
    every = {axis: {excluded.cell.axis(axis) for excluded in left_out} for axis in _AXES}
    for text, alike in cells.items():
        yield text, [_named(product, every) for product in _products(alike)]


def _products(cells: Iterable[Cell]) -> list[Values]:
    """Return products of axis values that contain each of the cells once, and no other cell."""
    products: list[Values] = [{axis: (cell.axis(axis),) for axis in _AXES} for cell in cells]
    for axis in _MERGED:
        merged: dict[tuple[tuple[str, ...], ...], dict[str, tuple[str, ...]]] = {}
        for values in products:
            rest = tuple(texts for name, texts in values.items() if name != axis)
            known = merged.setdefault(rest, {**values, axis: ()})
            known[axis] += values[axis]
        products = list(merged.values())
    return products


def _named(values: Values, every: Mapping[str, set[str]]) -> str:
    cells = 1
    for texts in values.values():
        cells *= len(texts)
    shown = [
        f"{axis} {', '.join(few)}" for axis, few in values.items() if len(few) < len(every[axis])
    ]
    count = "1 cell" if cells == 1 else f"{cells} cells"
    return f"{count}: {'; '.join(shown)}" if shown else f"all {count}"


# The scripts of the SIFs that are packed here: what `apptainer run` and `apptainer test` start.
RUNSCRIPT = 'if [ $# -gt 0 ]; then exec "$@"; else exec /bin/bash; fi'
TEST = "/opt/build-images/run-checks"
OWN_RUN = "/opt/build-images/run"  # of an image whose recipe says what it runs
OWN_RUNSCRIPT = f'exec {OWN_RUN} "$@"'


def environment_text(environment: Mapping[str, str]) -> str:
    """Return the file with an image's variables, a line each.

    ch-run takes single quotes away that stand around a value: https://hpc.github.io/charliecloud/ch-run.html
    """
    return "".join(f"{key}={_requoted(value)}\n" for key, value in environment.items())


def _requoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] == "'"
    return f"'{value}'" if is_quoted else value
