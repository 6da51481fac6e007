"""Buildah: the default engine. No daemon; the builder has a container storage of its own."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from builder.build.base_store import StoredBase
from builder.build.engines.protocol import DockerfileBuild, Instructions, Tools
from builder.build.engines.storage import driver_of
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import StepFailed
from builder.sources.journals import build_id
from builder.system.locks import locked
from builder.system.process import Processes
from builder.system.storage_drivers import Driver

_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (?P<instruction>.*)")
# Lines of its own, which say no more than that a step failed, or which layer a step made.
_OWN = re.compile(
    r"--> |subprocess exited with status \d+$|exit status \d+$"
    r'|(?:Error: |error )building at STEP ".*": (?:while running runtime: )?exit status \d+$'
    r'|time="[^"]*" level=error msg="(?:exit status|did not get container create message).*"$'
)

_PROCESSES = 32768


class Buildah:
    """Builds with `buildah build --isolation chroot`, which needs neither cgroups nor a runtime."""

    name = "buildah"
    lends = True
    options = "isolation chroot, network host"

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def version(self) -> str:
        return self._tools.version("buildah")

    def command(self, *arguments: str) -> list[str]:
        """Return a buildah command on the builder's own storage."""
        home = self._tools.home
        storage = ("--root", str(home.storage), "--runroot", str(home.path / "run"))
        return [self._tools.program("buildah"), *storage, *self.driver.options, *arguments]

    @property
    def driver(self) -> Driver:
        """The driver of the builder's storage."""
        home = self._tools.home
        home.path.mkdir(parents=True, exist_ok=True)
        return driver_of(home.path, home.search_path())

    @property
    def environment(self) -> dict[str, str]:
        """Buildah's variables. It mounts and unpacks in $TMPDIR, which `at_work` cleans up."""
        self._tools.home.temporary.mkdir(parents=True, exist_ok=True)
        return {**self._tools.environment, "TMPDIR": str(self._tools.home.temporary)}

    def has(self, name: str) -> bool:
        argv = self.command("inspect", "--type", "image", "--format", "{{.FromImageID}}", name)
        return self._tools.processes.capture(argv, check=False).returncode == 0

    def provide_base(self, base: StoredBase, *, log: Path) -> None:
        with locked(self._tools.home.path, "buildah-base"):
            if self.has(base.tag):
                return
            # Not the image with the base's digest: a stage that adds nothing to the base may be
            # there, which has the base's configuration, and then a digest of its own.
            number = self._pulled(f"oci-archive:{base.archive}")
            base.check()
            argv = self.command("tag", number, *base.names)
            self._tools.logged(argv, log=log, what="buildah tag")

    def build(self, build: DockerfileBuild) -> None:
        steps = Instructions(build, _STEP, _OWN)
        journals, number = self._tools.journals, build_id(build.name)
        if journals:
            journals.begin(number, fresh=not build.cache)
        argv = self.command(
            *("build", "--isolation=chroot", "--network=host", "--layers"),
            *([] if build.cache else ["--no-cache"]),
            *("--force-rm", "--format=oci"),
            f"--pull={'never' if build.image.is_bootstrapped else 'missing'}",
            f"--arch={ARCHITECTURES[build.image.cell.arch].oci}",
            *limits(),
            *[f"--volume={folder.path}:{folder.at}:ro" for folder in build.lent],
            *build.options,
        )
        try:
            self._tools.logged(
                argv,
                log=build.log,
                what="buildah build",
                env={**self.environment, **self._tools.downloading_for(build.name)},
                on_line=steps,
            )
        except StepFailed as error:
            if journals:
                journals.end(number, built=steps.built, taken=steps.taken, well=False)
            raise steps.failed(error) from error
        if journals:
            journals.end(number, built=steps.built, taken=steps.taken, well=True)

    def export(self, name: str, target: Path, *, log: Path) -> None:
        self._logged("push", "--quiet", "--disable-compression", name, f"dir:{target}", log=log)

    def load(self, folder: Path, name: str, *, log: Path) -> None:
        self._logged("tag", self._pulled(f"dir:{folder}"), name, log=log)

    def _pulled(self, source: str) -> str:
        """Add an image to the storage; return its ID."""
        argv = self.command("pull", "--quiet", source)
        done = self._tools.processes.capture(argv, env=self.environment)
        if not (number := done.stdout.strip().rpartition("\n")[2]):
            raise StepFailed("buildah pull printed no image")
        return number

    def _logged(self, command: str, *arguments: str, log: Path) -> None:
        self._tools.logged(
            self.command(command, *arguments),
            log=log,
            what=f"buildah {command}",
            env=self.environment,
        )

    def clean(self) -> None:
        # `Processes` of an interrupted run starts nothing more; cleaning needs a new one.
        if self._tools.home.storage.exists():
            Processes().capture(self.command("rm", "--all"), check=False, timeout_s=60)


def limits() -> list[str]:
    """Return options with limits for the build that this process is allowed to set.

    Without them, newer Buildahs try to raise the limits, which containers and virtual machines may
    forbid. 32768 processes is the default of containers.conf(5); it can be lowered, not raised.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if processes == resource.RLIM_INFINITY or processes > _PROCESSES:
        processes = _PROCESSES
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]
