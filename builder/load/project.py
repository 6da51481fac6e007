"""Read the YAML files of a project into typed values, or report all their faults at once.

The same functions that read a kind of file give its JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder.load.bases import read_base
from builder.load.checks import read_checks
from builder.load.document import Faults, Node, learnt, parse
from builder.load.facts import read_facts
from builder.load.lock import check_recipes, read_lock
from builder.load.matrix import read_matrix
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
    read_recipe,
    with_files,
)
from builder.load.site import read_site, site_of
from builder.model import SELECTABLE, BaseImage, BlockUse, Matrix, Project, Recipe, Where
from builder.model.errors import BadInput, Fault

MATRIX = "matrix.yaml"
RECIPES = "recipes"
BASES = "base-images"
CHECKS = "tests/images/checks.yaml"
RUN_CHECKS = "tests/images/run-checks"

BlockFaults = Callable[[BlockUse], Sequence[Fault]]


def load_project(
    root: Path, *, block_faults: BlockFaults = lambda _: (), stale_lock: bool = False
) -> Project:
    """Read the matrix, the recipes, the base images and the checks under `root`.

    `block_faults` returns the faults in a use of one of hpccm's blocks. With `stale_lock`, the lock
    may have entries for recipes that no longer exist, since it will be written again.
    Raises `BadInput` with all faults of all files.
    """
    if not (root / MATRIX).is_file():
        raise BadInput(
            f"{root}: not a project: {MATRIX} is missing",
            hint="name the project's folder with --project DIR",
        )
    faults = Faults()
    project = _project(root, block_faults, stale_lock, faults)
    if faults.found:
        raise BadInput.of(faults.found)
    return project


def _project(root: Path, block_faults: BlockFaults, stale_lock: bool, faults: Faults) -> Project:
    matrix = parse(root / MATRIX, MATRIX, faults)
    recipes = _parse_folder(root, RECIPES, faults)
    bases = _parse_folder(root, BASES, faults)
    checks = parse(root / CHECKS, CHECKS, faults)
    check_files = [name for name in _files((root / CHECKS).parent) if name != Path(CHECKS).name]
    known = Known(
        recipes=declared_names(recipes, "recipe"),
        bases=declared_names(bases, "base"),
        checks=declared_checks(checks),
        axes=declared_axes(matrix),
    )
    table_faults = Faults()
    facts = read_facts(root, table_faults)
    faults.found += table_faults.found
    lock = read_lock(root, faults)
    if not stale_lock:
        check_recipes(lock, known, faults)
    return Project(
        root=root,
        matrix=read_matrix(matrix, known, faults, () if table_faults.found else facts.cuda)
        if matrix
        else Matrix(axes={}, where=Where(file=MATRIX, line=1)),
        recipes=with_files(root, _recipes(recipes, known, block_faults, faults), faults),
        bases=_bases(bases, faults),
        checks=read_checks(checks, check_files, faults) if checks else {},
        facts=facts,
        site=read_site(root, faults),
        lock=lock,
    )


def _parse_folder(root: Path, folder: str, faults: Faults) -> dict[str, Node | None]:
    names = [name for name in _files(root / folder) if re.fullmatch(r"[^.].*\.ya?ml", name)]
    if not names:
        where = Where(file=f"{folder}/", line=1)
        faults.add(where, "the folder is missing or has no YAML file", "add NAME.yaml to it")
    return {
        f"{folder}/{name}": parse(root / folder / name, f"{folder}/{name}", faults)
        for name in names
    }


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
    named = {recipe.name: recipe for recipe in recipes if recipe.name}
    check_ancestry(named, faults)
    return named


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
