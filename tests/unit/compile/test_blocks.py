"""What hpccm's blocks take, as read from their own source."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import hpccm
import hpccm.config
import hpccm.primitives
import pytest
from hpccm.toolchain import toolchain

from builder.compile.spec import COMPILER, block_faults, catalogue
from builder.compile.spec.hpccm_blocks import block_classes
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS
from builder.model import BlockUse, Where

# A value that fits, by kind.
FITS: dict[str, Any] = {
    catalogue.BOOLEAN: True,
    catalogue.TEXT: "text",
    catalogue.LIST: ["text"],
    catalogue.MAPPING: {"key": "text"},
    catalogue.FLAG: "text",
    catalogue.TEXT_OR_LIST: ["text"],
    catalogue.TEXT_OR_NUMBER: 4,
    catalogue.TOOLCHAIN: {"CC": "gcc"},
}
PLACEHOLDERS = {"disable_FEATURE", "enable_FEATURE", "with_PACKAGE", "without_PACKAGE"}


def use(name: str, /, **given: Any) -> BlockUse:
    return BlockUse(
        name=name,
        arguments=given,
        where=Where(file="recipes/core.yaml", line=3, key=f"development[0].{name}"),
        lines={argument: 4 + n for n, argument in enumerate(given)},
    )


def arguments(name: str) -> set[str]:
    """The names of the arguments that a block takes."""
    found = catalogue.block_of(name)
    assert found is not None
    return set(found.kinds)


def documented(name: str) -> set[str]:
    """The names in a block's docstring, in the list under `# Parameters`."""
    text = block_classes()[name].__doc__ or ""
    listed = text.partition("# Parameters")[2].partition("# Examples")[0]
    return set(re.findall(r"^    ([a-z]\w*): ", listed, re.MULTILINE)) - PLACEHOLDERS


@pytest.mark.parametrize("name", sorted(block_classes()))
def test_documented_arguments_are_taken(name: str) -> None:
    assert documented(name) <= arguments(name)
    for argument in sorted(documented(name)):
        given = FITS[catalogue.kind(block_classes()[name], argument)]
        faults = block_faults(use(name, **{argument: given}))
        assert not [
            fault for fault in faults if "unknown" in fault.problem or "expected" in fault.problem
        ]


@pytest.mark.parametrize("name", sorted(block_classes()))
def test_no_block_takes_what_does_not_exist(name: str) -> None:
    problems = [fault.problem for fault in block_faults(use(name, no_such_argument_at_all=1))]
    assert any("no_such_argument_at_all" in problem for problem in problems)
    for word in ("Note", "installed"):  # words of the documentation that look like arguments
        assert block_faults(use(name, **{word: 1}))


def test_the_catalogue_is_of_the_installed_hpccm() -> None:
    """UPDATE_GOLDEN=1 writes it anew: for another hpccm, or another block of our own."""
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(dataclasses.asdict(catalogue.read_block(cls)))}"
        for name, cls in block_classes().items()
    )
    text = f'{{"hpccm": "{hpccm.__version__}", "blocks": {{\n{lines}\n}}}}\n'
    if os.environ.get("UPDATE_GOLDEN"):
        catalogue.CATALOGUE.write_text(text)
    assert f"hpccm {hpccm.__version__}" == COMPILER
    assert catalogue.CATALOGUE.read_text() == text
    assert catalogue.block_of("no_such_block") is None


def test_documentation_is_found_at_all() -> None:
    found = {name for name in block_classes() if documented(name)}
    assert {"openmpi", "gnu", "packages", "cmake", "ucx", "copy", "shell"} <= found
    assert len(found) > 50


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("openmpi", "prefix"),
        ("openmpi", "toolchain"),
        ("openmpi", "configure_opts"),
        ("openmpi", "url"),
        ("openmpi", "annotate"),
        ("cmake", "eula"),
        ("pip", "venv"),
        ("packages", "apt_ppas"),
        ("generic_cmake", "cmake_opts"),
        ("shell", "commands"),
        ("environment", "variables"),
    ],
)
def test_arguments_of_base_classes_are_found(name: str, argument: str) -> None:
    assert argument in arguments(name)


def test_what_blocks_pass_among_themselves_is_not_for_recipes() -> None:
    assert not any("base_annotation" in arguments(name) for name in block_classes())


def test_catalogue_holds_blocks_and_primitives_alone() -> None:
    names = set(block_classes())
    assert {"openmpi", "mpich", "gnu", "shell", "raw", "environment"} <= names
    assert not names & {"base", "baseimage", "bb_base", "ConfigureMake", "Stage"}


def test_every_version_is_the_recipes_own() -> None:
    """Each block of hpccm's with a version of its own asks for one, and says hpccm's."""
    exempt = {"gnu", "llvm"}
    for name, cls in block_classes().items():
        taken = catalogue.default(cls, "version")
        problems = [fault.problem for fault in block_faults(use(name))]
        if "version" in documented(name) and name not in exempt:
            assert any(
                f"{name} needs a version: hpccm would use {taken}" in one for one in problems
            )
        for source in {"version", "url"} & documented(name):
            problems = [fault.problem for fault in block_faults(use(name, **{source: "1.2"}))]
            assert not any(f"{name} needs a version" in one for one in problems)


def test_why_scif_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of docs/recipes.md's reasons: where one no longer holds, it may be for recipes."""
    monkeypatch.chdir(tmp_path)
    texts, copies = {}, []
    for container_format in ("docker", "singularity"):
        hpccm.config.set_container_format(container_format)
        app = block_classes()["scif"](name="hello")
        app += hpccm.primitives.shell(commands=["make"])
        texts[container_format] = str(app)
        copies.append(app.runtime())
    assert "RUN scif install" in texts["docker"]
    assert texts["singularity"].startswith("%appinstall hello")
    assert (tmp_path / "hello.scif").exists()
    assert copies[-1] == ""


@pytest.mark.parametrize("name", ["cuda", "mpi"])
def test_toolkits_are_the_plans(name: str) -> None:
    assert block_faults(use(name, anything=1)) == []


def test_toolchains_are_those_of_hpccm() -> None:
    assert set(TOOLCHAIN_VARIABLES) == set(toolchain.__attrs__)
    for name in TOOLCHAINS:
        assert re.search(r"self\.toolchain ?=", catalogue.source_of(block_classes()[name])), name
