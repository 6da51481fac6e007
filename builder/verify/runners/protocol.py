"""What a runner is given, and what it must do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from builder.build.engines import Tools
from builder.system.process import Completed

# HOME must be a folder that exists: Open MPI refuses to start without one.
HOME_IN_CONTAINER = "/tmp"  # noqa: S108 - every image has it
DATA_AT = "/mnt"  # where a folder of the host is shown: every image has it (FHS 3.0)
# The ordinary user of engines that could also run as root: images have an entry for it, without
# which Python's getpass, and so PyTorch, does not know who it is.
NOBODY = "65534:65534"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """An artifact to run commands in.

    `directory` is the image's working directory, which not every format can hold. With `gpu` the
    host's GPUs are handed over. `work` is a folder for temporary files. `data` is a folder of this
    machine that commands find at `DATA_AT`, to read and write there.
    """

    artifact: Path
    work: Path
    tools: Tools
    directory: str = "/"
    gpu: bool = False
    data: Path | None = None

    @property
    def shown(self) -> str:
        """The folder `data` as command lines have it; empty if there is none."""
        return str(self.data or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A folder of the host that containers are shown, at a path of theirs."""

    path: Path
    at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """A launcher of the host, which starts a container for each rank.

    `command` stands before the container's own. `environment` is all that it is given, but for the
    container's own settings; with what it adds, that reaches the programs in the containers.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()


class Runner(Protocol):
    """Runs commands in one artifact, with the image's environment and nothing of the caller's."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command to its end or its timeout; its failure is returned, not raised.

        Nothing that the command started is left when this returns.
        """


@runtime_checkable
class CopiesDriver(Runner, Protocol):
    """A runner that hands over GPUs by changing the image: what is run before knows it as it is."""

    def copy_driver(self) -> None:
        """Copy the driver's files into the image; raises `StepFailed`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A program that runs one format.

    `own` are patterns (fnmatch) of the variables that it sets by itself. `no_gpu` says why it
    cannot hand over GPUs on this machine; nothing if it can. `launched` is for what a launcher can
    start: a container that is one process of the ordinary user's, on whichever node.
    """

    name: str
    format: str
    program: str
    open: Callable[[Container], AbstractContextManager[Runner]]
    own: tuple[str, ...] = ()
    no_gpu: Callable[[Tools], str] = field(default=lambda _tools: "")
    launched: Callable[[Container, Around], AbstractContextManager[Runner]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefixed:
    """A runner that is a command put before the command."""

    prefix: tuple[str, ...]
    tools: Tools
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.tools.processes.capture(
            [*self.prefix, *argv],
            env={**self.tools.environment, **self.env},
            user=self.user,
            cwd=self.cwd,
            timeout_s=timeout_s,
            check=False,
            supervised=True,
        )


@contextmanager
def scratch(container: Container) -> Iterator[Path]:
    """A folder that the ordinary user owns, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=container.work, prefix="run-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if container.tools.ordinary_user:
            shutil.chown(folder, container.tools.ordinary_user)
        yield folder
