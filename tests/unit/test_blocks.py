"""What hpccm's blocks take, as read from their own source."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from builder.model import BlockUse, Where
from builder.spec.blocks import _module_tree, arguments, block_faults, catalogue

PLACEHOLDERS = {"disable_FEATURE", "enable_FEATURE", "with_PACKAGE", "without_PACKAGE"}


def use(name: str, /, **given: Any) -> BlockUse:
    return BlockUse(
        name=name,
        arguments=given,
        where=Where(file="recipes/core.yaml", line=3, key=f"development[0].{name}"),
        lines={argument: 4 + n for n, argument in enumerate(given)},
    )


def documented(name: str) -> set[str]:
    """The names in a block's docstring, in the list under `# Parameters`."""
    text = catalogue()[name].__doc__ or ""
    listed = text.partition("# Parameters")[2].partition("# Examples")[0]
    return set(re.findall(r"^    ([a-z]\w*): ", listed, re.MULTILINE)) - PLACEHOLDERS


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_documented_arguments_are_taken(name: str) -> None:
    assert documented(name) <= arguments(name)
    for argument in sorted(documented(name)):
        assert block_faults(use(name, **{argument: None})) == []


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_no_block_takes_what_does_not_exist(name: str) -> None:
    [fault] = block_faults(use(name, no_such_argument_at_all=1))
    assert "no_such_argument_at_all" in fault.problem
    for word in ("Note", "installed"):  # words of the documentation that look like arguments
        assert block_faults(use(name, **{word: 1}))


def test_reading_the_sources_of_hpccm_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _module_tree.cache_clear()
        for cls in catalogue().values():
            _module_tree(cls.__module__)


def test_documentation_is_found_at_all() -> None:
    found = {name for name in catalogue() if documented(name)}
    assert {"openmpi", "gnu", "packages", "cmake", "ucx", "copy", "shell"} <= found
    assert len(found) > 50


def test_unknown_block_is_told_with_a_guess() -> None:
    [fault] = block_faults(use("opnmpi", version="5.0"))
    assert fault.problem == 'unknown block "opnmpi"; did you mean "openmpi"?'
    assert (fault.file, fault.line) == ("recipes/core.yaml", 3)
    assert fault.key == "development[0].opnmpi"
    assert fault.valid.startswith("valid: ")
    assert "openmpi" in fault.valid.split(": ", 1)[1].split(", ")


def test_unknown_block_like_no_other_has_no_guess() -> None:
    [fault] = block_faults(use("zzzzzzzz"))
    assert fault.problem == 'unknown block "zzzzzzzz"'


@pytest.mark.parametrize(
    ("name", "argument", "guess"),
    [
        ("openmpi", "verison", "version"),
        ("packages", "ospackage", "ospackages"),
        ("gnu", "fortan", "fortran"),
        ("ucx", "cuda_", "cuda"),
        ("copy", "dst", "dest"),
    ],
)
def test_unknown_argument_is_told_with_a_guess(name: str, argument: str, guess: str) -> None:
    [fault] = block_faults(use(name, **{argument: 1}))
    said = f'unknown argument of {name} "{argument}"; did you mean "{guess}"?'
    assert fault.problem == said
    assert (fault.line, fault.key) == (4, f"development[0].{name}.{argument}")


def test_every_unknown_argument_is_told() -> None:
    faults = block_faults(use("packages", ospackages=[], ospackges=[], aptt=[]))
    assert [fault.line for fault in faults] == [5, 6]


@pytest.mark.parametrize("argument", ["with_foo", "without_foo", "enable_foo", "disable_foo"])
def test_blocks_on_configure_take_any_feature(argument: str) -> None:
    assert block_faults(use("openmpi", **{argument: True})) == []
    assert block_faults(use("packages", **{argument: True})) != []


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("openmpi", "prefix"),
        ("openmpi", "toolchain"),
        ("openmpi", "configure_opts"),
        ("openmpi", "url"),
        ("openmpi", "annotate"),
        ("cmake", "eula"),
        ("packages", "apt_ppas"),
        ("generic_cmake", "cmake_opts"),
        ("shell", "commands"),
        ("environment", "variables"),
    ],
)
def test_arguments_of_base_classes_are_found(name: str, argument: str) -> None:
    assert argument in arguments(name)


def test_what_blocks_pass_among_themselves_is_not_for_recipes() -> None:
    assert not any("base_annotation" in arguments(name) for name in catalogue())


def test_catalogue_holds_blocks_and_primitives_alone() -> None:
    names = set(catalogue())
    assert {"openmpi", "mpich", "gnu", "shell", "raw", "environment"} <= names
    assert not names & {"base", "baseimage", "bb_base", "ConfigureMake", "Stage"}
