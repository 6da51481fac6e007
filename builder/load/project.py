"""Read the YAML files of a project into typed values, or report all their faults at once.

The same functions that read a kind of file give its JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder.load.bases import read_base
from builder.load.document import Faults, Node, learnt, parse
from builder.load.facts import read_facts
from builder.load.layers import MATRIX, layers_of
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
from builder.load.recipes import (
    TOOLKIT_ARGUMENTS,
    WHEN,
    check_ancestry,
    check_toolkit,
    read_checks,
    read_recipe,
    with_files,
)
from builder.load.site import read_site, site_of
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
    Site,
    Where,
)
from builder.model.errors import BadInput, Fault
from builder.model.inputs import LOCK
from builder.model.site import layer_of

RECIPES = "recipes"
BASES = "base-images"
CHECKS = "tests/images/checks.yaml"
RUN_CHECKS = "tests/images/run-checks"

BlockFaults = Callable[[BlockUse], Sequence[Fault]]


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
    faults = Faults()
    layers = layers_of(root, faults)
    site = read_site(root, faults)
    reading = _Reading(layers, block_faults, faults, stale_lock=stale_lock)
    for layer in layers.each:
        reading.add(layer)
    project = reading.project(site)
    if faults.found:
        error = BadInput.of(faults.found)
        files = [fault.file for fault in faults.found]
        error.hint = "; ".join(
            f"{layer.name}: is in {layer.folder}"
            for layer in layers.each[:-1]
            if any(layer_of(file) == layer.name for file in files)
        )
        raise error
    return project


class _Reading:
    """Reads one layer after the other, each with the names that it and those below it declare.

    So what a project leaves out of an axis is no fault in the files that it inherits.
    """

    def __init__(
        self, layers: Layers, block_faults: BlockFaults, faults: Faults, *, stale_lock: bool
    ) -> None:
        self._layers = layers
        self._block_faults = block_faults
        self._faults = faults
        self._stale_lock = stale_lock
        table_faults = Faults()
        self._facts = read_facts(layers, table_faults)
        faults.found += table_faults.found
        self._releases = () if table_faults.found else tuple(self._facts.cuda)
        self._known = Known(recipes=None, bases=None, checks=None, axes={})
        self._matrix = Matrix(axes={}, where=Where(file=MATRIX, line=1))
        self._recipes: dict[str, Recipe] = {}
        self._bases: dict[str, BaseImage] = {}
        self._checks: dict[str, Check] = {}
        self._lock, self._inherited = Lock(), Lock()

    def add(self, layer: Layer) -> None:
        """Read the files of a layer, over those of the layers below."""
        faults, is_lowest = self._faults, layer == self._layers.each[0]
        within = self._layers.upto(layer.name)
        matrix = _parsed(layer, MATRIX, is_lowest, faults)
        recipes = _parse_folder(layer, RECIPES, is_lowest, faults)
        bases = _parse_folder(layer, BASES, is_lowest, faults)
        checks = _parsed(layer, CHECKS, is_lowest, faults)
        own = Known(
            recipes=declared_names(recipes, "recipe"),
            bases=declared_names(bases, "base"),
            checks=declared_checks(checks),
            axes=declared_axes(matrix),
        )
        self._known = known = own.over(self._known)
        lock = read_lock(layer, faults)
        if not self._stale_lock:
            check_recipes(lock, layer.shown(LOCK), known, faults)
        if matrix:
            read = read_matrix(matrix, known, faults, self._releases, is_whole=is_lowest)
            self._matrix = over(read, self._matrix)
        own_recipes = _recipes(recipes, known, self._block_faults, faults)
        self._recipes |= with_files(within, own_recipes, faults)
        self._bases |= _bases(bases, faults)
        if checks:
            self._checks |= read_checks(checks, _check_files(within), faults)
        self._inherited, self._lock = self._lock, lock.over(self._lock)

    def project(self, site: Site) -> Project:
        """Return the project of all layers."""
        check_ancestry(self._recipes, self._faults)
        return Project(
            layers=self._layers,
            matrix=self._matrix,
            recipes=self._recipes,
            bases=self._bases,
            checks=self._checks,
            facts=self._facts,
            site=site,
            lock=self._lock,
            inherited=self._inherited,
        )


def _parsed(layer: Layer, file: str, is_lowest: bool, faults: Faults) -> Node | None:
    """Return the document of a file, which only the lowest layer must have."""
    path = layer.folder / file
    if not is_lowest and not path.exists():
        return None
    return parse(path, layer.shown(file), faults)


def _parse_folder(
    layer: Layer, folder: str, is_lowest: bool, faults: Faults
) -> dict[str, Node | None]:
    path, shown = layer.folder / folder, layer.shown(folder)
    names = [name for name in _files(path) if re.fullmatch(r"[^.].*\.ya?ml", name)]
    if is_lowest and not names:
        where = Where(file=f"{shown}/", line=1)
        faults.add(where, "the folder is missing or has no YAML file", "add NAME.yaml to it")
    return {f"{shown}/{name}": parse(path / name, f"{shown}/{name}", faults) for name in names}


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
    "checks": lambda node, faults: read_checks(node, None, faults),
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
