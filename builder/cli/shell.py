"""`build-images shell`: open a shell in a built image, or in the stage that failed."""

from __future__ import annotations

import sys
from pathlib import Path

from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.build.workspace import LOG
from builder.cli.options import Options, Parser, a_path, add_output, find_image
from builder.model.errors import BadInput, MissingPrerequisite
from builder.model.manifest import MANIFEST
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify.shells import SHELLS, shell_in_image, shell_in_stage, stages_of

_DESCRIPTION = """\
Open a shell in an image, or run a command in it: build-images shell IMAGE -- ls /opt

The image is entered as its checks run: as an ordinary user, with its variables, on a copy. If the
last build of the image failed, its stage is entered instead, as it was before the step that failed,
as root and as build steps run; the step is printed. --stage enters another stage of that build.
Nothing that is changed inside is kept. The exit code is that of the shell or the command. Stages
are in Buildah's storage, so those that Docker built cannot be entered.
"""
_HINT = "name an image's folder, such as out/IDENTIFIER, or its identifier"


class ShellOptions(Options):
    """The options of `shell`."""

    path: Path
    stage: str
    runner: str
    argv: list[str]


def declare(parser: Parser) -> None:
    """Add the options of `shell`."""
    parser.description = _DESCRIPTION
    parser.usage = "build-images shell [OPTIONS] IMAGE [-- COMMAND ...]"
    parser.takes_command = True
    parser.add_argument("path", type=a_path, metavar="IMAGE", help=_HINT)
    parser.add_argument("--stage", metavar="NAME", default="", help="enter a stage of the build")
    parser.add_argument(
        "--runner", choices=SHELLS, default="", help="enter the image by this program"
    )
    add_output(parser, "where the image's folder is, if its identifier is given (default: out)")


def run(options: ShellOptions) -> int:
    """Run a shell, or a command; return its exit status."""
    folder = find_image(
        options.path, options.out, lambda path: any((path / name).exists() for name in _IS), _HINT
    )
    stages, step = stages_of(folder)
    name = options.stage or (step.stage if step else "")
    if name and name not in stages:
        raise BadInput(f"unknown stage: {name}", hint=f"stages: {', '.join(stages) or 'none'}")
    if name and step and step.engine != "buildah":
        raise MissingPrerequisite(f"{step.engine} built {name}: only Buildah's stages are entered")
    tools = Tools(processes=Processes(), home=Home.of_environment())
    with at_work(tools, options.project, lambda text: print(text, file=sys.stderr)):
        if not name:
            return shell_in_image(folder, tools, options.argv, runner=options.runner)
        if step and name == step.stage:
            lines = [f"{name}, before the step that failed:", step.instruction, step.where]
            print("\n  ".join(filter(None, lines)), file=sys.stderr)
        return shell_in_stage(tools, stages[name], options.argv)


_IS = (MANIFEST, LOG)
