"""`build-images run`: run a program in an image, measure it and keep a record of it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from builder.artifacts.manifests import check_writable, record, recorded
from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.cli.options import ImageOptions, Parser
from builder.model import FORMATS
from builder.model.manifest import MANIFEST
from builder.model.measurement import ProgramRun
from builder.model.records import write
from builder.reports.measured import exposition_of_run, plot_of_run, text_of_run
from builder.system.files import write_atomically
from builder.system.home import Home, failure_of
from builder.system.process import Processes
from builder.verify.runners.protocol import binds_of
from builder.verify.user_commands import ProgramRequest, run_program


class RunOptions(ImageOptions):
    format: str
    bare: bool
    bind: Sequence[str]
    prometheus: Path | None
    plot: Path | None
    json: bool
    argv: list[str]


def declare(parser: Parser) -> None:
    parser.description = """\
Run a program in an image: build-images run IMAGE --bind data:/data -- python3 /data/train.py

The program has this command's streams, and gets the signals that it gets; its exit status is the
exit code. It runs as checks do: as an ordinary user, with the image's variables and none of the
caller's, on a copy. At its end, time to completion, processor time, memory and the use of GPUs are
printed on standard error, and recorded in the image's folder, with the command, in runs/.
"""
    parser.usage = "build-images run [OPTIONS] IMAGE -- [NAME=VALUE ...] COMMAND [ARGUMENT ...]"
    parser.takes_command = True
    place = parser.add_mutually_exclusive_group()
    text = "the format to run (default: the first that this machine can)"
    place.add_argument("--format", choices=FORMATS, default="", help=text)
    parser.add_flag(
        "--bare", "run it in the image's files without a container, to compare", to=place
    )
    text = "a folder to read and write, by default at the same path (may be repeated)"
    parser.add_list("--bind", text, "DIR[:PATH]")
    parser.add_path("--prometheus", "also write the result in Prometheus' text format")
    parser.add_path("--plot", "also draw the samples: a page if FILE ends with .html, else SVG")
    parser.add_flag("--json", "the record as JSON on standard error, an error on standard output")
    parser.add_image()


def run(options: RunOptions) -> int:
    """Run a program; return its exit status, also if its record cannot be written."""
    if not options.argv:
        options.parser.error("name the command to run after --")
    folder = options.image_folder(options.path, MANIFEST)
    argv, binds = tuple(options.argv), binds_of(options.bind)
    request = ProgramRequest(argv=argv, format=options.format, bare=options.bare, binds=binds)
    check_writable(folder, *filter(None, (options.prometheus, options.plot)))
    tools = Tools(processes=Processes(), home=Home.of_environment())
    with at_work(tools, options.project, _say):
        done = run_program(folder, tools, request, say=_say)
    try:
        _write(options, folder, done)
    except OSError as error:
        with contextlib.suppress(OSError):
            _say(f"build-images: {failure_of(error)}\n  the program's exit status: {done.status}")
    return done.status


def _write(options: RunOptions, folder: Path, done: ProgramRun) -> None:
    record(folder, done)
    if options.prometheus:
        write_atomically(options.prometheus, exposition_of_run(done))
    if options.plot:
        write_atomically(options.plot, plot_of_run(done, is_page=options.plot.suffix == ".html"))
    _say(json.dumps(write(done)) if options.json else text_of_run(done, recorded(folder)))


def _say(text: str) -> None:
    print(text, file=sys.stderr)
