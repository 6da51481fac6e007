"""Runners of the OCI layout itself, not of an engine's stored copy: Buildah, Podman, Docker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.at_work import OWN_STORAGE
from builder.build.engines import Buildah, Tools
from builder.build.engines.buildah import limits
from builder.system.descendants import waiting, waiting_below
from builder.system.files import remove_tree
from builder.system.process import Completed, Processes
from builder.verify.runners.protocol import (
    CDI_GPUS,
    HOME_IN_CONTAINER,
    NOBODY,
    Container,
    Prefixed,
    Runner,
    cdi_problem,
    offers,
    scratch,
)

_PAUSES_S = (0, 1, 5)
# Buildah's lines about a command that failed, which follow those of the command.
_OWN = re.compile(r"(?m)^(?:subprocess exited with status|(?:Error|error): exit status) \d+\n?")
_MARKED = '"$@"; status=$?; printf "\\n%s\\n" "$0"; {pause}exit $status'


@dataclass(frozen=True, kw_only=True, slots=True)
class Chroot:
    """Buildah's runner with a chroot, which may lose the end of a command's output.

    It copies output in a thread and does not wait for the end of that thread:
    https://github.com/containers/buildah/blob/v1.28.2/chroot/run_common.go (runUsingChrootMain).
    So a shell prints a mark after the command. If the mark is missing, the command is run again,
    with a longer pause after the mark.
    The shell also reports the signal that ended the command; Buildah does not.
    """

    inner: Prefixed

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        for pause_s in _PAUSES_S:
            mark = f"ended-{secrets.token_hex(8)}"
            script = _MARKED.format(pause=f"sleep {pause_s}; " if pause_s else "")
            command = ["sh", "-c", script, mark, *argv]
            done = self.inner.run(command, timeout_s=timeout_s + pause_s)
            before, ended, after = done.stdout.rpartition(f"\n{mark}\n")
            if ended or done.timed_out:
                return dataclasses.replace(
                    done,
                    argv=tuple(argv),
                    stdout=before + after if ended else done.stdout,
                    stderr=_OWN.sub("", done.stderr),
                )
        last = "".join(f": {line}" for line in done.stderr.splitlines()[-1:])
        lost = f"buildah run: exit status {done.returncode}, and the end of the output is missing"
        stderr = f"{done.stderr}{lost}, {len(_PAUSES_S)} times{last}\n"
        return dataclasses.replace(done, argv=tuple(argv), returncode=1, stderr=stderr)


@contextlib.contextmanager
def buildah_runner(container: Container) -> Iterator[Runner]:
    """Create a working container of Buildah, in which each command runs with a chroot."""
    tools, env = container.tools, Buildah(container.tools).environment
    with _own_storage(container, "buildah", ending=("rm", "--all")) as buildah:
        yield Chroot(
            inner=Prefixed(
                prefix=(
                    *buildah,
                    "run",
                    "--isolation=chroot",  # it needs neither cgroups nor a runtime
                    f"--env=HOME={HOME_IN_CONTAINER}",
                    f"--workingdir={container.directory}",
                    *_user(),
                    *([f"--device={CDI_GPUS}"] if container.gpu else []),
                    *container.bind_options("volume"),
                    _pulled(container, [*buildah, "from", "--quiet"]),
                    "--",
                ),
                tools=tools,
                env=env,
                cwd=container.work,
            )
        )


def buildah_problem(tools: Tools) -> str:
    """Return why Buildah cannot pass this machine's GPUs to containers; empty if it can."""
    if not offers(tools, ["buildah", "run"], "--device"):
        return "this buildah cannot pass devices to containers"
    return cdi_problem()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A runner whose containers have names, so that containers that hang can be removed.

    If the engine is a daemon, it starts the programs in containers, and not this process.
    """

    engine: tuple[str, ...]
    options: Sequence[str]
    container: Container
    image: str
    env: Mapping[str, str]
    is_daemon: bool = False

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        name, container = f"build-images-{secrets.token_hex(8)}", self.container
        command = [
            *self.engine,
            "run",
            "--rm",
            f"--name={name}",
            "--network=host",
            "--ipc=host",
            f"--env=HOME={HOME_IN_CONTAINER}",
            f"--workdir={container.directory}",
            *self.options,
            *container.bind_options("volume"),
            f"--entrypoint={argv[0]}",
            self.image,
            *argv[1:],
        ]
        done = None
        try:
            done = container.tools.processes.capture(
                command,
                env=self.env,
                cwd=container.work,
                timeout_s=timeout_s,
                check=False,
                supervised=True,
                look=(lambda _pid: self._waiting(name)) if self.is_daemon else waiting_below,
            )
            return done
        finally:
            if not done or done.timed_out:  # also when interrupted: `_ask` still works
                self._ask("rm", "--force", name, timeout_s=60)

    def _ask(self, *words: str, timeout_s: float) -> str:
        argv = [*self.engine, *words]
        return Processes().capture(argv, env=self.env, check=False, timeout_s=timeout_s).stdout

    def _waiting(self, name: str) -> tuple[str, ...]:
        """Return what a daemon's processes wait for; empty if it is on another machine."""
        listed = self._ask("top", name, "-eo", "pid", timeout_s=10)
        pids = [int(word) for word in listed.split() if word.isdecimal()]
        return waiting([pid for pid in pids if Path(f"/proc/{pid}").exists()])


@contextlib.contextmanager
def podman_runner(container: Container) -> Iterator[Runner]:
    """Run Podman with a storage that only this run uses."""
    gpus = [f"--device={CDI_GPUS}"] if container.gpu else []
    # Its `system migrate` ends the process that keeps its namespace open.
    with _own_storage(container, "podman", "tmpdir", ending=("system", "migrate")) as podman:
        yield _Named(
            engine=podman,
            options=(*_user(), *limits(), *gpus),
            container=container,
            image=_pulled(container, [*podman, "pull", "--quiet"]),
            env=Buildah(container.tools).environment,
        )


@contextlib.contextmanager
def _own_storage(
    container: Container, program: str, *places: str, ending: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the command of an engine with a storage that only this run uses.

    Other builders cannot remove a container in it; `at_work` removes the storage of a killed one.
    `places` are options for further folders; the command's `ending` is run before the removal.
    Podman refuses a runroot with a path of more than 50 characters, such as those in users' homes.
    """
    tools = container.tools
    tools.home.temporary.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=tools.home.temporary, prefix=OWN_STORAGE))
    with tempfile.TemporaryDirectory(
        dir="/tmp", prefix=f"{program}-", ignore_cleanup_errors=True
    ) as short:
        folders = [f"--{name}={short}/{name}" for name in ("runroot", *places)]
        driver = Buildah(tools).driver.options
        command = (tools.program(program), f"--root={root}", *folders, *driver)
        try:
            yield command
        finally:
            with contextlib.suppress(Exception):
                end = [*command, *ending]
                Processes().capture(end, env=tools.environment, check=False, timeout_s=60)
            remove_tree(root)


def _pulled(container: Container, command: Sequence[str]) -> str:
    """Pull the artifact by an engine's command; return the name that the command prints.

    Engines derive the image's name from the path, and not every path is a valid name. So the
    reference is relative.
    """
    tools, artifact = container.tools, container.artifact
    env = Buildah(tools).environment
    pulled = tools.processes.capture(
        [*command, f"oci:{artifact.name}"], env=env, cwd=artifact.parent
    )
    return pulled.stdout.split()[-1]


@contextlib.contextmanager
def docker_runner(container: Container) -> Iterator[Runner]:
    """Run on the Docker Engine of $DOCKER_HOST; before version 25 it cannot load OCI layouts."""
    tools, artifact = container.tools, container.artifact
    docker, capture = tools.program("docker"), tools.processes.capture
    runner = _Named(
        engine=(docker,),
        options=(f"--user={NOBODY}", *(["--gpus=all"] if container.gpu else [])),
        container=container,
        image=f"build-images/verify:{secrets.token_hex(8)}",
        env=tools.environment,
        is_daemon=True,
    )
    with scratch(container) as folder:
        archive = folder / "image.tar"
        target = f"docker-archive:{archive}:{runner.image}"
        copy = [tools.program("skopeo"), "copy", "--quiet", f"oci:{artifact.name}", target]
        capture(copy, env=tools.environment, cwd=artifact.parent)
        capture([docker, "load", "--quiet", "--input", str(archive)])
    try:
        yield runner
    finally:
        with contextlib.suppress(Exception):  # an interrupted run starts nothing more by itself
            removal = [docker, "rmi", "--force", runner.image]
            Processes().capture(removal, env=runner.env, check=False)


def _user() -> list[str]:
    """Return the option for the user inside; none for an ordinary caller, who is root there."""
    return [f"--user={NOBODY}"] if os.geteuid() == 0 else []
