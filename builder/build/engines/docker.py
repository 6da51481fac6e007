"""Docker Engine: builds with BuildKit through buildx, or with the classic builder without it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.build.base_store import StoredBase
from builder.build.engines.protocol import DockerfileBuild, Instructions, Tools
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import StepFailed
from builder.system.locks import locked

# `#12 [hpc-base-development 3/8] RUN ...` of BuildKit, `Step 3/8 : RUN ...` of the classic builder
_STEP = re.compile(r"(?:#\d+ \[[^\]]*\d+/\d+\]|Step \d+/\d+ :) (?P<instruction>.*)")
_PREFIX = re.compile(r"^#\d+ [\d.]+ ")  # of a step's output: its number, and the seconds
# Lines of its own: the progress of downloads, and after a failure the last lines once more.
_OWN = re.compile(
    r"#\d+ (?:\[|sha256:|CACHED|DONE|ERROR)|-{6,}$| > \[|[\d.]+ |\S*Dockerfile\S*:\d+$| +\d+ \|"
    r"|ERROR: failed to (?:solve|build): .* exit code: \d+$"
    r"| ---> |Removing intermediate container|The command .* returned a non-zero code: \d+$"
)


class Docker:
    """Builds with the Docker Engine at $DOCKER_HOST, or else at the default socket."""

    name = "docker"
    lends = False
    options = "network host"

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def version(self) -> str:
        done = self._tools.processes.capture(
            [self._tools.program("docker"), "version", "--format", "{{.Server.Version}}"],
            hint="is the Docker Engine running, and is DOCKER_HOST right?",
        )
        return done.stdout.strip()

    def has(self, name: str) -> bool:
        docker = self._tools.program("docker")
        argv = [docker, "image", "inspect", "--format", "{{.Id}}", name]
        return self._tools.processes.capture(argv, check=False).returncode == 0

    def provide_base(self, base: StoredBase, *, log: Path) -> None:
        home = self._tools.home
        with locked(home.path, "docker-base"), TemporaryDirectory(dir=home.work) as scratch:
            if self.has(base.tag):
                return
            # An Engine before 25 cannot load an OCI archive, and its `docker import` labels every
            # image with its own architecture.
            saved = Path(scratch) / "base.docker.tar"
            first, *others = base.names
            self._load(f"oci-archive:{base.archive}", saved, first, log)
            for name in others:
                self._logged("docker", "tag", first, name, log=log)

    def _logged(self, program: str, command: str, *arguments: str, log: Path) -> None:
        argv = [self._tools.program(program), command, *arguments]
        self._tools.logged(argv, log=log, what=f"{program} {command}")

    def build(self, build: DockerfileBuild) -> None:
        assert not build.lent  # it cannot mount a folder of this machine in build steps
        steps = Instructions(build, _STEP, _OWN, _PREFIX)
        home = self._tools.home
        own = [str(folder / "tools/cli-plugins") for folder in (home.path, home.shared) if folder]
        system = ["/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins"]
        path = ":".join([*own, home.search_path(), *system])
        buildx = shutil.which("docker-buildx", path=path)
        command = (
            [buildx, "build", "--load", "--progress=plain"]
            if buildx
            else [self._tools.program("docker"), "build"]
        )
        argv = [
            *command,
            f"--platform=linux/{ARCHITECTURES[build.image.cell.arch].oci}",
            "--network=host",
            *([] if build.cache else ["--no-cache"]),
            *build.options,
        ]
        try:
            self._tools.logged(
                argv,
                log=build.log,
                what="docker build",
                env={"DOCKER_BUILDKIT": "1" if buildx else "0"},
                on_line=steps,
            )
        except StepFailed as error:
            raise steps.failed(error) from error

    def export(self, name: str, target: Path, *, log: Path) -> None:
        saved = target.with_suffix(".docker.tar")
        source, copied = f"docker-archive:{saved}", f"dir:{target}"
        try:
            self._logged("docker", "save", "--output", str(saved), name, log=log)
            self._logged("skopeo", "copy", "--quiet", source, copied, log=log)
        finally:
            saved.unlink(missing_ok=True)

    def load(self, folder: Path, name: str, *, log: Path) -> None:
        saved = folder.with_suffix(".docker.tar")
        try:
            self._load(f"dir:{folder}", saved, name, log)
        finally:
            saved.unlink(missing_ok=True)

    def _load(self, source: str, saved: Path, name: str, log: Path) -> None:
        self._logged("skopeo", "copy", "--quiet", source, f"docker-archive:{saved}:{name}", log=log)
        self._logged("docker", "load", "--quiet", "--input", str(saved), log=log)

    def clean(self) -> None:
        """Do nothing: the Engine removes containers of a client that went away."""
