"""Whatever happens to an input file, it ends in specs or in a typed error, never in another.

Files of the shipped project are mutated, as text and as trees, and the project is loaded, planned
and compiled. FUZZ=N tries N times as many mutations as `make test` does.
"""

from __future__ import annotations

import copy as copies
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from builder.compile.spec import block_faults, compile_spec
from builder.load import project
from builder.load.document import Faults, Node, parse
from builder.load.project import load_project
from builder.model import Project, Selection
from builder.model.errors import BadInput, BuildImagesError
from builder.plan import make_plan

ROOT = Path(__file__).parents[3]
INPUTS = (
    *("matrix.yaml", "lock.yaml", "recipes/*.yaml", "base-images/*.yaml"),
    "tests/images/checks.yaml",
)
FILES = sorted(
    path.relative_to(ROOT).as_posix() for pattern in INPUTS for path in ROOT.glob(pattern)
)
TIMES = float(os.environ.get("FUZZ", "1"))


def mutations(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=int(examples * TIMES) or 1,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # to shrink what fails can take minutes
        derandomize=TIMES == 1,  # the same ones each time, unless more are asked for
    )


TOKEN = re.compile(r"\w+|[^\w\s]|[ \t]+|\n")
# Words and marks of YAML and Jinja2 that change the type or the shape of what follows.
HOSTILE = (
    *("", " ", "\n", "\t", ":", "-", "- ", "[", "]", "{", "}", ",", '"', "'", "#", "|", ">"),
    *("&a ", "*a", "? ", "<<", "!!int ", "!!bool ", "!!timestamp ", "!!set ", "!x ", "%", "---\n"),
    *("null", "~", "yes", "none", "1.10", "0", "-1", "1e400", ".nan", "0b", "0x", "190:20:30"),
    *("2024-13-45", "2024-01-31", "{{", "}}", "{%", "{{ 1/0 }}", "{{ mpi }}", "{{ [].x() }}"),
    *("\x00", "\x07", "\ufeff", "\ud7ff", "é", "é" * 300, "9" * 5000, "../", "*", "[a", "1!1+2"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """Replace the tokens, or the lines, from `start` (a fraction) on by others."""

    unit: str
    start: float
    count: int
    text: str
    repeat: int

    def apply(self, text: str) -> str:
        parts = TOKEN.findall(text) if self.unit == "token" else text.splitlines(keepends=True)
        at = int(self.start * len(parts))
        taken = parts[at : at + self.count]
        return "".join([*parts[:at], *taken * self.repeat, self.text, *parts[at + self.count :]])


MUTATIONS = st.builds(
    Mutation,
    unit=st.sampled_from(("token", "line")),
    start=st.floats(min_value=0, max_value=1, exclude_max=True),
    count=st.integers(min_value=0, max_value=3),
    text=st.sampled_from(HOSTILE),
    repeat=st.sampled_from((0, 0, 1, 2)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Change one place of a tree, at a fraction of all places, in a way that `kind` names."""

    kind: str
    place: float
    other: float
    value: Any

    def apply(self, tree: Any) -> Any:
        root = {"": copies.deepcopy(tree)}
        places = list(_places(root))
        parent, key = places[int(self.place * len(places))]
        other_parent, other_key = places[int(self.other * len(places))]
        taken = other_parent[other_key]
        if self.kind == "delete":
            del parent[key]
        elif self.kind == "replace":
            parent[key] = self.value
        elif self.kind == "alias":  # the same object twice, perhaps within itself
            parent[key] = taken
        elif self.kind == "nest":
            for _ in range(60 if self.other > 0.9 else 3):
                parent[key] = [parent[key]] if self.other > 0.5 else {"shell": parent[key]}
        elif self.kind == "into" and isinstance(parent[key], str):
            text, at = parent[key], int(self.other * len(parent[key]))
            parent[key] = f"{text[:at]}{self.value}{text[at:]}"
        elif isinstance(parent, dict):  # rename, or a copy under another name
            name = self.value if isinstance(self.value, (str, int, bool, type(None))) else "x"
            parent[name] = parent[key] if self.kind == "copy" else parent.pop(key)
        else:
            parent.insert(key, taken)
        return root.get("")


def _places(tree: Any, above: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)) and id(tree[key]) not in above:
            yield from _places(tree[key], (*above, id(tree[key])))


WORDS = ("recipe", "when", "cuda", "mpi", "shell", "copy", "raw", "packages", "environment")
VALUES = st.one_of(
    st.sampled_from([*HOSTILE, *WORDS]),
    st.sampled_from(["{{ mpi.launch('x') }}", "{{ cuda.gencode }}", "{{ sources.x.url }}"]),
    st.sampled_from(["{{ 'a' * 9 ** 9 }}", "{{ range(9) }}", "{{ mpi.__class__ }}", ">=11,<13"]),
    st.sampled_from([None, True, False, 0, -1, 1.5, float("inf"), [], {}, [[]], {"a": {}}, [None]]),
    st.text(max_size=20),
    st.integers(),
)
CHANGES = st.builds(
    Change,
    kind=st.sampled_from(("delete", "replace", "replace", "alias", "nest", "into", "copy", "name")),
    place=st.floats(min_value=0, max_value=1, exclude_max=True),
    other=st.floats(min_value=0, max_value=1, exclude_max=True),
    value=VALUES,
)


@pytest.fixture(name="copy", scope="module")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The shipped project's input files, in a folder where they can be spoilt.

    Those that are not spoilt are parsed once.
    """
    root = tmp_path_factory.mktemp("project")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for path in (ROOT / "tests" / "images").iterdir():
        if path.is_file():
            shutil.copy(path, root / "tests" / "images")
    if (ROOT / "files").exists():
        shutil.copytree(ROOT / "files", root / "files")
    known = {(root / name).read_bytes(): parse(root / name, name, Faults()) for name in FILES}

    def parsed(path: Path, file: str, faults: Faults, *, if_empty: str = "") -> Node | None:
        node = known.get(path.read_bytes()) if path.exists() else None
        return (
            node
            if node and node.where.file == file
            else parse(path, file, faults, if_empty=if_empty)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project, "parse", parsed)
        yield root


def ends_well(root: Path, spoilt: str) -> bool:
    """Whether the project gives specs, or faults whose places are in the project."""
    try:
        project = load_project(root, block_faults=block_faults)
        plan = make_plan(project, some(project, spoilt), compiler="x", may_be_empty=True)
        for image in plan.images[:2]:
            compile_spec(image, run_checks="#!/bin/sh\n")
    except BadInput as error:
        return str(error) != "" and all(
            fault.line > 0 and (root / fault.file).exists() for fault in error.faults
        )
    except BuildImagesError as error:
        return str(error) != ""
    return True


def some(project: Project, spoilt: str) -> Selection:
    """A few cells that the spoilt file decides about."""
    name = Path(spoilt).stem
    axes = project.matrix.axes
    patterns = {"arch": axes["arch"][:1]}
    patterns["recipe"] = (name,) if name in project.recipes else tuple(project.recipes)[:3]
    patterns["base"] = (name,) if name in axes["base"] else axes["base"][:2]
    return Selection(patterns=patterns)


def survives(copy: Path, file: str, content: bytes) -> bool:
    (copy / file).write_bytes(content)
    try:
        return ends_well(copy, file)
    finally:
        shutil.copy(ROOT / file, copy / file)


def test_the_unspoilt_project_gives_specs(copy: Path) -> None:
    project = load_project(copy, block_faults=block_faults)
    assert make_plan(project, some(project, "recipes/hpc-base.yaml"), compiler="x").images


@mutations(60)
@given(file=st.sampled_from(FILES), mutated=st.lists(MUTATIONS, min_size=1, max_size=3))
def test_mutated_text_gives_specs_or_faults(copy: Path, file: str, mutated: list[Mutation]) -> None:
    text = (ROOT / file).read_text()
    for mutation in mutated:
        text = mutation.apply(text)
    assert survives(copy, file, text.encode(errors="surrogatepass"))


@mutations(60)
@given(file=st.sampled_from(FILES), changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_mutated_trees_give_specs_or_faults(copy: Path, file: str, changes: list[Change]) -> None:
    tree = yaml.safe_load((ROOT / file).read_text())
    for change in changes:
        if isinstance(tree, (dict, list)) and tree:
            tree = change.apply(tree)
    assert survives(copy, file, yaml.safe_dump(tree, allow_unicode=True).encode())


@mutations(20)
@given(file=st.sampled_from(FILES), content=st.binary(max_size=40))
def test_arbitrary_bytes_give_a_project_or_faults(copy: Path, file: str, content: bytes) -> None:
    assert survives(copy, file, content)
