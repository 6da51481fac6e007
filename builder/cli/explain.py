"""`build-images explain`: show why each cell is included or excluded, and its trials."""

from __future__ import annotations

import functools
import sys

from builder.build import native
from builder.build.planning import load_plan
from builder.cli import show
from builder.cli.options import Parser, SelectorOptions, add_flag
from builder.load.layers import layers_of
from builder.model.exact_json import streamed
from builder.system.home import Home
from builder.verify.rehearse.trials import seen_of


class ExplainOptions(SelectorOptions):
    """The options of `explain`."""

    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `explain`."""
    add_flag(parser, "--json", "as JSON")


def run(options: ExplainOptions) -> int:
    """Print every cell of the selection with the reason."""
    plan = load_plan(options.project, options.selection, may_be_empty=True)
    decided = functools.partial(show.decisions, opened=native.is_open)
    seen = functools.partial(seen_of, options.out, Home.of_environment())
    if options.json:
        sys.stdout.writelines(streamed(show.explanation_json(plan, decided, seen)))
    else:
        print(show.explanation(plan, decided, seen, complete=options.verbose))
        lower = layers_of(options.project).each[:-1]
        if lower:
            print("; ".join(f"{layer.name}: {layer.folder}" for layer in lower))
    return 0
