"""Read the YAML files of a project into typed values, or report all their faults at once.

The same functions that read a kind of file give its JSON Schema.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from builder.load.bases import read_base
from builder.load.document import Faults, Node, learnt, parse
from builder.load.facts import read_facts
from builder.load.lock import check_recipes, read_lock
from builder.load.matrix import over, read_matrix
from builder.load.patterns import (
    ANY,
    Known,
    check_names,
    declared_axes,
    declared_checks,
    declared_names,
    patterns_of,
)
from builder.load.readers import (
    Reader,
    Table,
    described,
    identifier,
    keyed,
    list_of,
    one_of,
    positive,
    record,
    text,
)
from builder.load.recipes import (
    TOOLKIT_ARGUMENTS,
    WHEN,
    check_ancestry,
    check_toolkit,
    read_recipe,
    templated,
    with_files,
)
from builder.load.site import MATRIX, inherits_nothing, layers_of, read_site, site_of, with_mirrors
from builder.model import (
    SELECTABLE,
    BaseImage,
    BlockUse,
    Check,
    Layer,
    Layers,
    Lock,
    Matrix,
    Project,
    Recipe,
    Where,
)
from builder.model.errors import BadInput, Fault
from builder.model.site import SITE, layer_of

RECIPES = "recipes"
BASES = "base-images"
CHECKS = "tests/images/checks.yaml"

BlockFaults = Callable[[BlockUse], Sequence[Fault]]
Names: TypeAlias = "tuple[str, ...] | None"


def load_project(
    root: Path, *, block_faults: BlockFaults = lambda _: (), stale_lock: bool = False
) -> Project:
    """Read the matrix, the recipes, the base images and the checks of a project in all its layers.

    `block_faults` returns the faults in a use of one of hpccm's blocks. With `stale_lock`, the lock
    may have entries for recipes that no longer exist, since it will be written again.
    Raises `BadInput` with all faults of all files.
    """
    if not (root / MATRIX).is_file():
        raise BadInput(
            f"{root}: not a project: {MATRIX} is missing",
            hint="name the project's folder with --project DIR, or make one: build-images init DIR",
        )
    faults, table_faults = Faults(), Faults()
    layers = layers_of(root, faults)
    facts = read_facts(layers, table_faults)
    faults.found += table_faults.found
    releases = () if table_faults.found else tuple(facts.cuda)
    project = Project(
        layers=layers,
        matrix=Matrix(axes={}, where=Where(file=MATRIX, line=1)),
        recipes={},
        bases={},
        checks={},
        facts=facts,
        site=read_site(root, faults),
    )
    known = Known(recipes=None, bases=None, checks=None, axes={})
    for layer in layers.each:
        files = _Documents.of(layer, faults, is_lowest=layer == layers.each[0])
        known = files.known(known)
        project = files.over(project, known, releases, block_faults, faults)
        if not stale_lock:
            check_recipes(files.lock, layer, known, faults)
    check_ancestry(project.recipes, faults)
    site, bases = with_mirrors(root, project.site, project.bases, faults)
    if faults.found:
        raise _error(faults, layers)
    return dataclasses.replace(project, site=site, bases=bases)


def _error(faults: Faults, layers: Layers) -> BadInput:
    """Return the error with all faults; its hint says where the lower layers are."""
    error = BadInput.of(faults.found)
    names = {layer_of(fault.file) for fault in faults.found}
    lower = [layer for layer in layers.each[:-1] if layer.name in names]
    error.hint = "; ".join(f"{layer.name}: is in {layer.folder}" for layer in lower)
    return error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Documents:
    """The files of one layer, parsed; the lowest layer must have them all.

    Each layer is read with the names that it and those below it declare. So what a project leaves
    out of an axis is no fault in the files that it inherits.
    """

    layer: Layer
    is_lowest: bool
    matrix: Node | None
    recipes: Mapping[str, Node | None]
    bases: Mapping[str, Node | None]
    checks: Node | None
    lock: Lock

    @classmethod
    def of(cls, layer: Layer, faults: Faults, *, is_lowest: bool) -> _Documents:
        """Parse the files of a layer."""

        def parsed(file: str) -> Node | None:
            path = layer.folder / file
            hint = "" if is_lowest else "write {} to inherit everything"
            if not is_lowest and not path.exists():
                return None
            return parse(path, layer.shown(file), faults, if_empty=hint)

        return cls(
            layer=layer,
            is_lowest=is_lowest,
            matrix=parsed(MATRIX),
            recipes=_parse_folder(layer, RECIPES, faults, is_lowest=is_lowest),
            bases=_parse_folder(layer, BASES, faults, is_lowest=is_lowest),
            checks=parsed(CHECKS),
            lock=read_lock(layer, faults),
        )

    def known(self, below: Known) -> Known:
        """Return the names of this layer and those below it; None for what cannot be read."""
        own = Known(
            recipes=declared_names(self.recipes, "recipe"),
            bases=declared_names(self.bases, "base"),
            checks=declared_checks(self.checks),
            axes=declared_axes(self.matrix),
        )
        if self.is_lowest:
            return own
        no_checks = self.checks is None and (self.layer.folder / CHECKS).exists()
        no_matrix = self.matrix is None and (self.layer.folder / MATRIX).exists()
        return Known(
            recipes=_both(below.recipes, own.recipes),
            bases=_both(below.bases, own.bases),
            checks=None if no_checks else _both(below.checks, own.checks),
            axes={} if no_matrix else {**below.axes, **own.axes},
            every={} if no_matrix else _every(below, own),
        )

    def over(
        self,
        below: Project,
        known: Known,
        releases: Collection[str],
        block_faults: BlockFaults,
        faults: Faults,
    ) -> Project:
        """Return the project of this layer and those below it."""
        within, matrix, checks = below.layers.upto(self.layer.name), below.matrix, below.checks
        if self.layer.name == SITE and (inherit := inherits_nothing(self.matrix)):
            problem = "only a project can inherit nothing"
            faults.add(inherit.where, problem, "remove this line from the layer's matrix")
        if self.matrix:
            own = read_matrix(self.matrix, known, faults, releases, is_whole=self.is_lowest)
            matrix = over(own, matrix)
        recipes = _recipes(self.recipes, known.of_all_layers(), block_faults, faults)
        if self.checks:
            checks = {**checks, **_read_checks(self.checks, _check_files(within), faults)}
        return dataclasses.replace(
            below,
            matrix=matrix,
            recipes={**below.recipes, **with_files(within, recipes, faults)},
            bases={**below.bases, **_bases(self.bases, faults)},
            checks=checks,
            lock=self.lock.over(below.lock),
            inherited=below.lock,
        )


def _every(below: Known, own: Known) -> dict[str, tuple[str, ...]]:
    """Return the values that each axis has in any layer."""
    values = below.of_all_layers().axes
    return {
        axis: tuple(dict.fromkeys((*values.get(axis, ()), *own.axes.get(axis, ()))))
        for axis in (*values, *own.axes)
    }


def _both(below: Names, own: Names) -> Names:
    return None if below is None else tuple(dict.fromkeys((*below, *(own or ()))))


def _parse_folder(
    layer: Layer, folder: str, faults: Faults, *, is_lowest: bool
) -> dict[str, Node | None]:
    path, shown = layer.folder / folder, layer.shown(folder)
    names = [name for name in _files(path) if re.fullmatch(r"[^.].*\.ya?ml", name)]
    if is_lowest and not names:
        where = Where(file=f"{shown}/", line=1)
        faults.add(where, "the folder is missing or has no YAML file", "add NAME.yaml to it")
    return {f"{shown}/{name}": parse(path / name, f"{shown}/{name}", faults) for name in names}


_timeout = positive("a number of seconds", "valid: a whole number above 0, such as 300")
# A name with a suffix, as a whole word: others may be folders, patterns or templates.
_IN_SRC = re.compile(r"""\$(?:SRC|\{SRC\})/([\w+-]+(?:\.[\w+-]+)+)(?=[\s'";|&)]|$)""")
NEEDS = ("mpi", "cuda", "gpu")


def _read_checks(node: Node, files: Collection[str] | None, faults: Faults) -> dict[str, Check]:
    """Return the checks of `checks.yaml` by name; `files` are its sources, None if unknown."""
    folder = PurePosixPath(node.where.file).parent

    def command(node: Node, faults: Faults) -> str:
        text(node, faults)
        for name in _IN_SRC.findall(node.text):
            one_of(files, f"file in {folder}")(dataclasses.replace(node, value=name), faults)
        return templated(node, faults)

    required = {
        "about": described("one line for reports", text),
        "run": described("the command in the image, with $OUT first on PATH", command),
        "timeout": described("seconds, after which the check has failed", _timeout),
    }
    sources = list_of(one_of(files, f"file in {folder}"))
    optional = {
        "sources": described("files beside checks.yaml, which are in $SRC", sources),
        "build": described("commands of the development stage that make $OUT", list_of(command)),
        "needs": described(
            "mpi: skipped where the MPI is the host's; cuda, gpu: for images with CUDA alone",
            list_of(one_of(NEEDS, "need")),
        ),
    }

    def check_of(name: str) -> Reader[Check]:
        kind = functools.partial(Check, name=name)
        return record(kind, required, optional, fields={"timeout": "timeout_s"}, placed=True)

    table = Table(node, faults, required=("checks",))
    nothing: tuple[Check, ...] = ()
    every = described("each check by its name", keyed(identifier, check_of))
    checks = table.read("checks", every, nothing)
    return {check.name: check for check in checks}


def _check_files(layers: Layers) -> list[str]:
    """Return the names of the files that checks may have as sources, those of the layer first."""
    folders = [(layer.folder / CHECKS).parent for layer in reversed(layers.each)]
    names = dict.fromkeys(name for folder in folders for name in _files(folder))
    return [name for name in names if name != Path(CHECKS).name]


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())


def _recipes(
    nodes: Mapping[str, Node | None], known: Known, block_faults: BlockFaults, faults: Faults
) -> dict[str, Recipe]:
    check_names(nodes, "recipe", faults)
    recipes = [read_recipe(node, known, faults) for node in nodes.values() if node]
    for recipe in recipes:
        for block in (*recipe.development, *recipe.runtime):
            if block.name in TOOLKIT_ARGUMENTS:
                check_toolkit(block, faults)
            else:
                faults.found.extend(block_faults(block))
    return {recipe.name: recipe for recipe in recipes if recipe.name}


def _bases(nodes: Mapping[str, Node | None], faults: Faults) -> dict[str, BaseImage]:
    check_names(nodes, "base", faults)
    bases = [read_base(node, faults) for node in nodes.values() if node]
    return {base.name: base for base in bases if base.name}


_ANY = Known(recipes=None, bases=None, checks=None, axes={})
_READERS: dict[str, Callable[[Node, Faults], object]] = {
    "recipe": lambda node, faults: read_recipe(node, _ANY, faults),
    "base": read_base,
    "matrix": lambda node, faults: read_matrix(node, _ANY, faults),
    "checks": lambda node, faults: _read_checks(node, None, faults),
    "site": site_of,
}
KINDS = tuple(_READERS)


def file_schema(kind: str) -> dict[str, object]:
    """Return the schema of one of the `KINDS` of file; it covers only the structure.

    It refers to the blocks of recipes as `#/definitions/block`, and does not contain them.
    """
    return learnt(_READERS[kind])


def when_schema() -> tuple[str, dict[str, object]]:
    """Return the key of a block's condition, and the schema of its value."""
    return WHEN, learnt(patterns_of(SELECTABLE, _ANY, here=ANY))
