"""The command line: the one place that composes the stages."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from gc import disable, enable, freeze  # not gc, which is a command here

from builder.cli.commands import command_of, complete, parse
from builder.cli.options import BadUsage, Options
from builder.model.errors import BuildImagesError, Interrupted, MissingPrerequisite
from builder.model.planned import AllLeftOut
from builder.system.home import failure_of
from builder.system.terminal import SIGNALS, printable_lines

_BROKEN_PIPE = 128 + signal.SIGPIPE  # a shell's status for a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without our marks is no error
            stream.reconfigure(errors="backslashreplace")
    if "_ARGCOMPLETE" in os.environ:
        complete()
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(words)
    except SystemExit as ended:  # by the parser: help, or bad usage
        raise SystemExit(_flushed(int(ended.code or 0))) from ended
    return _flushed(code)


def _open_streams() -> None:
    """Open closed standard streams, lest files get their numbers: writing to output then fails."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.dup2(null, number)
            os.set_inheritable(number, True)  # `null` may have been that number
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _run(argv: Sequence[str]) -> int:
    options = Options()
    try:
        disable()  # while modules are imported, of which nothing is garbage
        options = parse(argv)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, signal.default_int_handler)
        if (options.project / "site.yaml").exists() or "BUILD_IMAGES_SITE" in os.environ:
            from builder.build.at_work import name_shared  # noqa: PLC0415 - few need it

            name_shared(options.project)
        command = command_of(options.command)
        freeze()  # modules are never freed: the collector need not scan them
        enable()
        return command.run(options)
    except BadUsage as usage:
        raise SystemExit(_answer(usage.error, options, argv)) from usage
    except BrokenPipeError:  # the reader of our output ended, as `head` does
        return _BROKEN_PIPE
    except (KeyboardInterrupt, Interrupted, BuildImagesError, OSError, MemoryError) as error:
        return _failed(_shown(error), options, argv)
    finally:
        enable()


def _shown(error: BaseException) -> BuildImagesError:
    """Return the error that is shown for one of Python's."""
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return Interrupted("interrupted; run the same command again to continue")
    if not isinstance(error, BuildImagesError | OSError):
        return MissingPrerequisite("not enough memory")
    return failure_of(error) if isinstance(error, OSError) else error


def _failed(error: BuildImagesError, options: Options, argv: Sequence[str]) -> int:
    """Print an error: its text to standard error, with --json its object; return the exit code."""
    verbose = getattr(options, "verbose", False)
    text = error.complete() if verbose and isinstance(error, AllLeftOut) else str(error)
    _tell(text if isinstance(error, Interrupted) else f"build-images: {text}")
    return _answer(error, options, argv)


def _answer(error: BuildImagesError, options: Options, argv: Sequence[str]) -> int:
    """With --json, print the error unless a result was printed; return the exit code."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    try:
        if (options.json or "--json" in words) and not options.is_answered:
            options.print_json(error.as_json())
    except OSError as lost:  # standard error has the text
        if isinstance(lost, BrokenPipeError):
            return _BROKEN_PIPE
    return error.exit_code


def _tell(text: str) -> None:
    """Print to standard error, if that works; the text may contain untrusted parts."""
    with contextlib.suppress(OSError):
        print(printable_lines(text), file=sys.stderr)


def _flushed(code: int) -> int:
    """Flush the results; return the exit code: another than 0 if they cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # at exit Python would try again, and fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code or isinstance(error, BrokenPipeError):
            return code or _BROKEN_PIPE
        lost = failure_of(error)
        _tell(f"build-images: {lost}")
        return lost.exit_code
    return code
