"""Which releases a selection means, and where they go."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from samples import ROOT

from builder.distribute.publish.releases import declared_releases, ready_releases
from builder.load.project import load_project
from builder.model import Cell, FloatingTag, Project, Selection, Where
from builder.model.errors import BadInput
from builder.registry import namespace


@pytest.fixture(scope="module", name="project")
def shipped_project() -> Project:
    return load_project(ROOT)


def test_the_default_selection_says_which_architectures_a_tag_has(project: Project) -> None:
    [release] = declared_releases(project, Selection())
    assert str(release) == "hpc-base:1.0-debian13-openmpi5.0"
    assert release.tags == ("1.0-debian13-openmpi5.0", "latest")
    assert [one.cell.arch for one in release.images] == ["ppc64le", "x86_64"]


def test_a_glob_leaves_no_architecture_out_and_an_option_does(project: Project) -> None:
    glob = ("python-mpi-*-debian13-openmpi5.0-x86_64",)
    [release] = declared_releases(project, Selection(images=glob))
    assert [one.cell.arch for one in release.images] == ["aarch64", "ppc64le", "x86_64"]
    assert release.relatives == (("hpc-base", "1.0-debian13-openmpi5.0"),)
    some = Selection(images=glob, patterns={"arch": ("x86_64",)})
    [release] = declared_releases(project, some)
    assert [one.cell.arch for one in release.images] == ["x86_64"]


def test_a_floating_tag_means_an_image_that_runs_anywhere(project: Project) -> None:
    for selection, end, archs in (
        (Selection(flavours=("development",)), "development", ["ppc64le", "x86_64"]),
        (Selection(cpu_targets=("power9le",)), "power9le", ["ppc64le"]),
    ):
        [release] = declared_releases(project, selection)
        assert release.tags == (f"1.0-debian13-openmpi5.0-{end}",)
        assert [one.cell.arch for one in release.images] == archs


def test_the_nearest_ancestor_comes_first(project: Project) -> None:
    selection = Selection(patterns={"recipe": ("hpc-bench-osu",)})
    releases = declared_releases(project, selection)
    assert {tuple(name for name, _ in one.relatives) for one in releases} == {
        ("hpc-bench", "hpc-base")
    }


def test_every_floating_tag_of_the_shipped_matrix_means_a_cell(project: Project) -> None:
    recipes = tuple({one.recipe for one in project.matrix.tags})
    bases = tuple({one.base for one in project.matrix.tags})
    patterns = {"recipe": recipes, "base": bases, "cuda": ("none", "11.8", "12.4")}
    found = declared_releases(project, Selection(patterns={**patterns, "arch": ("x86_64",)}))
    tags = [(release.recipe, tag) for release in found for tag in release.tags[1:]]
    assert sorted(tags) == sorted((one.recipe, one.tag) for one in project.matrix.tags)


def test_a_floating_tag_of_a_cell_that_is_left_out_is_a_fault(project: Project) -> None:
    where = Where(file="matrix.yaml", line=7, key="tags.hpc-base.new")
    tag = FloatingTag(
        recipe="hpc-base", tag="new", base="debian12", cuda="10.1", mpi="openmpi5.0", where=where
    )
    matrix = dataclasses.replace(project.matrix, tags=(tag,))
    changed = dataclasses.replace(project, matrix=matrix)
    with pytest.raises(
        BadInput, match=r"matrix\.yaml:7: tags\.hpc-base\.new: the cell of this tag is left out"
    ) as one:
        declared_releases(changed, Selection())
    assert "); base image: debian12 packages Open MPI 4.1.4, not 5.0 (" in str(one.value)
    assert declared_releases(changed, Selection(patterns={"recipe": ("biggan",)}))
    inherited = dataclasses.replace(
        tag, where=dataclasses.replace(where, file="shipped:matrix.yaml")
    )
    matrix = dataclasses.replace(matrix, tags=(inherited,))
    assert declared_releases(dataclasses.replace(project, matrix=matrix), Selection())


def test_what_is_not_built_is_said_for_each_architecture(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "hpc-base-1.0-debian13-openmpi5.0-x86_64"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    _, reasons = ready_releases(declared_releases(project, Selection()), tmp_path, ROOT)
    assert [reason.removeprefix("hpc-base:1.0-debian13-openmpi5.0: ") for reason in reasons] == [
        "ppc64le: it is not built: its folder has no manifest.json",
        "x86_64: its manifest.json is damaged, or another version wrote it",
    ]


def test_the_tag_of_a_cell_is_its_identifier_without_recipe_and_architecture() -> None:
    cell = Cell(
        recipe="pytorch",
        recipe_version="2.6",
        base="debian13",
        cuda="12.4",
        mpi="openmpi5.0",
        arch="ppc64le",
    )
    assert cell.tag == "2.6-debian13-cuda12.4-openmpi5.0"
    made = dataclasses.replace(cell, mpi="none", flavour="development", cpu="power9le")
    assert made.tag == "2.6-debian13-cuda12.4-development-power9le"
    for one in (cell, made):
        assert f"pytorch-{one.tag}-ppc64le" == one.identifier


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("quay.io", "write REGISTRY/NAMESPACE"),
        ("quay.io/", "write REGISTRY/NAMESPACE"),
        ("me:secret@quay.io", "write REGISTRY/NAMESPACE"),
        ("me:secret@quay.io/site", "no user name"),
        ("https://quay.io/site", "no scheme"),
        ("quay.io/site:tag", "cannot have a tag or digest"),
        ("quay.io/Site", "not a repository"),
    ],
)
def test_what_is_no_namespace(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        namespace(text, ())
    assert "secret" not in str(caught.value)


def test_the_repositories_of_a_namespace_share_their_connections() -> None:
    to = namespace("quay.io/site/images/", ())
    assert to("hpc-base").name == "quay.io/site/images/hpc-base"
    assert to("hpc-base").transport is to("pytorch").transport
    assert namespace("site/images", ())("a").name == "docker.io/site/images/a"
