"""`build-images plan`: show the selected images in build order."""

from __future__ import annotations

import os

from builder.artifacts.manifests import ImageGoal, epoch_of
from builder.build import listings
from builder.build.planning import image_states, load_plan, states_of_stages
from builder.cli.options import Parser, SelectorOptions
from builder.model.exact_json import JsonObject

_MOST_WITH_STAGES = 50  # images; for more, stages are shown only on request


class PlanOptions(SelectorOptions):
    json: bool
    graph: bool
    stages: bool
    on: str


def declare(parser: Parser) -> None:
    shape = parser.add_mutually_exclusive_group()
    parser.add_json("as JSON, with content keys", to=shape)
    parser.add_flag("--graph", "as a graph in Graphviz's language", to=shape)
    parser.add_flag("--stages", "show the stages, even for many images")
    text = (
        "also show the workers of a Dask scheduler (tcp://login1:8786), and which of them "
        "share stages"
    )
    parser.add_argument("--on", metavar="SCHEDULER", default="", help=text)


def run(options: PlanOptions) -> int:
    """Print the plan as text, JSON or a graph."""
    plan = load_plan(options.project, options.selection)
    if options.graph and (options.on or options.stages):
        options.parser.error("--on, --stages: not with --graph")
    if options.graph:
        print(listings.plan_graph(plan))
        return 0
    text, values = _workers(options)
    goal = ImageGoal(epoch=epoch_of(os.environ))
    states = image_states(options.out, plan.images, goal)
    if options.json:
        stages = states_of_stages(plan.images, goal)
        options.stream({**listings.plan_json(plan, states, stages), **values})
        return 0
    if options.stages or len(plan.images) <= _MOST_WITH_STAGES:
        print(listings.plan_text(plan, states, states_of_stages(plan.images, goal)))
    else:
        print(listings.plan_text(plan, states))
    if text:
        print(f"\n{text}")
    return 0


def _workers(options: PlanOptions) -> tuple[str, JsonObject]:
    """Return the workers of the scheduler that is named, if any, as text and as JSON values."""
    if not options.on:
        return "", {}
    from builder.build.site_store import site_of  # noqa: PLC0415 - slow, and seldom needed
    from builder.verify.cluster import run as cluster  # noqa: PLC0415

    listed = cluster.listed_workers(options.on, site_of(options.project))
    return cluster.workers_text(listed), cluster.workers_json(listed)
