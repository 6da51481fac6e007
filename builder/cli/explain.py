"""`build-images explain`: show why each cell is included or excluded, and its trials."""

from __future__ import annotations

import functools

from builder.build import listings, mirror, native
from builder.build.planning import load_plan
from builder.cli.options import Parser, SelectorOptions
from builder.load.site import layers_of
from builder.system.home import Home
from builder.verify.rehearse.trials import seen_of


class ExplainOptions(SelectorOptions):
    json: bool


def declare(parser: Parser) -> None:
    parser.add_json()


def run(options: ExplainOptions) -> int:
    """Print every cell of the selection with the reason."""
    plan = load_plan(options.project, options.selection, may_be_empty=True)
    decided = functools.partial(
        listings.decisions, opened=native.is_open, archives=mirror.machine_archives()
    )
    seen = functools.partial(seen_of, options.out, Home.of_environment())
    if options.json:
        options.stream(listings.explanation_json(plan, decided, seen))
    else:
        print(listings.explanation(plan, decided, seen, complete=options.verbose))
        lower = layers_of(options.project).each[:-1]
        if lower:
            print("; ".join(f"{layer.name}: {layer.folder}" for layer in lower))
    return 0
