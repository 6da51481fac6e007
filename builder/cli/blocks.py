"""`build-images blocks`: describe the blocks of recipes, their arguments, and an example each."""

from __future__ import annotations

from builder.cli.options import Options, Parser
from builder.compile.spec.schema import block_help, block_list
from builder.load.document import suggest
from builder.load.recipes import TOOLKIT_ARGUMENTS
from builder.model.errors import BadInput


class BlocksOptions(Options):
    block: str | None


def declare(parser: Parser) -> None:
    parser.add_argument("block", metavar="NAME", nargs="?", help="a block (default: list them all)")


def run(options: BlocksOptions) -> int:
    """Print the description of a block, or a line for each block."""
    if options.block:
        block = block_help(options.block, TOOLKIT_ARGUMENTS)
        if block is None:
            names = [each.name for each in block_list(TOOLKIT_ARGUMENTS)]
            raise BadInput(f"unknown block: {options.block}", hint=suggest(options.block, names))
        print(block.as_text())
        return 0
    for each in block_list(TOOLKIT_ARGUMENTS):
        print(f"{each.name:20} {each.summary}")
    return 0
