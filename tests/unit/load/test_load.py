"""Every fault of tests/data/bad-*, in the exact words of tests/golden/load/*.txt.

A case holds the files in which it differs from the project in tests/data/good, and a removed.txt
that names those it lacks. UPDATE_GOLDEN=1 writes the texts anew: read the difference.
"""

from __future__ import annotations

import dataclasses
import os
import pprint
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from samples import compare_with_golden

from builder.load import document
from builder.load.document import Faults, parse
from builder.load.project import load_project
from builder.model import BlockUse, CudaSupport, Project
from builder.model.errors import BadInput, Fault

TESTS = Path(__file__).parents[2]
GOOD = TESTS / "data" / "good"
GOLDEN = TESTS / "golden" / "load"
CASES = sorted(path.name.removeprefix("bad-") for path in (TESTS / "data").glob("bad-*"))


def project_with(case: Path, root: Path) -> Path:
    """The good project in `root`, overlaid with the files of a case."""
    shutil.copytree(GOOD, root)
    shutil.copytree(case, root, dirs_exist_ok=True)
    removed = root / "removed.txt"
    if removed.is_file():
        for name in removed.read_text().split():
            (root / name).unlink()
    return root


def good_with(root: Path, file: str, old: str, new: str) -> Path:
    """The good project in `root`, with one text replaced in one file."""
    shutil.copytree(GOOD, root)
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, new))
    return root


def good_when(root: Path, when: str) -> Path:
    """The good project in `root`, with one block more that has a condition."""
    block = f"  - packages: {{ospackages: [make]}}\n    when: {{{when}}}\n"
    return good_with(root, "recipes/core.yaml", "development:\n", f"development:\n{block}")


@pytest.fixture(name="good")
def good_project() -> Project:
    return load_project(GOOD)


@pytest.mark.parametrize("case", CASES)
def test_fault_is_reported_in_these_words(case: str, tmp_path: Path) -> None:
    root = project_with(TESTS / "data" / f"bad-{case}", tmp_path / "project")
    with pytest.raises(BadInput) as caught:
        load_project(root)
    found = f"{caught.value}\n"
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


def test_each_golden_text_has_its_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == CASES


def test_faults_of_all_files_come_together(tmp_path: Path) -> None:
    root = project_with(TESTS / "data" / "bad-many", tmp_path / "project")
    with pytest.raises(BadInput) as caught:
        load_project(root)
    assert {fault.file for fault in caught.value.faults} == {
        "base-images/debian13.yaml",
        "matrix.yaml",
        "recipes/broken.yaml",
        "recipes/core.yaml",
        "tests/images/checks.yaml",
    }
    assert caught.value.exit_code == 2


def test_folder_without_a_matrix_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"not a project: matrix\.yaml is missing") as caught:
        load_project(tmp_path)
    assert "--project DIR" in caught.value.hint


def test_every_key_is_read() -> None:
    """All of a project in which each file has every key that it may have."""
    root = TESTS / "data/every-key"
    project = load_project(root)
    assert [(layer.name, layer.folder) for layer in project.layers.each] == [("project", root)]
    found = dataclasses.asdict(project)
    del found["facts"], found["layers"]  # of this program and of this machine
    text = pprint.pformat(found, width=100, sort_dicts=False)
    compare_with_golden(f"{text}\n", "project.txt")


def test_shipped_project_loads() -> None:
    project = load_project(TESTS.parent)
    assert [recipe.name for recipe in project.chain("python-mpi")] == ["hpc-base", "python-mpi"]
    assert "debian13" in project.bases


def test_recipe_is_read(good: Project) -> None:
    core = good.recipes["core"]
    assert (core.name, core.version, core.about, core.parent) == ("core", "1.0", "a compiler", None)
    assert core.environment == {"CORE": "{{ recipe.name }}"}
    assert core.checks == ("hello",)
    assert core.lines["checks"] == 12
    assert (core.where.file, core.where.line) == ("recipes/core.yaml", 1)


def test_block_is_read(good: Project) -> None:
    gnu, packages = good.recipes["core"].development
    assert (gnu.name, gnu.arguments) == ("gnu", {"cc": True})
    assert packages.arguments == {"ospackages": ["make", "{{ mpi.development }}"]}
    assert (packages.where.file, packages.where.line) == ("recipes/core.yaml", 7)
    assert packages.where.key == "development[1].packages"
    assert good.recipes["app"].runtime[0].lines == {"ospackages": 11}


def test_names_are_in_file_order(good: Project) -> None:
    assert list(good.recipes) == ["app", "core"]


def test_matrix_is_read(good: Project) -> None:
    assert good.matrix.axes == {
        "arch": ("x86_64", "ppc64le"),
        "base": ("debian13",),
        "cuda": ("none", "12.4"),
        "mpi": ("openmpi5.0", "mpich4.2"),
    }
    [exclude] = good.matrix.excludes
    assert exclude.when == {"recipe": ("app",), "mpi": ("mpich",)}
    assert exclude.where.line == 8
    assert good.matrix.default == {"mpi": ("openmpi",)}


def test_architectures_are_spelled_canonically(good: Project) -> None:
    assert good.bases["debian13"].architectures == ("x86_64", "ppc64le")
    assert good.recipes["app"].limits == {"arch": ("x86_64",)}


def test_base_is_read(good: Project) -> None:
    base = good.bases["debian13"]
    assert (base.hpccm_distro, base.version) == ("ubuntu24", "13")
    assert base.cuda == CudaSupport(repository="debian13")
    assert base.bootstrap is not None
    assert (base.bootstrap.suite, base.bootstrap.packages) == ("trixie", ())
    [mpi] = base.mpi
    assert (mpi.family, mpi.version, mpi.runtime) == ("openmpi", "5.0.7", ("openmpi-bin",))


def test_base_from_a_registry_is_read(tmp_path: Path) -> None:
    root = good_with(tmp_path / "p", "base-images/debian13.yaml", "bootstrap:\n", "references:\n")
    text = (root / "base-images/debian13.yaml").read_text()
    start, end = text.index("  suite"), text.index("\nmpi:")
    references = "  amd64: docker.io/library/debian:13\n  ppc64el: docker.io/library/debian:13\n"
    (root / "base-images/debian13.yaml").write_text(text[:start] + references + text[end:])
    base = load_project(root).bases["debian13"]
    assert base.references == dict.fromkeys(("x86_64", "ppc64le"), "docker.io/library/debian:13")
    assert base.bootstrap is None


@pytest.mark.parametrize(
    "when",
    [
        "mpi: openmpi9",
        "mpi: [mpich, intelmpi2021.13]",
        "base: [debian12, 'ubuntu*', ubi9]",
        "cuda: ['9.2', '10.*']",
        "arch: aarch64",
        "recipe: elsewhere",
    ],
)
def test_a_condition_may_name_what_is_on_no_axis_here(when: str, tmp_path: Path) -> None:
    """A recipe of many bases is taken into a project that has one of them."""
    assert load_project(good_when(tmp_path / "p", when))


def test_a_recipe_may_be_for_more_than_is_on_the_axes_here(tmp_path: Path) -> None:
    new = "axes:\n  base: [debian13, ubuntu24.04, ubi9]\n"
    root = good_with(tmp_path / "p", "recipes/app.yaml", "axes:\n", new)
    assert load_project(root)


@pytest.mark.parametrize(
    "when", ["base: debain13", "mpi: opnempi5.0", "cuda: twelve", "arch: x86", "recipe: cor"]
)
def test_a_slip_of_the_pen_in_a_condition_is_a_fault(when: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="matches no value of the axis"):
        load_project(good_when(tmp_path / "p", when))


def test_limits_of_which_none_is_on_an_axis_here_are_a_fault(tmp_path: Path) -> None:
    new = "axes:\n  base: [ubuntu24.04, ubi9]\n"
    with pytest.raises(BadInput) as caught:
        load_project(good_with(tmp_path / "p", "recipes/app.yaml", "axes:\n", new))
    [fault] = caught.value.faults
    assert fault.problem == '"ubuntu24.04", "ubi9" matches no value of the axis base'


def test_check_is_read(good: Project) -> None:
    hello, ranks = good.checks.values()
    assert (hello.name, hello.sources, hello.timeout_s) == ("hello", ("hello.c",), 60)
    assert (ranks.needs, ranks.build, ranks.where.key) == (("mpi",), (), "checks.ranks")


def test_child_may_repeat_a_check_of_its_parent(tmp_path: Path) -> None:
    root = good_with(tmp_path / "p", "recipes/app.yaml", "[ranks]", "[ranks, hello]")
    assert load_project(root).recipes["app"].checks == ("ranks", "hello")


def test_both_endings_are_read(tmp_path: Path) -> None:
    root = good_with(tmp_path / "p", "recipes/app.yaml", "", "")
    (root / "recipes/app.yaml").rename(root / "recipes/app.yml")
    assert load_project(root).recipes["app"].where.file == "recipes/app.yml"


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    root = good_with(tmp_path / "p", "recipes/app.yaml", "", "")
    (root / "recipes/README.md").write_text("{")
    (root / "recipes/.app.yaml").write_text("{")
    assert list(load_project(root).recipes) == ["app", "core"]


def test_every_block_is_shown_to_block_faults() -> None:
    seen: list[str] = []

    def note(use: BlockUse) -> Sequence[Fault]:
        seen.append(f"{use.where.file} {use.where.key}")
        return ()

    load_project(GOOD, block_faults=note)
    assert seen == [
        "recipes/app.yaml runtime[0].packages",
        "recipes/core.yaml development[0].gnu",
        "recipes/core.yaml development[1].packages",
    ]


def test_faults_of_blocks_join_the_others(tmp_path: Path) -> None:
    def fault(use: BlockUse) -> Sequence[Fault]:
        where = use.where
        return [Fault(file=where.file, line=where.line, key=where.key, problem="no such block")]

    root = good_with(tmp_path / "p", "recipes/app.yaml", "parent: core", "parent: kore")
    with pytest.raises(BadInput) as caught:
        load_project(root, block_faults=fault)
    assert [fault.key for fault in caught.value.faults] == [
        "parent",
        "runtime[0].packages",
        "development[0].gnu",
        "development[1].packages",
    ]


def test_blocks_of_both_of_two_recipes_with_one_name_are_shown(tmp_path: Path) -> None:
    root = good_with(tmp_path / "p", "recipes/app.yaml", "", "")
    shutil.copy(root / "recipes/app.yaml", root / "recipes/app.yml")
    seen: list[str] = []

    def note(use: BlockUse) -> Sequence[Fault]:
        seen.append(use.where.file)
        return ()

    with pytest.raises(BadInput):
        load_project(root, block_faults=note)
    assert "recipes/app.yaml" in seen
    assert "recipes/app.yml" in seen


def test_parser_in_python_gives_the_same(good: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_LOADER", yaml.SafeLoader)
    assert load_project(GOOD) == good


def test_a_pipe_among_the_recipes_is_a_fault_and_is_not_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(GOOD, root)
    os.mkfifo(root / "recipes/pipe.yaml")
    with pytest.raises(BadInput, match=r"recipes/pipe\.yaml:1: not a regular file"):
        load_project(root)


def test_a_site_that_is_a_link_to_nothing_is_a_fault(tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(GOOD, root)
    (root / "site.yaml").symlink_to("/nonexistent/site.yaml")
    with pytest.raises(BadInput, match=r"site\.yaml:1: the file is missing"):
        load_project(root)


def test_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    faults = Faults()
    (tmp_path / "x.yaml").mkdir()
    assert parse(tmp_path / "x.yaml", "recipes/x.yaml", faults) is None
    assert "cannot be read" in faults.found[0].problem


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,  # kills an interpreter that composes it
        "- " * 50 + "x",
        "[" * 1_000 + "]" * 1_000,
        "a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30,
    ],
    ids=["open", "block", "closed", "alias"],
)
def test_deep_nesting_is_a_fault(text: str, tmp_path: Path) -> None:
    faults = Faults()
    (tmp_path / "x.yaml").write_text(text)
    assert parse(tmp_path / "x.yaml", "recipes/x.yaml", faults) is None
    assert [fault.problem for fault in faults.found] == ["the file is too deep or too large"]


def test_nesting_of_some_levels_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("[" * 39 + "x" + "]" * 39)
    assert parse(tmp_path / "x.yaml", "recipes/x.yaml", Faults()) is not None


@pytest.mark.parametrize("text", ["yes", "12", "0x1f", "1.10", ".inf", "~", "null", "no", "1_000"])
def test_scalars_have_the_types_of_safe_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(f"key: [{text}]\n")
    node = parse(tmp_path / "x.yaml", "x.yaml", Faults())
    assert node is not None
    assert node.plain() == yaml.safe_load(f"key: [{text}]\n")
