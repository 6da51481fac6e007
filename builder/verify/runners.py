"""Running a command inside an artifact: each format by the program that sites use for it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.engines import Buildah, Tools
from builder.engines.apptainer import environment as apptainer_environment
from builder.locks import locked
from builder.process import Completed

# HOME must be a folder that exists: Open MPI refuses to start without one.
_HOME_IN_CONTAINER = "/tmp"  # noqa: S108 - every image has it


class Runner(Protocol):
    """Runs commands in one artifact, with the image's environment and nothing of the caller's."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command to its end or its timeout; its failure is returned, not raised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prefixed:
    """A runner that is a command put before the command."""

    prefix: tuple[str, ...]
    tools: Tools
    env: dict[str, str]
    user: str | None
    cwd: Path

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.tools.processes.capture(
            [*self.prefix, *argv],
            env={**self.tools.environment, **self.env},
            user=self.user,
            cwd=self.cwd,
            timeout_s=timeout_s,
            check=False,
        )


@contextlib.contextmanager
def _scratch(work: Path, tools: Tools) -> Iterator[Path]:
    """A folder that the ordinary user owns, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=work, prefix="run-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if tools.ordinary_user:
            shutil.chown(folder, tools.ordinary_user)
        yield folder


@contextlib.contextmanager
def oci_runner(artifact: Path, *, work: Path, tools: Tools) -> Iterator[Runner]:
    """Buildah on the OCI layout itself, not on what an engine's storage holds of it."""
    buildah = Buildah(tools)
    capture = tools.processes.capture
    # Buildah names what it pulls after the path, and not every path is a valid name: so the
    # reference is relative, and shared by all images until the container stands.
    with locked(tools.home.path, "oci-runner"):
        made = capture(
            buildah.command("from", "--quiet", "--pull=always", f"oci:{artifact.name}:latest"),
            env=buildah.environment,
            cwd=artifact.parent,
        )
    container = made.stdout.split()[-1]
    inspected = capture(
        buildah.command("inspect", "--format", "{{.FromImageID}}", container), check=False
    )
    try:
        yield _Prefixed(
            prefix=tuple(
                buildah.command(
                    "run", "--isolation=chroot", f"--env=HOME={_HOME_IN_CONTAINER}", container, "--"
                )
            ),
            tools=tools,
            env=buildah.environment,
            user=None,
            cwd=work,
        )
    finally:
        with contextlib.suppress(Exception):  # an interrupted run cleans the whole storage
            capture(buildah.command("rm", container), check=False)
            capture(buildah.command("rmi", inspected.stdout.strip()), check=False)


@contextlib.contextmanager
def sif_runner(artifact: Path, *, work: Path, tools: Tools) -> Iterator[Runner]:
    """`apptainer exec`, as an ordinary user."""
    with _scratch(work, tools) as scratch:
        yield _Prefixed(
            prefix=(
                tools.program("apptainer"),
                "--silent",
                "exec",
                "--cleanenv",
                "--no-home",
                "--pwd=/",
                f"--env=HOME={_HOME_IN_CONTAINER}",
                str(artifact),
            ),
            tools=tools,
            env=apptainer_environment(scratch),
            user=tools.ordinary_user,
            cwd=scratch,
        )


@contextlib.contextmanager
def charliecloud_runner(artifact: Path, *, work: Path, tools: Tools) -> Iterator[Runner]:
    """`tar` and `ch-run`, as an ordinary user."""
    with _scratch(work, tools) as scratch:
        folder = scratch / "image"
        tools.processes.capture(["mkdir", str(folder)], user=tools.ordinary_user)
        tools.processes.capture(
            ["tar", "-xzf", str(artifact), "-C", str(folder)], user=tools.ordinary_user
        )
        try:
            yield _Prefixed(
                prefix=(
                    tools.program("ch-run"),
                    "--unset-env=*",
                    "--set-env",
                    f"--set-env=HOME={_HOME_IN_CONTAINER}",
                    str(folder),
                    "--",
                ),
                tools=tools,
                env={"USER": tools.ordinary_user} if tools.ordinary_user else {},
                user=tools.ordinary_user,
                cwd=scratch,
            )
        finally:
            with contextlib.suppress(Exception):  # a leftover goes with the work folder
                tools.processes.capture(["chmod", "-R", "u+rwX", str(folder)], check=False)


OpenRunner = Callable[..., AbstractContextManager[Runner]]

RUNNERS: dict[str, OpenRunner] = {
    "oci": oci_runner,
    "sif": sif_runner,
    "charliecloud": charliecloud_runner,
}
