"""`build-images shell`: open a shell in a built image, or in the stage that failed."""

from __future__ import annotations

import sys
from functools import partial

from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.cli.options import ImageOptions, Parser
from builder.model.manifest import LOG, MANIFEST
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify.user_commands import SHELLS, shell


class ShellOptions(ImageOptions):
    stage: str
    runner: str
    argv: list[str]


def declare(parser: Parser) -> None:
    parser.description = """\
Open a shell in an image, or run a command in it: build-images shell IMAGE -- ls /opt

The image is entered as its checks run: as an ordinary user, with its variables, on a copy. If the
last build of the image failed, its stage is entered instead, as it was before the step that failed,
as root and as build steps run; the step is printed. --stage enters another stage of that build.
Nothing that is changed inside is kept. The exit code is that of the shell or the command. Stages
are in Buildah's storage, so those that Docker built cannot be entered.
"""
    parser.usage = "build-images shell [OPTIONS] IMAGE [-- COMMAND ...]"
    parser.takes_command = True
    parser.add_argument("--stage", metavar="NAME", default="", help="enter a stage of the build")
    parser.add_argument(
        "--runner", choices=SHELLS, default="", help="enter the image by this program"
    )
    parser.add_image()


def run(options: ShellOptions) -> int:
    """Run a shell, or a command; return its exit status."""
    folder = options.image_folder(options.path, MANIFEST, LOG)
    tools = Tools(processes=Processes(), home=Home.of_environment())
    say = partial(print, file=sys.stderr)
    with at_work(tools, options.project, say):
        return shell(
            folder, tools, options.argv, stage=options.stage, runner=options.runner, say=say
        )
