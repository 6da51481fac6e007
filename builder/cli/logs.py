"""`build-images logs`: print the log of an image's build, or what a check printed."""

from __future__ import annotations

import functools
import sys

from builder.build.workspace import log_text, not_begun
from builder.cli.options import ImageOptions, Parser
from builder.model.manifest import LOG
from builder.system.terminal import printable_lines
from builder.verify.checks import output_in


class LogsOptions(ImageOptions):
    follow: bool
    check: str


def declare(parser: Parser) -> None:
    parser.description = """\
Print the log of the last build of an image: the output of each step, of all of its stages. While
the build runs, that is its log so far; with -f, the command follows it, and ends with the build.
If a run has yet to begin the build, its state is printed, too; with -f, the command waits for it.
--check prints what a check printed in each format instead, if it failed or was skipped.
"""
    parser.add_image()
    parser.add_argument("-f", "--follow", action="store_true", help="follow a running build")
    parser.add_argument("--check", metavar="NAME", default="", help="the output of this check")


def run(options: LogsOptions) -> int:
    """Print a log, or the output of a check."""
    folder = options.image_folder(options.path, LOG, or_is=lambda path: not_begun(path / LOG))
    if options.check:
        print(output_in(folder, options.check))
        return 0
    report = functools.partial(print, file=sys.stderr, flush=True)
    for data in log_text(folder / LOG, follow=options.follow, report=report):
        text = data.decode(errors="replace")
        sys.stdout.write(printable_lines(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    return 0
