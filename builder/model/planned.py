"""Planned and compiled values: cells, plans, specs."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from builder.facts import SystemRelease
from builder.facts.tables import Where
from builder.model.cells import DEVELOPMENT, Cell, stage_tag
from builder.model.errors import EmptySelection, counted
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCuda:
    """A cell's CUDA toolkit, and the route by which the image comes to it.

    `version` is the axis value (12.4), `update` the release in full (12.4.1), `driver` the least
    Linux driver, `shipped_driver` the one that came with the update. `images` are the bases of the
    development and the run-time stage on the route `image`, else empty. `gcc` is the host
    compiler's major version where it is not the base's own, else empty. `capabilities` are those
    that nvcc compiles for, or that the recipe's packages have code for, as plain numbers: 70;
    `has_ptx` if there is PTX of the last. `sdk` is the release of the HPC SDK on the route
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
    has_ptx: bool = True


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
        return {self.base_reference: self.base_image, self.runtime_reference: self.runtime_image}


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

    def origin_text(self, line: int) -> str:
        """Return file, line and key of the origin of a line of the Dockerfile; empty for none."""
        origin = self.origin_of(line)
        return f"{origin}{origin.key and f', {origin.key}'}" if origin else ""


_AXES = ("recipe", "base", "cuda", "mpi", "arch", "flavour", "cpu")
_VALUES = operator.attrgetter(*_AXES)
# Merged in this order: what stays apart is what reasons speak of most.
_MERGED = ("mpi", "recipe", "arch", "cpu", "flavour", "cuda", "base")
_REASONS, _COLUMNS = 8, 80  # of a screen
_VERBOSE = "--verbose shows all reasons with their cells"
_FEW = 4  # cells and reasons, a few lines each

_Product = tuple[tuple[str, ...], ...]  # values of each axis


class AllLeftOut(EmptySelection):
    """Every selected cell is left out; the message fits on a screen."""

    def __init__(self, left_out: Sequence[LeftOut], *, hint: str = "") -> None:
        pairs = [(excluded.cell, reason) for excluded in left_out for reason in excluded.reasons]
        if len(pairs) > _FEW:
            head, lines = self._head(left_out), [*on_a_screen(left_out)]
            hint = "; ".join(filter(None, [_VERBOSE, hint]))
        else:
            head = "every selected cell is left out:"
            lines = [f"  {cell.identifier}: {reason}" for cell, reason in pairs]
        super().__init__("\n".join([head, *lines]), hint=hint)
        self._left_out = left_out

    @staticmethod
    def _head(left_out: Sequence[LeftOut]) -> str:
        count = len(left_out)
        cells = "the selected cell is" if count == 1 else f"all {count} selected cells are"
        return f"{cells} left out; cells by reason:"

    def complete(self) -> str:
        """Return the message with all reasons, and the cells of each."""
        lines = [self._head(self._left_out)]
        for text, cells in by_reason((each.cell, each.reasons) for each in self._left_out):
            lines += [f"  {text}", *(f"    {each}" for each in cells)]
        return "\n".join(lines)


def on_a_screen(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Yield lines for the reasons of most cells, with their numbers: at most 17 lines."""
    from textwrap import wrap  # noqa: PLC0415 - many commands leave nothing out

    counts = Counter(reason for excluded in left_out for reason in excluded.reasons).most_common()
    width = len(str(counts[0][1])) + 2
    for reason, number in counts[:_REASONS]:
        lines = wrap(
            str(reason),
            _COLUMNS - width - 2,
            break_on_hyphens=False,
            max_lines=2 * _REASONS // min(len(counts), _REASONS),
            placeholder=" ...",
        )
        yield f"{number:{width}}  {lines[0]}"
        yield from (f"{'':{width}}  {line}" for line in lines[1:])
    if (more := len(counts) - _REASONS) > 0:
        yield f"{'':{width}}  and {counted(more, 'more reason')}"


def by_reason(left_out: Iterable[tuple[Cell, Iterable[object]]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the reasons of cells, that of most cells first, with lines that name the cells.

    An axis with all its values is omitted.
    """
    cells: dict[object, list[_Product]] = {}
    every = [set[str]() for _ in _AXES]
    for cell, reasons in left_out:
        values = _VALUES(cell)
        product = tuple((value,) for value in values)
        for known, value in zip(every, values, strict=True):
            known.add(value)
        for reason in reasons:
            cells.setdefault(reason, []).append(product)
    numbers = [len(values) for values in every]
    for reason, alike in sorted(cells.items(), key=lambda item: -len(item[1])):
        yield str(reason), [_named(product, numbers) for product in _products(alike)]


def _products(products: Iterable[_Product]) -> Iterable[_Product]:
    """Return products of axis values that contain each of these cells once, and no other cell."""
    for axis in _MERGED:
        at = _AXES.index(axis)
        merged: dict[tuple[_Product, _Product], list[str]] = {}
        for product in products:
            merged.setdefault((product[:at], product[at + 1 :]), []).extend(product[at])
        products = [(*before, tuple(values), *after) for (before, after), values in merged.items()]
    return products


def _named(product: _Product, every: Sequence[int]) -> str:
    cells = math.prod(map(len, product))
    shown = [
        f"{axis} {', '.join(few)}"
        for axis, few, number in zip(_AXES, product, every, strict=True)
        if len(few) < number
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
