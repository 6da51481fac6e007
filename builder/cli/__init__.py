"""The command line: the one place that composes the stages."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from builder.cli import dispatch
from builder.cli.options import parse
from builder.errors import BadInput, BuildImagesError, Interrupted, MissingPrerequisite

_BROKEN_PIPE = 128 + signal.SIGPIPE  # what a shell reports of a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _as_interrupt)
    try:
        return dispatch.run(options)
    except (KeyboardInterrupt, Interrupted):
        print("interrupted; run the same command again to go on from here", file=sys.stderr)
        return Interrupted.exit_code
    except BuildImagesError as error:
        print(f"build-images: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return _BROKEN_PIPE
    except OSError as error:
        print(f"build-images: {error}", file=sys.stderr)
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        return MissingPrerequisite.exit_code if full else BadInput.exit_code


def _as_interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
