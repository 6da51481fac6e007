"""What sites run images with, as an ordinary user: Apptainer and Charliecloud."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Tools
from builder.build.engines.apptainer import environment as apptainer_environment
from builder.system.process import Completed
from builder.verify.runners import commands
from builder.verify.runners.commands import has_cdi
from builder.verify.runners.protocol import Around, Container, Prefixed, Runner, scratch

# Ranks would look for the launcher's folder under a path that they do not have.
_NOT_OF_RANKS = ("TMPDIR",)


@dataclass(frozen=True, kw_only=True, slots=True)
class _WithoutCdi:
    """A ch-run that finds GPUs by the driver's files in the unpacked image."""

    line: Prefixed
    image: Path

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.line.run(argv, timeout_s=timeout_s)

    def copy_driver(self) -> None:
        _copy_driver(self.line.tools, self.image)


@contextlib.contextmanager
def apptainer_runner(container: Container) -> Iterator[Runner]:
    """`apptainer exec` on the SIF."""
    tools = container.tools
    options = commands.apptainer_exec(
        str(container.artifact),
        directory=container.directory,
        gpu=container.gpu,
        data=container.shown,
    )
    with scratch(container) as folder:
        yield Prefixed(
            prefix=(tools.program("apptainer"), *options),
            tools=tools,
            env=apptainer_environment(folder),
            user=tools.ordinary_user,
            cwd=folder,
        )


@contextlib.contextmanager
def apptainer_launched(container: Container, around: Around) -> Iterator[Runner]:
    """`apptainer exec` on the SIF, started by a launcher."""
    options = commands.apptainer_exec(
        str(container.artifact),
        directory=container.directory,
        gpu=container.gpu,
        launched=True,
        mounts=around.mounts,
    )
    line = [container.tools.program("apptainer"), *options]
    with scratch(container) as folder:
        yield _launched(container, around, line, apptainer_environment(folder), folder)


@contextlib.contextmanager
def charliecloud_runner(container: Container) -> Iterator[Runner]:
    """`ch-run` on a folder into which the tarball is unpacked."""
    tools = container.tools
    cdi = container.gpu and has_cdi(tools)
    with unpacked(container, user=tools.ordinary_user) as image:
        options = commands.ch_run(
            str(image), directory=container.directory, cdi=cdi, data=container.shown
        )
        line = Prefixed(
            prefix=(tools.program("ch-run"), *options),
            tools=tools,
            env=_name(container),
            user=tools.ordinary_user,
            cwd=image.parent,
        )
        yield _WithoutCdi(line=line, image=image) if container.gpu and not cdi else line


@contextlib.contextmanager
def charliecloud_launched(container: Container, around: Around) -> Iterator[Runner]:
    """`ch-run` on a folder into which the tarball is unpacked, started by a launcher."""
    tools = container.tools
    cdi = container.gpu and has_cdi(tools)
    with unpacked(container, user=tools.ordinary_user) as image:
        if container.gpu and not cdi:
            _copy_driver(tools, image)
        for mount in around.mounts:  # ch-run mounts on what is there
            folder = f"{image}{mount.at}"
            tools.processes.capture(["mkdir", "-p", folder], user=tools.ordinary_user)
        options = commands.ch_run(
            str(image),
            directory=container.directory,
            cdi=cdi,
            launched=True,
            mounts=around.mounts,
        )
        line = [tools.program("ch-run"), *options]
        yield _launched(container, around, line, _name(container), image.parent)


@contextlib.contextmanager
def unpacked(container: Container, *, user: str | None) -> Iterator[Path]:
    """The tarball's tree as a user's folder, below one that the ordinary user can write to.

    Without a `user` it is the caller's; root's has the owners that the tarball has.
    """
    tools = container.tools
    capture = tools.processes.capture
    with scratch(container) as folder:
        image = folder / "image"
        capture(["mkdir", str(image)], user=user)
        unpacker = f"--use-compress-program={tools.program('pigz')}"
        try:
            capture(
                ["tar", "-x", unpacker, "-f", str(container.artifact), "-C", str(image)], user=user
            )
            yield image
        finally:
            with contextlib.suppress(Exception):  # a leftover goes with the work folder
                capture(["chmod", "-R", "u+rwX", str(image)], check=False)


def _copy_driver(tools: Tools, image: Path) -> None:
    fromhost = [tools.program("ch-fromhost"), *commands.ch_fromhost(str(image))]
    tools.processes.capture(fromhost, user=tools.ordinary_user, env=tools.environment)


def _name(container: Container) -> dict[str, str]:
    """Who the user is: ch-run does not start without that."""
    return {"USER": container.tools.ordinary_user or _own_name()}


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that it has no entry for
        return str(os.getuid())


def _launched(
    container: Container,
    around: Around,
    line: Sequence[str],
    own: Mapping[str, str],
    folder: Path,
) -> Prefixed:
    given = {**around.environment, **own}
    names = given.keys() - {*_NOT_OF_RANKS}
    outer = {*os.environ, *container.tools.environment, *given}
    return Prefixed(
        prefix=(*commands.around(around.command, names, outer), *line),
        tools=container.tools,
        env=given,
        user=container.tools.ordinary_user,
        cwd=folder,
    )
