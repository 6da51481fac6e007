"""The command line: the one place that composes the stages."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from gc import freeze
from pathlib import Path

from builder.cli.commands import command_of, parse
from builder.cli.options import Options
from builder.model.errors import BadInput, BuildImagesError, Interrupted, MissingPrerequisite
from builder.model.planned import AllLeftOut
from builder.system.home import Home
from builder.system.terminal import printable_lines

_BROKEN_PIPE = 128 + signal.SIGPIPE  # a shell's status for a program that SIGPIPE ended
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HINTS = {
    **dict.fromkeys(_FULL, "free disk space, or name another folder: --output, BUILD_IMAGES_HOME"),
    **dict.fromkeys(
        [errno.EACCES, errno.EPERM, errno.EROFS],
        "name another folder, or get permission for this one",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without our marks is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _ended(argv)
    except SystemExit as ended:  # by the parser: help, or bad usage
        if lost := _flushed(quiet=bool(ended.code)):
            return lost
        raise
    lost = _flushed(quiet=bool(code))
    return code or lost


def _ended(argv: Sequence[str] | None) -> int:
    options = Options()
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, signal.default_int_handler)
        if (options.project / "site.yaml").exists() or "BUILD_IMAGES_SITE" in os.environ:
            from builder.build.at_work import name_shared  # noqa: PLC0415 - few need it

            name_shared(options.project)
        command = command_of(options.command)
        freeze()  # modules are never freed: the collector need not scan them
        return command.run(options)
    except (KeyboardInterrupt, Interrupted):
        _tell("interrupted; run the same command again to continue")
        return Interrupted.exit_code
    except BuildImagesError as error:
        verbose = getattr(options, "verbose", False)
        text = error.complete() if verbose and isinstance(error, AllLeftOut) else error
        _tell(f"build-images: {text}")
        return error.exit_code
    except OSError as error:
        return _failed(error)
    except MemoryError:
        _tell("build-images: not enough memory")
        return MissingPrerequisite.exit_code


def _failed(error: OSError) -> int:
    """Print the file that cannot be read or written, and the reason; return the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output has ended, as `head` does
        return _BROKEN_PIPE
    text, code = describe(error)
    _tell(f"build-images: {text}")
    return code


def describe(error: OSError) -> tuple[str, int]:
    """Return the message for an error, with its hint on a second line, and the exit code."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    problem = f"{names}: {error.strerror}" if names and error.strerror else error.strerror or error
    hint = _HINTS.get(error.errno or 0)
    code = (MissingPrerequisite if _lacks(error) else BadInput).exit_code
    return f"{problem}" + (f"\n  hint: {hint}" if hint else ""), code


def _lacks(error: OSError) -> bool:
    """True if the machine lacks disk space, or a home directory that can be written to."""
    if error.errno in _FULL:
        return True
    named = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    try:
        home = Home.of_environment().path
    except MissingPrerequisite:  # this user has none
        return False
    return any(path == home or home in path.parents or path in home.parents for path in named)


def _tell(text: str) -> None:
    """Print to standard error, if it is open; the text may contain untrusted parts."""
    with contextlib.suppress(OSError):
        print(printable_lines(text), file=sys.stderr)


def _flushed(*, quiet: bool) -> int:
    """Flush the results; return the exit code if they cannot be written, else 0."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # at exit Python would try again, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BadInput.exit_code if quiet else _failed(error)
    return 0
