"""`build-images schema`: the JSON Schema of a kind of file, printed."""

from __future__ import annotations

from builder.cli.options import Options, Parser, add_project
from builder.reports import schema

FILE_KINDS = (
    *("recipe", "base", "matrix", "checks", "site"),
    *("host", "host-contract", "policy", "policy-case"),
)
RESULT_KINDS = ("evidence",)


class SchemaOptions(Options):
    """The options of `schema`."""

    kind: str


def declare(parser: Parser) -> None:
    """Add the options of `schema`."""
    add_project(parser)
    kinds = (*FILE_KINDS, *RESULT_KINDS)
    parser.add_argument(
        "kind",
        metavar="KIND",
        choices=kinds,
        help=f"{', '.join(kinds[:-1])} or {kinds[-1]}",
    )


def run(options: SchemaOptions) -> int:
    """Print the schema of the kind that was asked for."""
    print(schema.text(options.kind), end="")
    return 0
