"""`build-images init`: make a project in a new folder."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

from builder.cli.options import Options, Parser
from builder.cli.schema import schema_text
from builder.load.project import KINDS, RECIPES
from builder.load.site import shipped_folder
from builder.reports.pipelines import INSTALL
from builder.reports.templates import new_project
from builder.system.files import write_new

_DESCRIPTION = """\
Make a project in a new or empty folder: a matrix, a recipe, a check, a pipeline for GitHub, a
README. The recipe is named after the folder. Everything else is inherited from the recipes, bases
and checks that come with this program.
"""


class InitOptions(Options):
    folder: Path
    dry_run: bool


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_path("folder", "a new or an empty folder", "DIR")
    parser.add_flag("--dry-run", "print the files, and write nothing")


def run(options: InitOptions) -> int:
    """Write the files, and print them with the next commands."""
    folder = options.folder
    shipped = {path.stem for path in (shipped_folder() / RECIPES).iterdir()}
    texts = new_project(folder.name, shipped, arch=platform.machine(), install=INSTALL)
    texts |= {f"schema/{kind}.json": schema_text(kind) for kind in KINDS}
    write_new(folder, texts, dry_run=options.dry_run)
    print("\n".join(str(folder / name) for name in sorted(texts)))
    place = shlex.quote(str(folder))
    recipe = next(Path(name).stem for name in texts if name.startswith(f"{RECIPES}/"))
    commands = f"  build-images plan --project {place}\n  build-images --project {place}"
    result = f"recipe: {recipe}\nnext:\n{commands}"
    print("dry run, nothing was written" if options.dry_run else result)
    return 0
