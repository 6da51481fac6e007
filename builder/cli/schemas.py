"""`build-images schema`: the JSON Schema of a kind of file, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.reports import schema

if TYPE_CHECKING:
    from builder.cli.options import Options


def print_schema(options: Options) -> int:
    """Print the schema of the kind that was asked for."""
    print(schema.text(options.kind), end="")
    return 0
