"""What sites run images with, as an ordinary user: Apptainer and Charliecloud."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterator

from builder.engines.apptainer import environment as apptainer_environment
from builder.verify.runners import commands
from builder.verify.runners.gpus import has_cdi
from builder.verify.runners.protocol import Container, Prefixed, Runner, scratch


@contextlib.contextmanager
def apptainer_runner(container: Container) -> Iterator[Runner]:
    """`apptainer exec` on the SIF."""
    tools = container.tools
    options = commands.apptainer_exec(
        str(container.artifact), directory=container.directory, gpu=container.gpu
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
def charliecloud_runner(container: Container) -> Iterator[Runner]:
    """`ch-run` on a folder into which the tarball is unpacked."""
    tools = container.tools
    user, capture = tools.ordinary_user, tools.processes.capture
    with scratch(container) as folder:
        image = folder / "image"
        capture(["mkdir", str(image)], user=user)
        unpacker = f"--use-compress-program={tools.program('pigz')}"
        try:
            capture(
                ["tar", "-x", unpacker, "-f", str(container.artifact), "-C", str(image)], user=user
            )
            cdi = container.gpu and has_cdi(tools)
            if container.gpu and not cdi:
                fromhost = [tools.program("ch-fromhost"), *commands.ch_fromhost(str(image))]
                capture(fromhost, user=user, env=tools.environment)
            options = commands.ch_run(str(image), directory=container.directory, cdi=cdi)
            yield Prefixed(
                prefix=(tools.program("ch-run"), *options),
                tools=tools,
                env={"USER": user or getpass.getuser()},  # it does not start without one
                user=user,
                cwd=folder,
            )
        finally:
            with contextlib.suppress(Exception):  # a leftover goes with the work folder
                capture(["chmod", "-R", "u+rwX", str(image)], check=False)
