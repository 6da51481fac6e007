"""The command `rehearse`: try as much of cells as possible without building them."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from builder.build.planning import compile_images, load_images
from builder.build.run import BuildSettings
from builder.cli.options import Parser, SelectorOptions, a_path
from builder.model import Spec
from builder.system.home import Home
from builder.system.terminal import Progress
from builder.verify.rehearse.rehearsal import rehearsal_here
from builder.verify.rehearse.servers import Servers
from builder.verify.rehearse.trials import as_json, as_text, write_record
from builder.verify.stand_ins import StepsOf, steps_on_stand_ins


class RehearseOptions(SelectorOptions):
    clones: Sequence[Path]
    steps: bool
    json: bool


def declare(parser: Parser) -> None:
    text = "a folder with copies of Git repositories, as OWNER/NAME.git (may be repeated)"
    parser.add_list("--clones", text, "DIR", convert=a_path)
    text = "also run the build steps, on a Debian base in place of Ubuntu's; takes minutes"
    parser.add_flag("--steps", text)
    parser.add_json("print JSON, with passed trials")


def run(options: RehearseOptions) -> int:
    """Rehearse the selected cells, and print what was tried; 1 if anything failed."""
    home = Home.of_environment()
    specs = compile_images(options.project, load_images(options.project, options.selection))
    progress, servers = Progress(level=options.level), Servers()
    rehearsal = rehearsal_here(options.project, options.clones, home, servers)
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    cells = []
    with _steps(options, home, specs, progress, servers) as steps_of:
        for number, spec in enumerate(specs, start=1):
            progress.say(f"{number} of {len(specs)}: {spec.image.identifier}")
            cells.append(rehearsal.of(spec).with_more(steps_of(spec)))
            write_record(home.rehearsals, cells[-1], today)
    text = as_text(cells, with_passed=options.level > 1)
    options.show(as_json(cells), lambda: "\n".join(text))
    return 1 if any(cell.has_failed for cell in cells) else 0


def _steps(
    options: RehearseOptions, home: Home, specs: list[Spec], progress: Progress, servers: Servers
) -> contextlib.AbstractContextManager[StepsOf]:
    """Return a context with the function that tries a spec's steps, if requested."""
    if not options.steps:
        return contextlib.nullcontext(lambda _: [])
    build = BuildSettings(
        project=options.project, out=home.rehearsals, formats=("oci",), verbose=options.level > 1
    )
    return steps_on_stand_ins(build, specs, progress, servers.ask)
