"""Runners of sites, as an ordinary user: Apptainer and Charliecloud."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from builder.build.engines import Tools
from builder.build.engines.apptainer import environment as apptainer_environment
from builder.verify.runners.protocol import (
    CDI_GPUS,
    HOME_IN_CONTAINER,
    Container,
    CopiesDriver,
    Prefixed,
    Runner,
    cdi_problem,
    missing,
    offers,
    scratch,
)

# Ranks would look for the launcher's folder under a path that they do not have.
_NOT_OF_RANKS = {"TMPDIR"}


@contextlib.contextmanager
def apptainer_runner(container: Container) -> Iterator[Runner]:
    """`apptainer exec` on the SIF. HOME is set by --home alone; --no-home keeps the folder out."""
    line = [
        container.tools.program("apptainer"),
        "--silent",
        "exec",
        *([] if container.around else ["--cleanenv"]),
        "--no-home",
        f"--home={HOME_IN_CONTAINER}",
        f"--pwd={container.directory}",
        *(["--nv"] if container.gpu else []),
        *container.data_option("bind"),
        *(f"--bind={path}:{at}:ro" for at, path in container.mounts.items()),
        str(container.artifact),
    ]
    with scratch(container) as folder:
        yield _runner(container, line, apptainer_environment(folder), folder)


@contextlib.contextmanager
def charliecloud_runner(container: Container) -> Iterator[Runner]:
    """`ch-run` on a folder into which the tarball is unpacked."""
    tools, around = container.tools, container.around
    capture, user = tools.processes.capture, tools.ordinary_user
    cdi = container.gpu and has_cdi(tools)
    with unpacked(container, user=user) as image:
        line = [
            tools.program("ch-run"),
            # The launcher's own path of libraries is none of the container's.
            "--unset-env=LD_LIBRARY_PATH" if around else "--unset-env=*",
            "--set-env",
            f"--set-env=HOME={HOME_IN_CONTAINER}",
            f"--cd={container.directory}",
            *([f"--cdi={CDI_GPUS}"] if cdi else []),
            *container.data_option("bind"),
            *(f"--bind={path}:{at}" for at, path in container.mounts.items()),
            str(image),
            "--",
        ]
        runner: Runner = _runner(container, line, {"USER": _user(tools)}, image.parent)
        if container.gpu and not cdi:
            fromhost = [tools.program("ch-fromhost"), "--nvidia", str(image)]
            copy_driver = partial(capture, fromhost, user=user, env=tools.environment)
            if around:
                copy_driver()
            else:
                runner = CopiesDriver(inner=runner, copy_driver=copy_driver)
        for at in container.mounts:  # ch-run mounts on what is there
            capture(["mkdir", "-p", f"{image}{at}"], user=user)
        yield runner


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


def charliecloud_problem(tools: Tools) -> str:
    """Return why Charliecloud cannot hand over this machine's GPUs; empty if it can."""
    if has_cdi(tools):
        return cdi_problem(kind="*.json")
    return missing(tools, "ch-fromhost", "nvidia-container-cli")


def has_cdi(tools: Tools) -> bool:
    """Return whether this ch-run knows the Container Device Interface, as those after 0.39 may."""
    return offers(tools, ["ch-run"], "--cdi")


def _user(tools: Tools) -> str:
    try:
        return tools.ordinary_user or getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that it has no entry for
        return str(os.getuid())


def _runner(
    container: Container, line: Sequence[str], own: Mapping[str, str], folder: Path
) -> Prefixed:
    """Run what `line` starts in a folder, below the container's launcher if it has one.

    What the launcher gets is in its environment, not in a command line that anybody could read; the
    other variables are taken away.
    """
    tools, around = container.tools, container.around
    prefix, env = tuple(line), own
    if around:
        env = {**around.environment, **own}
        outer = {*os.environ, *tools.environment, *env}
        others = sorted(outer - (env.keys() - _NOT_OF_RANKS))
        prefix = ("env", *(f"--unset={name}" for name in others), *around.command, *line)
    return Prefixed(prefix=prefix, tools=tools, env=env, user=tools.ordinary_user, cwd=folder)
