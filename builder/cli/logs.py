"""`build-images logs`: print the log of an image's build, or what a check printed."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.build.workspace import LOG, log_text
from builder.cli.options import Options, Parser, a_path, add_output, find_image
from builder.model.errors import BadInput
from builder.system.terminal import printable_lines
from builder.verify.checks import output_of

_DESCRIPTION = """\
Print the log of the last build of an image: the output of each step, of all of its stages. While
the build runs, that is its log so far; with -f, the command follows it, and ends with the build.
--check prints what a check printed in each format instead, if it failed or was skipped.
"""
_HINT = "name an image's folder, such as out/IDENTIFIER, or its identifier"


class LogsOptions(Options):
    """The options of `logs`."""

    path: Path
    follow: bool
    check: str


def declare(parser: Parser) -> None:
    """Add the options of `logs`."""
    parser.description = _DESCRIPTION
    parser.add_argument("path", type=a_path, metavar="IMAGE", help=_HINT)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow a running build to its end"
    )
    parser.add_argument("--check", metavar="NAME", default="", help="the output of this check")
    add_output(parser, "where the image's folder is, if its identifier is given (default: out)")


def run(options: LogsOptions) -> int:
    """Print a log, or the output of a check."""
    folder = find_image(options.path, options.out, lambda path: (path / LOG).is_file(), _HINT)
    if options.check:
        print(_check(folder, options.check))
        return 0
    for data in log_text(folder / LOG, follow=options.follow):
        text = data.decode(errors="replace")
        sys.stdout.write(printable_lines(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    return 0


def _check(folder: Path, name: str) -> str:
    manifest = read_manifest(folder)
    if manifest is None:
        raise BadInput(f"{folder.name} was not verified yet: no check has run")
    if text := output_of(manifest, name):
        return text
    known = sorted({outcome.check for run in manifest.checks.values() for outcome in run})
    close = get_close_matches(name, known, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise BadInput(f"unknown check: {name}", hint=f"{guess}checks: {', '.join(known)}")
