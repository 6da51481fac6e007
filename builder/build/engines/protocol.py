"""The Protocol of engines, and the tools of this machine that all of them use."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.build.base_store import StoredBase
from builder.model import PlannedImage
from builder.model.cells import image_tag
from builder.model.errors import BuildStep, MissingPrerequisite, StepFailed, shortened
from builder.model.package_indices import IndexState
from builder.model.versions import first_version
from builder.sources.journals import Journals, as_build, build_id, pip_as_build
from builder.system.home import ORDINARY_USER, Home
from builder.system.process import TAIL_LINES, Completed, Processes

if TYPE_CHECKING:
    from builder.sources.package_cache import PackageCache

OnLine = Callable[[str], None]
# A line that names an error, as compilers, linkers, CMake, configure, APT and pip write it
_ERROR = re.compile(
    r"(?i:(?:^|[\s:])(?:fatal |internal compiler )?error(?:\[\w+\]| #?[\w-]+)?:)"
    r"|^CMake Error|: undefined reference to |: cannot find -l|^(?:nvcc|ptxas) fatal|^E: "
)
# Lines shown with it: gfortran names the place before the error, GCC and CMake explain it below.
_BEFORE_ERROR, _AFTER_ERROR = 4, 2
_LAYER = re.compile(r"--> (?P<taken>Using cache )?(?P<id>[0-9a-f]{11})")  # Buildah's output


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """This machine's programs: how to run them, the builder's folders, and the search path."""

    processes: Processes
    home: Home
    packages: PackageCache | None = None  # the proxy through which packages are downloaded
    pip: str = ""  # a folder with the configuration that makes pip use the proxy
    journals: Journals | None = None  # lists of what each build downloads, if they are written

    def which(self, name: str) -> str | None:
        """Return the path of a program; None if it is not on this machine."""
        return shutil.which(name, path=self.home.search_path())

    def has(self, name: str) -> bool:
        """Return whether a program is on this machine."""
        return self.which(name) is not None

    def program(self, name: str) -> str:
        """Return the path of a program; raise `MissingPrerequisite` if it is missing."""
        path = self.which(name)
        if path is None:
            raise MissingPrerequisite(
                f"{name}: no such program on this machine",
                hint="'build-images doctor' says how to get it; 'build-images setup' installs it",
            )
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Variables of commands in addition to the caller's environment."""
        return {"PATH": self.home.search_path()}

    @property
    def downloading(self) -> dict[str, str]:
        """Further variables of commands that download packages."""
        return {"http_proxy": self.packages.url} if self.packages else {}

    def installing(self) -> AbstractContextManager[None]:
        """Return the context of a step that may install packages: `PackageCache.step`."""
        return self.packages.step() if self.packages else contextlib.nullcontext()

    def downloading_for(self, name: str) -> dict[str, str]:
        """Return the variables for a build, whose downloads are then listed under its name."""
        if not self.journals:
            return self.downloading
        return {key: as_build(url, build_id(name)) for key, url in self.downloading.items()}

    def index_states(self, name: str, *, earlier: bool = True) -> tuple[IndexState, ...]:
        """Return the states of package indices of a build, or of its cached layers.

        Without `earlier`, only those of this run: for builds that use no layers of earlier ones.
        """
        if self.journals and earlier:
            return self.journals.states(build_id(name))
        return self.packages.index_states(build_id(name)) if self.packages else ()

    def pip_for(self, name: str) -> Path | None:
        """Return the folder with pip's configuration for a build; None if there is none."""
        if self.pip and self.journals:
            return pip_as_build(self.pip, build_id(name))
        return Path(self.pip) if self.pip else None

    @property
    def ordinary_user(self) -> str | None:
        """The user for programs that root must not run; None if the caller is not root."""
        return ORDINARY_USER if os.geteuid() == 0 else None

    def logged(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        what: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Run `Processes.logged` with the tools' search path."""
        return self.processes.logged(
            argv,
            log=log,
            what=what,
            cwd=cwd,
            env={**self.environment, **(env or {})},
            user=user,
            on_line=on_line,
        )

    def version(self, name: str, *arguments: str) -> str:
        """Return the first version number that a program prints; empty if there is none."""
        done = self.processes.capture(
            [self.program(name), *(arguments or ("--version",))],
            env={**self.environment, "USER": os.environ.get("USER", "root")},
            check=False,
            timeout_s=20,
        )
        return first_version(done.stdout + done.stderr)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lent:
    """A folder of this machine that is mounted in build steps at a path of the image."""

    path: Path
    at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerfileBuild:
    """A build of the Dockerfile `file` in `context`; the engine keeps its image as `name`.

    `on_line` receives each step as it begins, and `on_output` each line that a step prints.
    Without `cache`, no step of an earlier build is used again. `lent` are folders that are mounted
    in build steps and do not become part of the image.
    """

    image: PlannedImage
    context: Path
    name: str
    log: Path
    on_line: OnLine
    on_output: OnLine = field(default=lambda _line: None)
    file: str = "Dockerfile"
    cache: bool = True
    lent: Sequence[Lent] = ()

    @property
    def options(self) -> list[str]:
        """The last arguments of every engine's command."""
        return [f"--tag={self.name}", f"--file={self.context / self.file}", str(self.context)]


class Engine(Protocol):
    """Builds Dockerfiles. One value serves one run; methods may be called from several threads."""

    name: str
    lends: bool  # whether folders of this machine can be mounted in build steps
    options: str  # the engine's options that affect the result, in words

    def version(self) -> str:
        """Return the engine's version."""

    def has(self, name: str) -> bool:
        """Return whether the engine has an image of a name."""

    def provide_base(self, base: StoredBase, *, log: Path) -> None:
        """Load a base into the engine under its names."""

    def build(self, build: DockerfileBuild) -> None:
        """Build a Dockerfile; raises `StepFailed` with the failing instruction."""

    def export(self, name: str, target: Path, *, log: Path) -> None:
        """Write an image into the folder `target`: `dir:` of containers-transports(5)."""

    def load(self, folder: Path, name: str, *, log: Path) -> None:
        """Load an exported image from a folder, under a name."""

    def clean(self) -> None:
        """Remove containers and mounts that an interrupted build left."""


def tag(image: PlannedImage) -> str:
    """Return the name under which an engine keeps a built image."""
    return image_tag(image.identifier, image.content_key)


class Instructions:
    """Follows a build's output: its current instruction, and the layers built or used again.

    `begins` matches the line by which an engine begins an instruction. Of other lines, `prefix` is
    left out; those that `own` matches are the engine's, and repeat what the error says.
    """

    def __init__(
        self,
        build: DockerfileBuild,
        begins: re.Pattern[str],
        own: re.Pattern[str],
        prefix: re.Pattern[str] | None = None,
    ) -> None:
        self._build = build
        self._begins, self._own, self._prefix = begins, own, prefix
        self._current = ""
        self._begun: dict[str, str] = {}  # instructions, by the lines that began them
        self._layer = ""
        self._output: deque[str] = deque(maxlen=TAIL_LINES)
        self._first_error: list[str] = []
        self._after_error = 0  # lines since then
        self.built: set[str] = set()  # layers, by the first digits of their ids in the engine
        self.taken: set[str] = set()  # layers of an earlier build

    def __call__(self, line: str) -> None:
        if layer := _LAYER.search(line):
            self._layer = layer["id"]
            (self.taken if layer["taken"] else self.built).add(layer["id"])
            self.built -= self.taken
        if match := self._begins.search(line):
            self._begin(match[0].strip(), match["instruction"].strip())
        elif not self._own.match(line):
            text = self._prefix.sub("", line) if self._prefix else line
            self._output.append(text)
            self._note_error()
            self._build.on_output(text)

    def _note_error(self) -> None:
        """Note the first lines of a step's output that name an error."""
        if self._first_error:
            self._after_error += 1
            if self._after_error <= _AFTER_ERROR:
                self._first_error.append(self._output[-1])
        elif _ERROR.search(self._output[-1]):
            self._first_error = [*self._output][-1 - _BEFORE_ERROR :]

    def _begin(self, line: str, instruction: str) -> None:
        if line not in self._begun:
            self._begun[line] = instruction
            self._output.clear()
            self._first_error, self._after_error = [], 0
        self._current = instruction
        self._build.on_line(line)

    def failed(self, error: StepFailed) -> StepFailed:
        """Return the error of a build that failed, naming the instruction, with its output."""
        image = self._build.image.identifier
        step = BuildStep(
            instruction=self._current,
            number=max(1, [*self._begun.values()].count(self._current)),
            layer=self._layer,
        )
        step_line = " ".join(self._current.split())
        return StepFailed(
            f"the build failed at: {shortened(step_line, 300) or 'its start'}",
            tail=self._output or error.tail,
            first_error=self._first_error if self._after_error >= TAIL_LINES else (),
            log=error.log,
            hint=f"all output: build-images logs {image}",
            step=step if self._current else None,
        )
