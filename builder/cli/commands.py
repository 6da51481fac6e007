"""The commands that only look: each prints its result and returns the exit code."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.build import binfmt
from builder.build.records import StageState, stage_states
from builder.cli import show
from builder.cli.unchanged import image_states, shows_stages
from builder.compile.spec import COMPILER, base_archive, block_faults, compile_spec, limit_reason
from builder.load.project import load_project
from builder.model import Plan, PlannedImage, Spec
from builder.model.errors import BadInput
from builder.plan import make_plan
from builder.plan.keys import DeclaredStages, StageKeys
from builder.system.home import Home
from builder.verify.expected import RUN_CHECKS

if TYPE_CHECKING:
    from builder.cli.options import Options


def plan(options: Options) -> int:
    """Show the selected images in build order, as data."""
    made = load_plan(options)
    if options.graph:
        print(show.plan_graph(made))
    else:
        states = image_states(options, made.images)
        print(json.dumps(show.plan_json(made, states, states_of_stages(options, made)), indent=1))
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


def declared_stages(options: Options, made: Plan) -> list[dict[str, Any]]:
    """The stages of a plan's images, as they are kept; none where they will not be shown."""
    if not shows_stages(options, len(made.images)):
        return []
    return [asdict(one) for one in declared_of(made.images)]


def states_of_stages(options: Options, made: Plan) -> list[tuple[StageState, ...]]:
    """For each image of a plan, what the main job would do with each of its stages."""
    declared, home = declared_of(made.images), Home.of_environment()
    return stage_states(home, options.engine, declared, native=options.native_tools)


def declared_of(images: Sequence[PlannedImage]) -> list[DeclaredStages]:
    """The stages of images, as their project declares them."""
    keys = StageKeys(COMPILER)
    return [keys.of(image) for image in images]


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
