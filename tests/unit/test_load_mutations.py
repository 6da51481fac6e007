"""Whatever happens to the text of an input file, loading ends in a project or in `BadInput`."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import BadInput
from builder.load import load_project
from builder.model import Project

ROOT = Path(__file__).parents[2]
INPUTS = ("matrix.yaml", "recipes/*.yaml", "base-images/*.yaml", "tests/images/checks.yaml")
FILES = sorted(
    path.relative_to(ROOT).as_posix() for pattern in INPUTS for path in ROOT.glob(pattern)
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


@pytest.fixture(name="copy", scope="module")
def project_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped project's input files, in a folder where they can be spoilt."""
    root = tmp_path_factory.mktemp("project")
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for path in (ROOT / "tests" / "images").iterdir():
        if path.is_file():
            shutil.copy(path, root / "tests" / "images")
    return root


def ends_well(root: Path) -> bool:
    """Whether loading gives a project, or faults whose places are in the project."""
    try:
        return isinstance(load_project(root), Project)
    except BadInput as error:
        return str(error) != "" and all(
            fault.line > 0 and (root / fault.file).exists() for fault in error.faults
        )


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(file=st.sampled_from(FILES), mutations=st.lists(MUTATIONS, min_size=1, max_size=3))
def test_mutated_text_gives_a_project_or_faults(
    copy: Path, file: str, mutations: list[Mutation]
) -> None:
    text = (ROOT / file).read_text()
    for mutation in mutations:
        text = mutation.apply(text)
    (copy / file).write_text(text)
    try:
        assert ends_well(copy)
    finally:
        shutil.copy(ROOT / file, copy / file)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(file=st.sampled_from(FILES), content=st.binary(max_size=40))
def test_arbitrary_bytes_give_a_project_or_faults(copy: Path, file: str, content: bytes) -> None:
    (copy / file).write_bytes(content)
    try:
        assert ends_well(copy)
    finally:
        shutil.copy(ROOT / file, copy / file)
