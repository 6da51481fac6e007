"""Plans: order, selection, the reasons against a cell, and what a content key covers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from samples import (
    EVERYTHING,
    GOLDEN,
    MPI,
    ROOT,
    base,
    block,
    check,
    compare_with_golden,
    cuda_release,
    facts_with,
    plan_of,
    project,
    recipe,
    shipped_images,
    shipped_plan,
    shipped_project,
    where,
)

from builder import plan as planning
from builder.load.project import load_project
from builder.model import (
    Bootstrap,
    Cell,
    CudaSupport,
    Exclude,
    Plan,
    PlannedImage,
    Project,
    Recipe,
    Selection,
)
from builder.model.errors import BadInput, EmptySelection
from builder.model.inputs import Lock, LockedSource, base_name, declared_key
from builder.model.planned import AllLeftOut
from builder.plan.cells import fits, selected_cells

make_plan = planning.make_plan


def planned(given: Project, selection: Selection = EVERYTHING, compiler: str = "hpccm 1") -> Plan:
    return make_plan(given, selection, compiler=compiler)


def identifiers(plan: Plan) -> list[str]:
    return [image.identifier for image in plan.images]


def selected(**patterns: str) -> list[str]:
    selection = Selection(patterns={name: (text,) for name, text in patterns.items()})
    return identifiers(planned(shipped_project(), selection))


def test_parents_come_before_children(tmp_path: Path) -> None:
    given = project(
        tmp_path,
        recipes=[recipe("a", parent="b"), recipe("b", parent="z"), recipe("z"), recipe("c")],
        arch=("x86_64", "ppc64le"),
    )
    order = [image.cell.recipe for image in planned(given).images]
    assert order == ["c", "c", "z", "z", "b", "b", "a", "a"]


def test_shipped_matrix_in_order() -> None:
    own = [name for name in identifiers(shipped_plan()) if name.startswith("hpc-base-")]
    assert own[:2] == [
        "hpc-base-1.0-debian12-openmpi4.1-x86_64",
        "hpc-base-1.0-debian12-openmpi4.1-ppc64le",
    ]
    recipes = [image.cell.recipe for image in shipped_plan().images]
    assert recipes == sorted(recipes, key=list(dict.fromkeys(recipes)).index)


def test_every_cell_is_in_or_out() -> None:
    axes = shipped_project().matrix.axes
    cells = len(shipped_project().recipes)
    for values in axes.values():
        cells *= len(values)
    assert len(shipped_plan().images) + len(shipped_plan().left_out) == cells
    assert all(one.reasons for one in shipped_plan().left_out)
    assert shipped_plan().images == shipped_images()


def test_default_selection_counts_without_selectors() -> None:
    assert identifiers(planned(shipped_project(), Selection())) == [
        "hpc-base-1.0-debian13-openmpi5.0-x86_64",
        "hpc-base-1.0-debian13-openmpi5.0-ppc64le",
    ]


def test_any_selector_replaces_the_default() -> None:
    assert {name.split("-")[0] for name in selected(arch="x86_64")} >= {"hpc", "python"}
    by_image = Selection(images=("python-mpi-*-debian12-openmpi*",))
    assert identifiers(planned(shipped_project(), by_image)) == [
        "python-mpi-1.0-debian12-openmpi4.1-x86_64",
        "python-mpi-1.0-debian12-openmpi4.1-ppc64le",
        "python-mpi-1.0-debian12-openmpi4.1-aarch64",
    ]


def test_selectors_of_several_axes_all_hold() -> None:
    assert selected(recipe="hpc-base", mpi="mpich", base="debian13", arch="ppc64le") == [
        "hpc-base-1.0-debian13-mpich4.2-ppc64le"
    ]


def test_patterns_of_one_axis_add_up() -> None:
    selection = Selection(
        patterns={
            "mpi": ("mpich4.2", "openmpi5.0"),
            "arch": ("x86_64",),
            "base": ("debian*",),
            "recipe": ("hpc-base",),
        }
    )
    assert identifiers(planned(shipped_project(), selection)) == [
        "hpc-base-1.0-debian13-openmpi5.0-x86_64",
        "hpc-base-1.0-debian13-mpich4.2-x86_64",
    ]


def test_globs_and_axes_both_hold() -> None:
    selection = Selection(patterns={"arch": ("x86_64",)}, images=("hpc-base-*-debian*mpich*",))
    assert identifiers(planned(shipped_project(), selection)) == [
        "hpc-base-1.0-debian12-mpich4.0-x86_64",
        "hpc-base-1.0-debian13-mpich4.2-x86_64",
    ]


@pytest.mark.parametrize(
    "glob",
    [
        *(
            "*",
            "h*",
            "hpc-base-1.0-debian1[23]-*",
            "[hp]*-mpich*",
            "hpc-base-1.0-debian13-mpich4.?-*",
        ),
        *("?pc-base-1.0-debian13-mpich4.2-ppc64le", "hpc-base-1.0-debian13-mpich4.2-ppc64le"),
    ],
)
def test_a_glob_finds_all_identifiers_that_it_matches(glob: str) -> None:
    """Also where most of the matrix is passed over by the glob's beginning."""
    matching = {one for one in identifiers(shipped_plan()) if fnmatchcase(one, glob)}
    assert matching
    assert set(identifiers(planned(shipped_project(), Selection(images=(glob,))))) == matching


@pytest.mark.parametrize("alias", ["ppc64el", "powerpc64le", "ppc64le"])
def test_architectures_go_by_any_name(alias: str) -> None:
    names = selected(arch=alias, recipe="hpc-base")
    every_name = identifiers(plan_of("hpc-base"))
    assert names == [name for name in every_name if name.endswith("-ppc64le")] != []


def test_a_version_selects_by_prefix(tmp_path: Path) -> None:
    given = project(
        tmp_path,
        recipes=[recipe(development=(block("cuda", capabilities=["70"]),))],
        bases=[base(cuda=CudaSupport(repository="debian13"))],
        facts=facts_with(*(cuda_release(number) for number in ("12.4", "12.6", "120.1"))),
        cuda=("none", "12.4", "12.6", "120.1"),
    )
    found = planned(given, Selection(patterns={"cuda": ("12",)}))
    assert [image.cell.cuda for image in found.images] == ["12.4", "12.6"]
    assert selected(mpi="openmpi5") == selected(mpi="openmpi5.0")


def test_an_mpi_of_the_matrix_is_found_by_its_prefix() -> None:
    versions = {
        (image.cell.base, image.cell.mpi): image.mpi and image.mpi.version
        for image in shipped_plan().images
    }
    assert versions["debian12", "openmpi4.1"] == "4.1.4"
    assert versions["debian13", "openmpi5.0"] == "5.0.7"
    assert versions["debian12", "mpich4.0"] == "4.0.2"
    assert versions["ubuntu22.04", "mpich4.0"] == "4.0"
    assert versions["debian13", "mpich4.2"] == "4.2.1"
    assert versions["rockylinux9", "openmpi4.1"] == "4.1.1"


def left_out_project(root: Path) -> Project:
    return project(
        root,
        recipes=[recipe(limits={"arch": ("x86_64",), "cuda": ("none",)})],
        bases=[base(architectures=("x86_64",), cuda=CudaSupport(image="debian13"))],
        facts=facts_with(cuda_release(), cuda_release("12.2", architectures=("x86_64",))),
        excludes=[
            Exclude(
                when={"recipe": ("core",), "arch": ("ppc64le",)},
                reason="nobody has the machine",
                where=where("matrix.yaml", 9),
            ),
            Exclude(
                when={"arch": ("ppc64le",), "mpi": ("openmpi",)},
                reason="another matter",
                where=where("matrix.yaml", 12),
            ),
        ],
        arch=("x86_64", "ppc64le"),
        cuda=("none", "12.2"),
        mpi=("none", "mpich4.2", "openmpi4.1"),
    )


def test_reasons_of_recipe_base_and_maintainer_come_together(tmp_path: Path) -> None:
    plan = planned(left_out_project(tmp_path))
    reasons = {one.cell.identifier: [str(why) for why in one.reasons] for one in plan.left_out}
    assert identifiers(plan) == ["core-1.0-debian13-x86_64"]
    assert reasons["core-1.0-debian13-cuda12.2-mpich4.2-ppc64le"] == [
        (
            "world: CUDA 12.2 has no toolkit for ppc64le: 12.4 to 12.4 have one "
            "(https://docs.example.org/cuda)"
        ),
        (
            "base image: debian13 has no route to CUDA 12.2 for ppc64le: NVIDIA has images of "
            "this release for ppc64le on no distribution; the base's file names no NVIDIA "
            "repository; the distribution itself packages no CUDA; the base's file names no wheels "
            "(base-images/debian13.yaml: cuda)"
        ),
        "base image: debian13 packages no MPICH (base-images/debian13.yaml: mpi)",
        "base image: debian13 is available only for x86_64 (base-images/debian13.yaml)",
        "maintainer: recipe core does not install CUDA: use cuda none",
        "maintainer: recipe core allows only arch x86_64 (recipes/core.yaml: axes.arch)",
        "maintainer: recipe core allows only cuda none (recipes/core.yaml: axes.cuda)",
        "maintainer: nobody has the machine (matrix.yaml:9)",
    ]
    assert reasons["core-1.0-debian13-openmpi4.1-x86_64"] == [
        ("base image: debian13 packages Open MPI 5.0.7, not 4.1 (base-images/debian13.yaml: mpi)"),
    ]
    assert reasons["core-1.0-debian13-openmpi4.1-ppc64le"][-2:] == [
        "maintainer: nobody has the machine (matrix.yaml:9)",
        "maintainer: another matter (matrix.yaml:12)",
    ]


def test_limits_of_parents_hold_for_children(tmp_path: Path) -> None:
    given = project(
        tmp_path,
        recipes=[recipe(limits={"arch": ("x86_64",)}), recipe("child", parent="core")],
        arch=("x86_64", "ppc64le"),
    )
    assert identifiers(planned(given)) == ["core-1.0-debian13-x86_64", "child-1.0-debian13-x86_64"]


def no_cuda(root: Path) -> Plan:
    given = project(root, cuda=("none", "12.4"))
    return planned(given, Selection(patterns={"cuda": ("12.4",)}))


def everything_out(root: Path) -> Plan:
    selection = Selection(patterns={"arch": ("ppc64le",), "cuda": ("12",)})
    return planned(left_out_project(root), selection)


def few_recipes() -> Project:
    """The shipped project with three of its recipes, so that a new one changes no golden text."""
    shipped = shipped_project()
    names = ("hpc-base", "cuda-base", "python-mpi")
    return dataclasses.replace(shipped, recipes={name: shipped.recipes[name] for name in names})


def of_shipped(**selection: Any) -> Callable[[Path], Plan]:
    return lambda _root: planned(few_recipes(), Selection(**selection))


EMPTY: dict[str, Callable[[Path], Plan]] = {
    "unknown-value": of_shipped(patterns={"mpi": ("openmpi9",)}),
    "misspelt": of_shipped(patterns={"recipe": ("hpc-bsae",), "base": ("debian14",)}),
    "unknown-image": of_shipped(images=("hpc-*-s390x", "nothing")),
    "two-patterns-one-known": of_shipped(patterns={"arch": ("x86_64", "s390x")}),
    "values-that-do-not-meet": of_shipped(
        patterns={"arch": ("x86_64",)}, images=("hpc-base-*-ppc64le",)
    ),
    "all-left-out": of_shipped(
        patterns={
            "recipe": ("python-mpi",),
            "base": ("debian*",),
            "cuda": ("none",),
            "mpi": ("mvapich2",),
        }
    ),
    "many-left-out": of_shipped(
        patterns={"recipe": ("cuda-base",), "base": ("ubi8",), "arch": ("ppc64le",)}
    ),
    "base-without-cuda": no_cuda,
    "many-reasons": everything_out,
    "everything-left-out": lambda root: planned(
        project(root, cuda=("12.4",)), Selection(everything=True)
    ),
}


@pytest.mark.parametrize("case", sorted(EMPTY))
def test_empty_selection_says_so_in_these_words(case: str, tmp_path: Path) -> None:
    with pytest.raises(EmptySelection) as caught:
        EMPTY[case](tmp_path)
    assert caught.value.exit_code == 3
    compare_with_golden(f"{caught.value}\n", f"plan/{case}.txt")
    if isinstance(caught.value, AllLeftOut):  # with --verbose
        compare_with_golden(f"{caught.value.complete()}\n", f"plan/{case}-complete.txt")


FEW_IMAGES = Selection(patterns={"arch": ("ppc64le",)}, images=("*-ubi*", "mpi-*"))


@pytest.mark.parametrize("selection", [EVERYTHING, Selection(), FEW_IMAGES])
def test_images_alone_are_those_of_the_plan(selection: Selection) -> None:
    alone = make_plan(shipped_project(), selection, compiler="hpccm 1", images_only=True)
    assert alone == Plan(images=planned(shipped_project(), selection).images, left_out=())


def test_for_images_alone_only_cells_that_recipes_allow_are_looked_at() -> None:
    given = shipped_project()
    few = [*selected_cells(given, EVERYTHING, within_limits=True)]
    assert few == [
        cell
        for cell in selected_cells(given, EVERYTHING)
        if all(fits(cell, ancestor.limits) for ancestor in given.chain(cell.recipe))
    ]


def test_images_alone_are_refused_in_the_same_words() -> None:
    patterns = {"recipe": ("python-mpi",), "mpi": ("mpich4.2",), "arch": ("ppc64le",)}
    selection = Selection(patterns=patterns)
    with pytest.raises(AllLeftOut) as expected:
        planned(few_recipes(), selection)
    with pytest.raises(AllLeftOut) as caught:
        make_plan(few_recipes(), selection, compiler="hpccm 1", images_only=True)
    assert caught.value.complete() == expected.value.complete()


def test_each_golden_text_has_its_case() -> None:
    stems = {path.stem.removesuffix("-complete") for path in (GOLDEN / "plan").glob("*")}
    assert stems == set(EMPTY)


def keyed_project(root: Path) -> Project:
    return project(
        root,
        recipes=[
            recipe(development=(block(ospackages=["make"]),), checks=("hello",)),
            recipe("child", parent="core", runtime=(block(ospackages=["less"]),), checks=("ok",)),
        ],
        checks=[check(), check("ok")],
        mpi=("openmpi5.0",),
    )


def key(given: Project, compiler: str = "hpccm 1") -> str:
    return planned(given, compiler=compiler).images[-1].content_key


def with_recipe(given: Project, name: str, **changes: Any) -> Project:
    changed = dataclasses.replace(given.recipes[name], **changes)
    return dataclasses.replace(given, recipes={**given.recipes, name: changed})


def with_base(given: Project, **changes: Any) -> Project:
    changed = dataclasses.replace(given.bases["debian13"], **changes)
    return dataclasses.replace(given, bases={"debian13": changed})


def with_check(given: Project, **changes: Any) -> Project:
    changed = dataclasses.replace(given.checks["hello"], **changes)
    return dataclasses.replace(given, checks={**given.checks, "hello": changed})


MADE = Bootstrap(
    suite="trixie", components=("main",), packages=("ca-certificates",), keyring="k.gpg"
)
MATTERS: dict[str, Callable[[Project], Project]] = {
    "block argument": lambda p: with_recipe(p, "core", development=(block(ospackages=["cmake"]),)),
    "type of an argument": lambda p: with_recipe(
        p, "core", development=(block(ospackages="make"),)
    ),
    "block": lambda p: with_recipe(p, "core", development=(block("gnu", ospackages=["make"]),)),
    "one block more": lambda p: with_recipe(p, "child", development=(block(ospackages=["less"]),)),
    "development, not runtime": lambda p: with_recipe(
        p, "child", runtime=(), development=(block(ospackages=["less"]),)
    ),
    "environment": lambda p: with_recipe(p, "core", environment={"A": "b"}),
    "labels": lambda p: with_recipe(p, "child", labels={"a": "b"}),
    "about": lambda p: with_recipe(p, "child", about="something else"),
    "version of a parent": lambda p: with_recipe(p, "core", version="1.1"),
    "checks": lambda p: with_recipe(p, "child", checks=()),
    "a check's command": lambda p: with_check(p, run="hello again"),
    "a check's build": lambda p: with_check(p, build=()),
    "a check's timeout": lambda p: with_check(p, timeout_s=61),
    "hpccm distribution": lambda p: with_base(p, hpccm_distro="ubuntu22"),
    "suite": lambda p: with_base(p, bootstrap=dataclasses.replace(MADE, suite="forky")),
    "base packages": lambda p: with_base(p, bootstrap=dataclasses.replace(MADE, packages=())),
    "reference": lambda p: with_base(
        p, bootstrap=None, references={"x86_64": "registry.example.org/debian:13"}
    ),
}


@pytest.mark.parametrize("change", sorted(MATTERS))
def test_content_key_changes_with(change: str, tmp_path: Path) -> None:
    given = keyed_project(tmp_path)
    assert key(MATTERS[change](given)) != key(given)


@pytest.mark.parametrize("file", ["hello.c", "run-checks"])
def test_content_key_changes_with_the_text_of(file: str, tmp_path: Path) -> None:
    one, other = keyed_project(tmp_path / "one"), keyed_project(tmp_path / "other")
    assert key(one) == key(other)
    (tmp_path / "third/tests/images").mkdir(parents=True)
    (tmp_path / "third/tests/images" / file).write_text("something else")
    third = keyed_project(tmp_path / "third")
    (tmp_path / "third/tests/images" / file).write_text("something else")
    assert key(third) != key(one)


def test_content_key_changes_with_the_compiler(tmp_path: Path) -> None:
    given = keyed_project(tmp_path)
    assert key(given, "hpccm 2") != key(given, "hpccm 1")


def test_content_key_differs_between_cells() -> None:
    keys = [image.content_key for image in shipped_plan().images]
    assert len(set(keys)) == len(keys)
    assert all(len(one) == 64 for one in keys)


DOES_NOT_MATTER: dict[str, Callable[[Project], Project]] = {
    "line numbers": lambda p: with_recipe(
        p,
        "core",
        development=(block(line=99, ospackages=["make"]),),
        where=where("recipes/core.yaml", 7),
        lines={"checks": 12},
    ),
    "file names": lambda p: with_recipe(p, "core", where=where("recipes/x.yml")),
    "place of the base": lambda p: with_base(p, where=where("base-images/y.yaml", 3)),
    "place of the check": lambda p: with_check(p, where=where("tests/images/checks.yaml", 50)),
    "what the base is called": lambda p: with_base(p, about="Debian GNU/Linux"),
    "another recipe": lambda p: dataclasses.replace(
        p, recipes={"other": recipe("other"), **p.recipes}
    ),
    "limits": lambda p: with_recipe(p, "child", limits={"arch": ("x86_64",)}),
    "another architecture": lambda p: with_base(p, architectures=("x86_64",)),
}


@pytest.mark.parametrize("change", sorted(DOES_NOT_MATTER))
def test_content_key_does_not_change_with(change: str, tmp_path: Path) -> None:
    given = keyed_project(tmp_path)
    assert key(DOES_NOT_MATTER[change](given)) == key(given)


def test_content_key_does_not_change_with_comments(tmp_path: Path) -> None:
    for name in ("recipes", "base-images", "tests/images"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "lock.yaml", tmp_path)
    text = (ROOT / "matrix.yaml").read_text()
    (tmp_path / "matrix.yaml").write_text(f"# one line more\n{text}")
    for file in (tmp_path / "recipes").glob("*.yaml"):
        file.write_text(f"# a comment\n\n{file.read_text()}")
    debian = Selection(patterns={"base": ("debian13",)})
    commented, shipped = load_project(tmp_path), shipped_project()
    keys = [
        {image.identifier: image.content_key for image in planned(site, debian).images}
        for site in (commented, shipped)
    ]
    assert keys[0] == keys[1] != {}


@pytest.mark.parametrize(
    ("cuda", "mpi", "identifier"),
    [
        ("none", "none", "r-1.0-b-x86_64"),
        ("12.4", "none", "r-1.0-b-cuda12.4-x86_64"),
        ("none", "openmpi5.0", "r-1.0-b-openmpi5.0-x86_64"),
        ("12.4", "mpich4.2", "r-1.0-b-cuda12.4-mpich4.2-x86_64"),
    ],
)
def test_identifier_leaves_out_what_is_none(cuda: str, mpi: str, identifier: str) -> None:
    cell = Cell(recipe="r", recipe_version="1.0", base="b", cuda=cuda, mpi=mpi, arch="x86_64")
    assert cell.identifier == identifier


def test_a_base_from_a_registry_is_named_by_its_reference() -> None:
    references = {"x86_64": "registry.example.org/debian:13", "ppc64le": "x.example.org/debian:13"}
    given = base(bootstrap=None, references=references)
    assert base_name(given, "ppc64le") == "x.example.org/debian:13"


def test_a_bootstrapped_base_is_named_by_what_it_declares() -> None:
    name = base_name(base(), "x86_64")
    assert name == f"localhost/build-images/debian13:{declared_key(base(), 'x86_64')[:12]}-x86_64"
    assert declared_key(base(), "x86_64") != declared_key(base(), "ppc64le")
    assert declared_key(base(about="other"), "x86_64") == declared_key(base(), "x86_64")


def test_a_check_is_made_in_the_stage_that_brings_it_first(tmp_path: Path) -> None:
    given = project(
        tmp_path,
        recipes=[recipe(checks=("hello",)), recipe("child", parent="core", checks=("ok", "hello"))],
        checks=[check(), check("ok")],
    )
    image = planned(given).images[-1]
    assert [stage.checks for stage in image.stages] == [("hello",), ("ok",)]
    assert [one.name for one in image.checks] == ["hello", "ok"]
    assert image.checks[0].run == "hello x86_64"
    assert image.checks[0].sources == {"hello.c": "/* hello.c */\n"}


def test_templates_are_rendered_for_each_cell(tmp_path: Path) -> None:
    given = project(
        tmp_path,
        recipes=[
            recipe(
                development=(
                    block(ospackages=["make", "{{ mpi.development }}"]),
                    block(urls=["{{ sources.a.url }}", "{{ sources.b.url }}"]),
                ),
                environment={"ARCH": "{{ arch }}"},
                labels={"mpi": "{{ mpi.version }}"},
                sources={"a": ("https://a.example/{{ gone }}",), "b": ("wheel:b/1/{{ arch }}",)},
            )
        ],
        arch=("x86_64", "ppc64le"),
        mpi=("openmpi5.0",),
    )
    stages = [image.stages[0] for image in planned(given).images]
    assert [stage.environment["ARCH"] for stage in stages] == ["x86_64", "ppc64le"]
    assert stages[0].development[0].arguments == {"ospackages": ["make", *MPI.development]}
    assert stages[0].labels == {"mpi": "5.0.7"}
    text = ("https://a.example/{{ gone }}",)  # as it stands: only wheels have a template
    assert stages[1].sources == {"a": text, "b": ("wheel:b/1/ppc64le",)}


def test_an_image_has_the_wheels_that_its_blocks_ask_for(tmp_path: Path) -> None:
    url = "wheel:a/1/ppc64le"
    only = {"arch": ("ppc64le",)}
    used = dataclasses.replace(block(ospackages=["{{ sources.a.file }}"]), when=only)
    entry = LockedSource(url=url, file="a", sha256="0" * 64, size=1, recipes=("core", "other"))

    def images(declared: Recipe, lock: Lock) -> tuple[PlannedImage, ...]:
        given = project(tmp_path, recipes=[declared], lock=lock, arch=("x86_64", "ppc64le"))
        return planned(given).images

    [plain, _] = images(recipe(development=(dataclasses.replace(used, arguments={}),)), Lock())
    archive = {"b": ("https://a.example/b.tar.gz",)}
    declared = recipe(development=(used,), sources={"a": (url,), **archive})
    without, having = images(declared, Lock(sources={url: entry}))
    assert (without.sources, having.sources) == (
        (),
        (dataclasses.replace(entry, recipes=("core",)),),
    )
    assert (without.stages[0].sources, having.stages[0].sources) == (
        archive,
        {"a": (url,), **archive},
    )
    assert without.content_key == plain.content_key


def test_templates_that_fail_for_a_cell_are_faults_all_at_once(tmp_path: Path) -> None:
    bad = "{{ {'x86_64': 1}[arch] }}"
    given = project(
        tmp_path,
        recipes=[recipe(development=(block(ospackages=[bad]),), environment={"A": bad})],
        arch=("x86_64", "ppc64le"),
    )
    with pytest.raises(BadInput) as caught:
        planned(given)
    assert [(fault.line, fault.key) for fault in caught.value.faults] == [
        (1, ""),
        (5, "development[0].packages"),
    ]
    assert all("for debian13 ppc64le" in fault.problem for fault in caught.value.faults)


def test_a_project_of_one_recipe_and_one_base_plans(tmp_path: Path) -> None:
    """What its conditions say of other bases holds of no cell here, and is no fault."""
    shutil.copytree(ROOT / "tests/images", tmp_path / "tests/images")
    for name in ("recipes/hpc-base.yaml", "base-images/debian13.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    axes = "{arch: [x86_64], base: [debian13], cuda: [none], mpi: [openmpi5.0]}"
    (tmp_path / "matrix.yaml").write_text(f"axes: {axes}\ninherit: false\n")
    made = planned(load_project(tmp_path), Selection())
    assert [one.identifier for one in made.images] == ["hpc-base-1.0-debian13-openmpi5.0-x86_64"]
