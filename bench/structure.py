"""The shape of `builder/` in numbers: `make structure` prints them beside the goals.

Imports are counted whether they are at the top of a module, in a function, or under
`TYPE_CHECKING`. An arrow is a pair of rooms of which the first imports the second.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
ROOMS = (
    *("facts", "model", "system", "load", "plan", "compile", "registry", "sources"),
    *("artifacts", "build", "host", "verify", "trust", "distribute", "reports", "cli"),
)  # in the order of the data: a room imports earlier ones only
GENERIC = frozenset(
    {
        *("one", "found", "said", "told", "given", "wanted", "kept", "left"),
        *("some", "there", "who", "what", "made", "whole"),
    }
)  # names that say nothing of what they name
_WHAT = re.compile(r"(?:What|Whether|Those|Who|How|Where|Which)\b")


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module of the package: its dotted name, its file, and its syntax tree."""

    name: str
    file: Path
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of its tree, in the order of `ast.walk`."""
        return tuple(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """The room that it is in; empty for `builder` itself and for loose modules."""
        first = self.name.split(".")[1:2]
        return first[0] if first and first[0] in ROOMS else ""


class Structure:
    """The modules of a checkout's package, and their imports of each other."""

    def __init__(self, project: Path = PROJECT) -> None:
        self.project = project
        self.modules = {
            module.name: module
            for file in sorted((project / "builder").rglob("*.py"))
            for module in [
                Module(name=_name(project, file), file=file, tree=ast.parse(file.read_text()))
            ]
        }

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """The modules that each module imports."""
        return {
            name: frozenset(self._imported(module.nodes)) - {name}
            for name, module in self.modules.items()
        }

    def _imported(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module in self.modules:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in self.modules else str(node.module)

    @cached_property
    def arrows(self) -> Mapping[tuple[str, str], int]:
        """How many imports go from a room to another."""
        return Counter(
            (self.modules[name].room, self.modules[other].room)
            for name, others in self.imports.items()
            for other in others
            if self.modules[name].room and self.modules[other].room
            if self.modules[name].room != self.modules[other].room
        )

    def backward(self) -> list[tuple[str, str]]:
        """Arrows from a room to a later one."""
        order = {room: number for number, room in enumerate(ROOMS)}
        return sorted(arrow for arrow in self.arrows if order[arrow[0]] < order[arrow[1]])

    def loose(self) -> list[str]:
        """Modules in no room."""
        return [
            name
            for name, module in self.modules.items()
            if not module.room and name not in {"builder", "builder.__main__"}
        ]

    def cyclic(self) -> list[str]:
        """Modules that import themselves by way of others."""
        imports = {name: set(others) for name, others in self.imports.items()}
        cyclic: list[str] = []
        while True:
            try:
                list(TopologicalSorter(imports).static_order())
            except CycleError as error:
                cycle = error.args[1]
                cyclic.append(min(cycle))
                imports[cycle[1]].discard(cycle[0])
            else:
                return sorted(cyclic)

    def lines(self, room: str = "") -> int:
        """Lines of Python in a room, or in all of the package."""
        return sum(
            len(module.file.read_text().splitlines())
            for module in self.modules.values()
            if room in {"", module.room}
        )

    def any_annotations(self) -> int:
        """How often `Any` stands in an annotation."""
        annotations = (
            annotation
            for module in self.modules.values()
            for node in module.nodes
            for annotation in _annotations(node)
        )
        return sum(
            isinstance(part, ast.Name) and part.id == "Any"
            for annotation in annotations
            for part in ast.walk(annotation)
        )

    def shared_class_names(self) -> list[str]:
        """Names of public classes that several modules define."""
        names = Counter(
            node.name
            for module in self.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, count in names.items() if count > 1)

    def names(self) -> Counter[str]:
        """Names that are bound outside comprehensions: parameters, variables, functions."""
        return Counter(name for module in self.modules.values() for name in _bound(module.tree))

    def generic_percent(self) -> float:
        """The part of the bound names that name nothing, in percent."""
        names = self.names()
        return 100 * sum(names[word] for word in GENERIC) / names.total()

    def question_docstrings(self) -> int:
        """Docstrings that begin with What, Whether or the like."""
        documented = ast.Module | ast.ClassDef | ast.FunctionDef
        return sum(
            bool(_WHAT.match(ast.get_docstring(node) or ""))
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, documented)
        )

    def bench_imports_of_cli(self) -> int:
        """Modules of bench/ that import the command line."""
        files = (self.project / "bench").glob("*.py")
        return sum(bool(re.search(r"\bbuilder\.cli\b", file.read_text())) for file in files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of the structure, the most that it may be, and the goal."""

    name: str
    value: float
    most: float
    goal: float


def figures(structure: Structure) -> list[Figure]:
    """Each number; `most` is lowered whenever the number falls, raised only with a feature."""
    table: list[tuple[str, float, float, float]] = [
        ("modules in no room", len(structure.loose()), 0, 0),
        ("arrows between rooms", len(structure.arrows), 60, 60),
        ("arrows to a later room", len(structure.backward()), 0, 0),
        ("cycles of modules", len(structure.cyclic()), 0, 0),
        ("lines", structure.lines(), 59_198, 44_000),
        ("lines of cli", structure.lines("cli"), 3_643, 4_000),
        ("modules", len(structure.modules), 295, 300),
        ("annotations with Any", structure.any_annotations(), 33, 40),
        ("class names that are used twice", len(structure.shared_class_names()), 0, 0),
        ("generic names, %", round(structure.generic_percent(), 1), 0.1, 2),
        ("docstrings that begin as a question", structure.question_docstrings(), 0, 0),
        ("modules of bench/ that import cli", structure.bench_imports_of_cli(), 0, 0),
    ]
    return [
        Figure(name=name, value=value, most=most, goal=goal) for name, value, most, goal in table
    ]


def _name(project: Path, file: Path) -> str:
    parts = file.relative_to(project).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _annotations(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
        yield node.annotation
    if isinstance(node, ast.FunctionDef) and node.returns:
        yield node.returns


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a tree binds, without those of comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.arg):
            yield child.arg
        elif isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield child.name
        yield from _bound(child)


def main() -> None:
    """Print the numbers, and the arrows of each room."""
    structure = Structure()
    print(f"{'':38} {'now':>8} {'goal':>8}")
    for figure in figures(structure):
        print(f"{figure.name:38} {figure.value:8g} {figure.goal:8g}")
    print()
    for room in ROOMS:
        count, lines = (
            sum(m.room == room for m in structure.modules.values()),
            structure.lines(room),
        )
        imported = ", ".join(other for other in ROOMS if (room, other) in structure.arrows)
        print(f"{room:11} {count:4} modules {lines:6} lines  imports {imported or 'nothing'}")
    for name in structure.cyclic():
        print(f"cycle: {name}")


if __name__ == "__main__":
    main()
