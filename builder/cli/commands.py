"""The commands that only look: each prints its result and returns the exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.artifacts.manifests import Wanted, state_of
from builder.artifacts.settled import epoch_of
from builder.build import binfmt
from builder.build.records import StageState, stage_states
from builder.cli import show
from builder.compile.spec import COMPILER, base_archive, block_faults, compile_spec, limit_reason
from builder.load.project import RUN_CHECKS, load_project
from builder.model import Plan, PlannedImage, Spec
from builder.model.errors import BadInput
from builder.plan import make_plan
from builder.plan.keys import StageKeys
from builder.system.home import Home

if TYPE_CHECKING:
    from builder.cli.options import Options


MOST_WITH_STAGES = 50


def plan(options: Options) -> int:
    """Show the selected images in build order."""
    planned = load_plan(options)
    if options.graph:
        print(show.plan_graph(planned))
    else:
        show_plan(options, planned)
    return 0


def show_plan(options: Options, planned: Plan) -> None:
    """Print a plan with what the main job would do, as text or JSON.

    The stages of many images are shown where that is asked for, and in JSON.
    """
    states = image_states(options, planned.images)
    if options.json:
        stages = states_of_stages(options, planned)
        print(json.dumps(show.plan_json(planned, states, stages), indent=1))
    elif options.stages or len(planned.images) <= MOST_WITH_STAGES:
        print(show.plan_text(planned, states, states_of_stages(options, planned)))
    else:
        print(show.plan_text(planned, states))


def spec(options: Options) -> int:
    """Write the specs of the selected images, and print where they are."""
    print("\n".join(map(str, write_specs(options))))
    return 0


def explain(options: Options) -> int:
    """Say why each cell is in or out, and what was seen of each that is in."""
    from builder.verify.seen import seen_of  # noqa: PLC0415 - other commands start without it

    made = load_plan(options, may_be_empty=True)
    seen = functools.partial(seen_of, options.out, Home.of_environment())
    if options.json:
        print(json.dumps(show.explanation_json(made, opened=binfmt.is_open, seen=seen), indent=1))
    else:
        print(show.explanation(made, opened=binfmt.is_open, seen=seen))
    return 0


def write_specs(options: Options) -> list[Path]:
    """Write the specs of the selected images; their folders. Lint comes last, and can refuse."""
    from builder.build import workspace  # noqa: PLC0415 - `explain` starts without them
    from builder.cli import linting  # noqa: PLC0415 - `explain` starts without them

    folders = []
    specs = compiled(options, load_plan(options))
    for one in specs:
        folders.append(options.out / one.image.identifier)
        sources = workspace.stored_sources(one)
        workspace.write_spec(one, None, folders[-1], base_archive(one.image), sources)
    linting.check(options, specs, lambda text: print(text, file=sys.stderr))
    return folders


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


def image_states(options: Options, images: Sequence[PlannedImage]) -> list[str]:
    """For each image, what the main job would do with it."""
    if options.refresh or not options.cache:
        return ["to build: all of it anew"] * len(images)
    wanted = Wanted(
        formats=options.formats,
        engine=options.engine,
        verify=options.verify,
        epoch=epoch_of(os.environ),
        native_tools=options.native_tools,
    )
    return [state_of(options.out, image, wanted).text for image in images]


def states_of_stages(options: Options, made: Plan) -> list[tuple[StageState, ...]]:
    """For each image of a plan, what the main job would do with each of its stages."""
    keys, home = StageKeys(COMPILER), Home.of_environment()
    declared = [keys.of(image) for image in made.images]
    return stage_states(home, options.engine, declared, native=options.native_tools)


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
