"""The YAML files of a project as typed values, or one list of every fault in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.load import bases
from builder.load.bases import read_base
from builder.load.checks import read_checks
from builder.load.document import Node, parse
from builder.load.facts import read_facts
from builder.load.faults import Faults
from builder.load.lock import check_recipes, read_lock
from builder.load.matrix import read_matrix
from builder.load.patterns import (
    Known,
    check_names,
    declared_axes,
    declared_checks,
    declared_names,
)
from builder.load.recipes import check_ancestry, read_recipe, with_files
from builder.load.site import read_site
from builder.model import BaseImage, BlockUse, Matrix, Project, Recipe, Where
from builder.model.errors import BadInput, Fault

MATRIX = "matrix.yaml"
RECIPES = "recipes"
BASES = "base-images"
CHECKS = "tests/images/checks.yaml"
RUN_CHECKS = "tests/images/run-checks"

BlockFaults = Callable[[BlockUse], Sequence[Fault]]


def _no_faults(_: BlockUse) -> Sequence[Fault]:
    return ()


def load_project(
    root: Path, *, block_faults: BlockFaults = _no_faults, stale_lock: bool = False
) -> Project:
    """Read the matrix, the recipes, the base images and the checks under `root`.

    `block_faults` knows which blocks and arguments hpccm has; it is asked about each use of one.
    A `stale_lock`, of recipes that are gone, is a fault unless it is about to be written anew.
    Raises `BadInput` with all faults of all files.
    """
    if not (root / MATRIX).is_file():
        raise BadInput(
            f"{root}: there is no {MATRIX} here, so this folder is no project",
            hint="name the project's folder with --project DIR",
        )
    faults = Faults()
    documents = _parse_all(root, faults)
    project = _read_all(root, documents, block_faults, faults)
    if not stale_lock:
        check_recipes(project.lock, documents.known(), faults)
    if faults.found:
        raise BadInput.of(faults.found)
    return project


@dataclass(frozen=True, kw_only=True, slots=True)
class _Documents:
    """The parsed files, by name in file order; None where a file does not parse."""

    matrix: Node | None
    recipes: Mapping[str, Node | None]
    bases: Mapping[str, Node | None]
    checks: Node | None

    def known(self) -> Known:
        return Known(
            recipes=declared_names(self.recipes, "recipe"),
            bases=declared_names(self.bases, "base"),
            checks=declared_checks(self.checks),
            axes=declared_axes(self.matrix),
        )


def _parse_all(root: Path, faults: Faults) -> _Documents:
    return _Documents(
        matrix=parse(root / MATRIX, MATRIX, faults),
        recipes=_parse_folder(root, RECIPES, faults),
        bases=_parse_folder(root, BASES, faults),
        checks=parse(root / CHECKS, CHECKS, faults),
    )


def _parse_folder(root: Path, folder: str, faults: Faults) -> dict[str, Node | None]:
    names = [
        name
        for name in _files(root / folder)
        if name.endswith((".yaml", ".yml")) and name[0] != "."
    ]
    if not names:
        where = Where(file=f"{folder}/", line=1)
        faults.add(where, "there is no such folder, or no file in it", "valid: NAME.yaml in it")
    return {
        f"{folder}/{name}": parse(root / folder / name, f"{folder}/{name}", faults)
        for name in names
    }


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())


def _read_all(
    root: Path, documents: _Documents, block_faults: BlockFaults, faults: Faults
) -> Project:
    known = documents.known()
    sources = [name for name in _files((root / CHECKS).parent) if name != Path(CHECKS).name]
    before = len(faults.found)
    facts = read_facts(root, faults)
    releases = facts.cuda if len(faults.found) == before else ()
    return Project(
        root=root,
        matrix=_matrix(documents.matrix, known, releases, faults),
        recipes=with_files(root, _recipes(documents.recipes, known, block_faults, faults), faults),
        bases=_bases(documents.bases, faults),
        checks=read_checks(documents.checks, sources, faults) if documents.checks else {},
        facts=facts,
        site=read_site(root, faults),
        lock=read_lock(root, faults),
    )


def _matrix(node: Node | None, known: Known, releases: Collection[str], faults: Faults) -> Matrix:
    if node is None:
        return Matrix(axes={}, excludes=(), default={}, where=Where(file=MATRIX, line=1))
    return read_matrix(node, known, faults, releases=releases)


def _recipes(
    nodes: Mapping[str, Node | None], known: Known, block_faults: BlockFaults, faults: Faults
) -> dict[str, Recipe]:
    check_names(nodes, "recipe", faults)
    recipes = [read_recipe(node, known, faults) for node in nodes.values() if node]
    for recipe in recipes:
        for block in (*recipe.development, *recipe.runtime):
            ours = block.name in bases.ARGUMENTS
            faults.found.extend(bases.toolkit_faults(block) if ours else block_faults(block))
    named = {recipe.name: recipe for recipe in recipes if recipe.name}
    check_ancestry(named, faults)
    return named


def _bases(nodes: Mapping[str, Node | None], faults: Faults) -> dict[str, BaseImage]:
    check_names(nodes, "base", faults)
    bases = [read_base(node, faults) for node in nodes.values() if node]
    return {base.name: base for base in bases if base.name}
