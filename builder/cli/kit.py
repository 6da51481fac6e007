"""The command `kit`: an image and its checks in one file, for a machine without this program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.build.at_work import at_work
from builder.cli.options import Parser, ProgressOptions
from builder.model.errors import counted
from builder.model.manifest import MANIFEST
from builder.model.records import write
from builder.system.terminal import progress_for
from builder.verify.kits import KIT_FORMATS, write_kit
from builder.verify.preparation import run_on_finished

_DESCRIPTION = """\
Write an image, its checks and a program that runs them into one file, for a node without network,
root and this program: it needs Python 3.9 and Apptainer, ch-run or plain user namespaces.

  on the node:  tar -xf kit.tar && kit/run --output evidence.json
  back here:    build-images verify out/IDENTIFIER --import evidence.json
"""


class KitOptions(ProgressOptions):
    """The options of `kit`; `output` is the folder that contains the images' folders."""

    path: Path
    archive: Path
    format: Sequence[str]
    checks_only: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    text = "an image's folder, such as out/IDENTIFIER, or its identifier"
    parser.add_path("path", text, "IMAGE")
    parser.add_archive("file to write")
    text = "put only this format into the kit (may be repeated; default: both)"
    content = parser.add_mutually_exclusive_group()
    parser.add_list("--format", text, choices=KIT_FORMATS, to=content)
    text = "put only the checks of MPI and GPUs into the kit: it proves the node, not the image"
    parser.add_flag("--checks-only", text, to=content)
    parser.add_json("print the description of the kit as JSON")


def run(options: KitOptions) -> int:
    """Run the command."""
    folder, file = options.image_folder(options.path, MANIFEST), options.archive
    run = run_on_finished(options.project, folder.parent, progress_for(options.level))
    with at_work(run.tools, options.project, run.progress.say):
        kit = write_kit(run, folder, file, options.format, checks_only=options.checks_only)
    size, steps = f"{file.stat().st_size / 1e6:.1f} MB", counted(len(kit.steps), "step")
    content = "checks only" if kit.checks_only else ", ".join(kit.artifacts)
    text = f"{file}  {kit.image}  {content}  {steps}  {size}  {kit.id}"
    options.show(write(kit), lambda: text)
    return 0
