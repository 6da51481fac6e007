"""`build-images blocks`: every block, its arguments in words, and an example that loads."""

from __future__ import annotations

import pytest
import yaml

from builder.cli import main
from builder.compile.spec import block_faults
from builder.compile.spec.schema import block_help, block_list
from builder.load.document import Faults
from builder.load.recipes import TOOLKIT_ARGUMENTS, check_toolkit
from builder.model import BlockUse, Where

BLOCKS = [block.name for block in block_list(TOOLKIT_ARGUMENTS)]


def test_blocks_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == BLOCKS
    assert {"cuda", "mpi", "gnu", "pip", "shell"} <= {*BLOCKS}
    assert "scif" not in BLOCKS


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_and_argument_has_words(name: str) -> None:
    block = block_help(name, TOOLKIT_ARGUMENTS)
    assert block
    assert block.summary.endswith(".")
    assert [key for key, (_, words) in block.arguments.items() if not words] == []


@pytest.mark.parametrize("name", BLOCKS)
def test_every_example_is_valid_in_a_recipe(name: str) -> None:
    block = block_help(name, TOOLKIT_ARGUMENTS)
    assert block
    [entry] = yaml.safe_load(block.example)
    use = BlockUse(name=name, arguments=entry[name], where=Where(file="", line=1))
    faults = Faults()
    if name in TOOLKIT_ARGUMENTS:
        check_toolkit(use, faults)
    assert [*faults.found, *block_faults(use)] == []


def test_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks", "gnu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("gnu\n  The `gnu` building block installs the GNU compilers")
    assert "\n  fortran: true or false\n      Boolean flag to specify whether to install" in text
    assert text.endswith("example:\n  - gnu: {}\n")
    assert max(map(len, text.splitlines())) < 110


def test_a_block_that_recipes_cannot_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks", "workdir"]) == 0
    assert "recipes cannot have it: a definition does not keep" in capsys.readouterr().out


def test_an_unknown_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks", "gun"]) == 2
    assert 'unknown block: gun\n  hint: did you mean "gnu"? valid: amgx,' in capsys.readouterr().err
