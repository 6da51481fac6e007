"""The interface of runners.

All runners provide the same: the image's environment without the caller's, HOME, the working
directory, an ordinary user, the host's network and shared memory and, on request, the host's GPUs
and a data folder. Runners that a launcher can start also pass on its variables, and no others.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from builder.build.engines import Tools
from builder.model.errors import BadInput
from builder.system.files import temporary_folder
from builder.system.process import Completed

# HOME must be a folder that exists: Open MPI refuses to start without one.
HOME_IN_CONTAINER = "/tmp"  # noqa: S108 - every image has it
# HOME where /tmp is the host's, in which any user of the host can write: Python and Open MPI load
# modules from HOME. An empty folder is mounted there; every image has the path (FHS 3.0).
PRIVATE_HOME = "/root"
DATA_AT = "/mnt"  # where a folder of the host is mounted: every image has it (FHS 3.0)
# The ordinary user for engines that could also run as root. Images have an entry for it, since
# Python's getpass, and so PyTorch, needs one.
NOBODY = "65534:65534"
# All of NVIDIA's GPUs, as a specification of the Container Device Interface names them:
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html
CDI_GPUS = "nvidia.com/gpu=all"
# https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """A launcher of the host, which starts a container for each rank.

    `command` precedes the container's own command. `environment` has all its variables except the
    container's settings; with the launcher's additions it reaches the programs in the containers.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """An artifact to run commands in.

    `directory` is the image's working directory, which not every format can store. With `gpu` the
    host's GPUs are passed to the container. `work` is a folder for temporary files. `binds` are
    folders of this machine that commands can read and write, by their paths in the container. Only
    the runners of sites use `around`, the launcher that starts the container, and `mounts`, more
    folders of this machine.
    """

    artifact: Path
    work: Path
    tools: Tools
    directory: str = "/"
    gpu: bool = False
    binds: Mapping[str, Path] = field(default_factory=dict)
    around: Around | None = None
    mounts: Mapping[str, Path] = field(default_factory=dict)

    def bind_options(self, name: str) -> list[str]:
        """Return the options that mount `binds` in the container."""
        return [f"--{name}={path}:{at}" for at, path in self.binds.items()]


def binds_of(texts: Iterable[str]) -> dict[str, Path]:
    """Return folders of this machine by their paths in the container, from texts DIR[:PATH].

    Raises `BadInput` for what is no folder, and for paths that a runtime would read otherwise.
    """
    binds = {}
    for text in texts:
        name, _, at = text.partition(":")
        folder = Path(name).absolute()
        at = at or str(folder)
        if not name or not folder.is_dir():
            raise BadInput(f"--bind {text}: {name or 'nothing'} is not a folder of this machine")
        if not at.startswith("/") or not at.strip("/") or set(":,") & set(f"{folder}{at}"):
            raise BadInput(f"--bind {text}: not DIR:/PATH without further colons and commas")
        binds[at] = folder
    return binds


class Runner(Protocol):
    """Runs commands in one artifact, with the image's environment and nothing of the caller's."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command to its end or its timeout; its failure is returned, not raised.

        No process that the command started remains when this returns.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A program that runs one format.

    `own` are patterns (fnmatch) of the variables that it sets by itself. `no_gpu` returns why it
    cannot pass GPUs to containers on this machine; empty if it can. The kind that `is_usual` runs
    the format, unless another kind is requested.
    """

    name: str
    format: str
    program: str
    open: Callable[[Container], AbstractContextManager[Runner]]
    own: tuple[str, ...] = ()
    no_gpu: Callable[[Tools], str] = field(default=lambda _tools: "")
    is_usual: bool = False

    @property
    def run_name(self) -> str:
        """The name of its runs, outcomes and evidence: `oci`, `oci-docker`."""
        return self.format if self.is_usual else f"{self.format}-{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefixed:
    """A runner that puts a prefix before each command."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiesDriver:
    """A runner that adds GPUs by changing the image; earlier commands see the image unchanged.

    `copy_driver` copies the driver's files into the image; it raises `StepFailed`.
    """

    inner: Runner
    copy_driver: Callable[[], object]

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        return self.inner.run(argv, timeout_s=timeout_s)


@contextmanager
def readable_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder that the ordinary user can read."""
    with temporary_folder(parent, prefix) as folder:
        folder.chmod(0o755)
        yield folder


def with_home(container: Container, folder: Path) -> Container:
    """Return the container with an empty folder, created in `folder`, at `PRIVATE_HOME`.

    A folder that the user mounts there remains. It has the mount points of those below it.
    """
    home = folder / "home"
    home.mkdir(mode=0o700)
    for at in container.binds:
        if at.startswith(f"{PRIVATE_HOME}/"):
            (home / at.removeprefix(f"{PRIVATE_HOME}/")).mkdir(parents=True, exist_ok=True)
    if container.tools.ordinary_user:
        shutil.chown(home, container.tools.ordinary_user)
    return dataclasses.replace(container, binds={PRIVATE_HOME: home, **container.binds})


@contextmanager
def scratch(container: Container) -> Iterator[Path]:
    """Create a temporary folder that the ordinary user owns."""
    with readable_folder(container.work, "run-") as folder:
        if container.tools.ordinary_user:
            shutil.chown(folder, container.tools.ordinary_user)
        yield folder


# ---- Support of GPUs on this machine; docs/gpus.md says what has been tried. ----


def cdi_problem(folders: tuple[Path, ...] = _CDI_FOLDERS, *, kind: str = "*") -> str:
    """Return why GPUs cannot be named by the Container Device Interface; empty if they can.

    `kind` is a pattern of the files that are read: the standard allows JSON and YAML.
    """
    vendor = CDI_GPUS.partition("=")[0]
    files = [file for folder in folders for file in folder.glob(kind) if file.is_file()]
    if any(vendor in file.read_text(errors="replace") for file in files):
        return ""
    places = " or ".join(f"{folder}/{kind}" for folder in folders)
    return f"no specification of {vendor} in {places}: create one with nvidia-ctk"


def offers(tools: Tools, command: Sequence[str], option: str) -> bool:
    """Return whether a program's help names an option."""
    done = tools.processes.capture(
        [tools.program(command[0]), *command[1:], "--help"],
        env={**tools.environment, "USER": tools.ordinary_user or "user"},
        check=False,
        timeout_s=20,
    )
    return option in re.split(r"[\s,=\[]+", done.stdout + done.stderr)


def missing(tools: Tools, *names: str) -> str:
    """Report the first of these programs that this machine lacks; empty if it has all."""
    absent = [name for name in names if not tools.has(name)]
    return f"{absent[0]} is missing on this machine" if absent else ""
