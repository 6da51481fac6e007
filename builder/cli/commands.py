"""The commands that only look: each prints its result and returns the exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.cli import show
from builder.cli.manifests import Wanted, state_of
from builder.errors import BadInput
from builder.load import load_project
from builder.model import Plan, Spec
from builder.plan import make_plan
from builder.spec import COMPILER, base_archive, block_faults, compile_spec, limit_reason

if TYPE_CHECKING:
    from builder.cli.options import Options

RUN_CHECKS = "tests/images/run-checks"


def plan(options: Options) -> int:
    """Show the selected images in build order."""
    made = load_plan(options)
    if options.graph:
        print(show.plan_graph(made))
        return 0
    states = image_states(options, made)
    if options.json:
        print(json.dumps(show.plan_json(made, states), indent=1))
    else:
        print(show.plan_text(made, states))
    return 0


def explain(options: Options) -> int:
    """Say why each cell is in or out."""
    made = load_plan(options, may_be_empty=True)
    if options.json:
        print(json.dumps(show.explanation_json(made), indent=1))
    else:
        print(show.explanation(made))
    return 0


def spec(options: Options) -> int:
    """Write the specs of the selected images, and print where they are."""
    from builder.cli import workspace  # noqa: PLC0415 - `plan` starts without it

    for one in compiled(options, load_plan(options)):
        folder = options.out / one.image.identifier
        sources = workspace.stored_sources(one)
        workspace.write_spec(one, None, folder, base_archive(one.image), sources)
        print(folder)
    return 0


def load_plan(options: Options, *, may_be_empty: bool = False) -> Plan:
    """The plan for a project and a selection; raises all faults of all files at once."""
    project = load_project(options.project, block_faults=block_faults)
    return make_plan(
        project,
        options.selection,
        compiler=COMPILER,
        limit_reason=limit_reason,
        may_be_empty=may_be_empty,
    )


def compiled(options: Options, made: Plan) -> list[Spec]:
    """The specs of all images, or every fault that compiling them finds."""
    run_checks = (options.project / RUN_CHECKS).read_text()
    specs: list[Spec] = []
    errors: list[BadInput] = []
    for image in made.images:
        try:
            specs.append(compile_spec(image, run_checks=run_checks))
        except BadInput as error:
            errors.append(error)
    if errors:
        faults = [fault for error in errors for fault in error.faults]
        raise BadInput.of(faults) if faults else errors[0]
    return specs


def image_states(options: Options, made: Plan) -> list[str]:
    """For each image, what the main job would do with it."""
    if options.refresh or not options.cache:
        return ["to build: all of it anew"] * len(made.images)
    wanted = Wanted(formats=options.formats, engine=options.engine, verify=options.verify)
    return [state_of(options.out, image, wanted).text for image in made.images]
