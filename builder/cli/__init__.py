"""The command line: the one place that composes the stages."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from builder.cli.options import Options, parse
from builder.errors import BadInput, BuildImagesError, Interrupted, MissingPrerequisite

_WORKING = frozenset(
    [
        *("build", "verify", "reproduce", "doctor", "gc", "check-host"),
        *("keys", "publish", "pull", "policy"),
    ]
)
_BROKEN_PIPE = 128 + signal.SIGPIPE  # what a shell reports of a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _as_interrupt)
    try:
        return _command(options)
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


def _command(options: Options) -> int:
    if options.command in _WORKING:
        return _working(options)
    with _without_collector():
        if options.command == "schema":
            from builder import schema  # noqa: PLC0415

            print(schema.text(options.kind), end="")
            return 0
        if options.command in {"lock", "fetch"}:
            from builder.cli import sourcing  # noqa: PLC0415

            return {"lock": sourcing.lock, "fetch": sourcing.fetch}[options.command](options)
        if options.command in {"explain", "lint", "site-files", "ci", "catalog"}:
            return _looking(options)
        from builder.cli import unchanged  # noqa: PLC0415

        return {"plan": unchanged.plan, "spec": unchanged.spec}[options.command](options)


def _looking(options: Options) -> int:
    """The commands that make texts of plans and of images; `plan` starts without them."""
    if options.command == "explain":
        from builder.cli import commands  # noqa: PLC0415

        return commands.explain(options)
    if options.command == "lint":
        from builder.cli import linting  # noqa: PLC0415

        return linting.command(options)
    if options.command == "site-files":
        from builder.cli import site_files  # noqa: PLC0415

        return site_files.write_site_files(options)
    if options.command == "ci":
        from builder.cli import pipelines  # noqa: PLC0415

        return pipelines.print_pipeline(options)
    from builder.cli import cataloguing  # noqa: PLC0415

    return cataloguing.catalog(options)


def _working(options: Options) -> int:
    """The commands that start programs; those that only look start fast without them."""
    if options.command == "check-host":
        from builder.cli import checking  # noqa: PLC0415

        return checking.check_host(options)
    if options.command == "publish":
        from builder.cli import publishing  # noqa: PLC0415

        return publishing.publish(options)
    if options.command in {"pull", "policy"}:
        from builder.cli import pulling  # noqa: PLC0415

        return {"pull": pulling.pull_image, "policy": pulling.try_policy}[options.command](options)
    if options.command == "keys":
        from builder.cli import keys  # noqa: PLC0415

        return keys.keys(options)
    from builder.cli import building, examining, reproducing, verifying  # noqa: PLC0415
    from builder.cli.collecting import collect  # noqa: PLC0415

    return {
        "build": building.build,
        "verify": verifying.verify,
        "reproduce": reproducing.reproduce,
        "doctor": examining.doctor,
        "gc": collect,
    }[options.command](options)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Leave cyclic garbage alone: a sixth of a short command's time went into looking for it.

    Python looks once more when it ends; what is frozen it passes over.
    """
    gc.disable()
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.enable()


def _as_interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
