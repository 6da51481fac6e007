"""Blocks of a site's own, registered by installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import block, image, recipe

from builder.compile.spec import block_faults, catalogue, compile_spec
from builder.compile.spec.catalogue import registered_names
from builder.model.errors import BadInput

MODULE = '''
"""A site's block."""

from hpccm.building_blocks.base import bb_base
from hpccm.primitives import shell


class Lustre(bb_base):
    """The `lustre` block installs the site's client.

    # Parameters

    version: The version of the client.

    modules: Boolean flag to build the modules.

    # Examples
    """

    def __init__(self, **kwargs):
        super().__init__()
        self._version = kwargs.get("version", "2.15.0")
        self._modules = kwargs.get("modules", False)
        self._hidden = kwargs.get("hidden", "")
        self += shell(commands=["install-lustre " + self._version])

    def runtime(self, _from="0"):
        return str(shell(commands=["install-lustre-client " + self._version]))


NOT_A_CLASS = 5
'''
ENTRY_POINTS = """
[build_images.blocks]
lustre = site_blocks:Lustre
gnu = site_blocks:Lustre
number = site_blocks:NOT_A_CLASS
gone = no_such_module:Block
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path that holds an installed distribution."""
    folder = tmp_path / "site-packages"
    info = folder / "site_blocks-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site_blocks.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-blocks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield tmp_path
    forget()
    sys.modules.pop("site_blocks", None)


def forget() -> None:
    catalogue._entry_points.cache_clear()


def test_a_registered_block_is_used_like_any_other(site: Path) -> None:
    use = block("lustre", version="2.16.1", modules=True)
    assert block_faults(use) == []
    spec = compile_spec(image(site, recipes=[recipe(development=(use,))]), run_checks="#!/bin/sh\n")
    assert "RUN install-lustre 2.16.1" in spec.dockerfile
    assert "    install-lustre-client 2.16.1" in spec.singularity


@pytest.mark.usefixtures("site")
def test_its_arguments_are_checked() -> None:
    given = block("lustre", version="2.16.1", modules="yes", verison="1", hidden="x")
    problems = [fault.problem for fault in block_faults(given)]
    assert problems == [
        'unknown argument of lustre "verison"; did you mean "version"?',
        'expected true or false, found the text "yes"',
    ]


@pytest.mark.usefixtures("site")
def test_its_version_is_the_recipes_too() -> None:
    [fault] = block_faults(block("lustre"))
    assert fault.problem.startswith("lustre needs a version: ")
    assert "2.15.0" in fault.problem


@pytest.mark.usefixtures("site")
def test_it_is_offered_where_a_name_is_unknown() -> None:
    [fault] = block_faults(block("lustra"))
    assert fault.problem == 'unknown block "lustra"; did you mean "lustre"?'
    assert "lustre" in fault.valid


def test_a_block_of_hpccms_cannot_be_replaced(site: Path) -> None:
    spec = compile_spec(
        image(site, recipes=[recipe(development=(block("gnu"),))]), run_checks="#!/bin/sh\n"
    )
    assert "lustre" not in spec.dockerfile
    assert registered_names() == ["gnu", "gone", "lustre", "number"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone", "the block gone cannot be used: no_such_module:Block: it cannot be imported"),
        ("number", "the block number cannot be used: site_blocks:NOT_A_CLASS: it is not a class"),
    ],
)
def test_what_is_no_block_is_bad_input(name: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        block_faults(block(name))
    assert str(caught.value).startswith(problem)
    assert "build_images.blocks" in caught.value.hint


def test_nothing_of_a_projects_folder_is_executed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even as an installed package, where `python -m` puts the folder on the path."""
    folder = site / "site-packages"
    (folder / "site_blocks.py").write_text("raise SystemExit('executed')\n")
    (folder / "lustre.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    forget()
    [fault] = block_faults(block("lustre"))
    assert fault.problem.startswith('unknown block "lustre"')


def test_installed_packages_are_looked_through_for_unknown_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "_entry_points", lambda: pytest.fail("looked"))
    assert block_faults(block("gnu")) == []
