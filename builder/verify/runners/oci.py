"""The OCI layout itself, not what an engine's storage holds of it: buildah, Podman, Docker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Buildah, Tools
from builder.build.engines.buildah import limits
from builder.system.descendants import waiting, waiting_below
from builder.system.files import remove_tree
from builder.system.locks import locked
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

_TRIES = 3
_MARKED = '"$@"; status=$?; printf "\\n%s\\n" "$0"; exit $status'


@dataclass(frozen=True, kw_only=True, slots=True)
class Chroot:
    """Buildah's runner below a chroot, which may lose the end of what a command prints.

    It copies output in a thread, for whose end it does not wait:
    https://github.com/containers/buildah/blob/v1.28.2/chroot/run_common.go (runUsingChrootMain).
    So a shell prints a mark when the command has ended, and without it the command is run again.
    The shell also says which signal ended the command; Buildah does not.
    """

    inner: Prefixed

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        for _ in range(_TRIES):
            mark = f"ended-{secrets.token_hex(8)}"
            done = self.inner.run(["sh", "-c", _MARKED, mark, *argv], timeout_s=timeout_s)
            before, ended, after = done.stdout.rpartition(f"\n{mark}\n")
            if ended or done.timed_out:
                return dataclasses.replace(
                    done, argv=tuple(argv), stdout=before + after if ended else done.stdout
                )
        lost = f"{done.stderr}buildah lost the end of the output {_TRIES} times\n"
        return dataclasses.replace(done, argv=tuple(argv), returncode=1, stderr=lost)


@contextlib.contextmanager
def buildah_runner(container: Container) -> Iterator[Runner]:
    """A working container of buildah's, in which each command runs below a chroot."""
    tools, artifact = container.tools, container.artifact
    buildah, capture = Buildah(tools), tools.processes.capture
    # Buildah names what it pulls after the path, and not every path is a valid name: so the
    # reference is relative, and shared by all images until the container stands.
    with locked(tools.home.path, "oci-runner"):
        pulled = capture(
            buildah.command("from", "--quiet", "--pull=always", f"oci:{artifact.name}"),
            env=buildah.environment,
            cwd=artifact.parent,
        )
    name = pulled.stdout.split()[-1]
    image = capture(
        buildah.command("inspect", "--format", "{{.FromImageID}}", name), check=False
    ).stdout.strip()
    command = buildah.command(
        "run",
        "--isolation=chroot",  # it needs neither cgroups nor a runtime
        f"--env=HOME={HOME_IN_CONTAINER}",
        f"--workingdir={container.directory}",
        *_user(),
        *([f"--device={CDI_GPUS}"] if container.gpu else []),
        *container.data_option("volume"),
        name,
        "--",
    )
    try:
        yield Chroot(
            inner=Prefixed(
                prefix=tuple(command), tools=tools, env=buildah.environment, cwd=container.work
            )
        )
    finally:
        # An interrupted run cleans the whole storage. Under the lock, since what is removed may be
        # a layer that another image shares, and is just adding: "layer not known".
        with contextlib.suppress(Exception), locked(tools.home.path, "oci-runner"):
            capture(buildah.command("rm", name), check=False)
            capture(buildah.command("rmi", image), check=False)


def buildah_problem(tools: Tools) -> str:
    """Return why Buildah cannot hand over this machine's GPUs; empty if it can."""
    if not offers(tools, ["buildah", "run"], "--device"):
        return "this buildah cannot hand over devices"
    return cdi_problem()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A runner whose containers have names, by which they are removed when they hang.

    What runs in a container of a daemon's is not started by us.
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
            *container.data_option("volume"),
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
            if not done or done.timed_out:  # interrupted, too: then its processes start nothing
                self._ask("rm", "--force", name, timeout_s=60)

    def _ask(self, *words: str, timeout_s: float) -> str:
        argv = [*self.engine, *words]
        return Processes().capture(argv, env=self.env, check=False, timeout_s=timeout_s).stdout

    def _waiting(self, name: str) -> tuple[str, ...]:
        """Look below a daemon, which may be on another machine: then nothing is known."""
        listed = self._ask("top", name, "-eo", "pid", timeout_s=10)
        pids = [int(word) for word in listed.split() if word.isdecimal()]
        return waiting([pid for pid in pids if Path(f"/proc/{pid}").exists()])


@contextlib.contextmanager
def podman_runner(container: Container) -> Iterator[Runner]:
    """Podman on a storage of its own, which is for this run alone."""
    tools, artifact, env = container.tools, container.artifact, Buildah(container.tools).environment
    gpus = [f"--device={CDI_GPUS}"] if container.gpu else []
    with _podman_storage(container) as options:
        engine = (tools.program("podman"), *options)
        with locked(tools.home.path, "oci-runner"):
            pull = [*engine, "pull", "--quiet", f"oci:{artifact.name}"]
            pulled = tools.processes.capture(pull, env=env, cwd=artifact.parent)
        runner = _Named(
            engine=engine,
            options=(*_user(), *limits(), *gpus),
            container=container,
            image=pulled.stdout.split()[-1],
            env=env,
        )
        with _removed(runner):
            yield runner


@contextlib.contextmanager
def _removed(runner: _Named) -> Iterator[None]:
    """The time in which the engine has a runner's image."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # an interrupted run starts nothing more by itself
            removal = [*runner.engine, "rmi", "--force", runner.image]
            Processes().capture(removal, env=runner.env, check=False)


@contextlib.contextmanager
def _podman_storage(container: Container) -> Iterator[tuple[str, ...]]:
    """Options that name a storage of this run alone.

    Podman refuses a runroot with a path of more than 50 characters, as those of users' homes are.
    """
    root = Path(tempfile.mkdtemp(dir=container.work, prefix="podman-"))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="podman-") as short:
        places = {"root": root, "runroot": f"{short}/run", "tmpdir": f"{short}/libpod"}
        named = [f"--{name}={place}" for name, place in places.items()]
        options = (*named, *Buildah(container.tools).driver.options)
        try:
            yield options
        finally:
            with contextlib.suppress(Exception):  # ends what keeps the namespace of its own open
                ending = [container.tools.program("podman"), *options, "system", "migrate"]
                Processes().capture(ending, env=container.tools.environment, check=False)
            remove_tree(root)


@contextlib.contextmanager
def docker_runner(container: Container) -> Iterator[Runner]:
    """The Docker Engine that $DOCKER_HOST leads to; before 25 it loads no OCI layout itself."""
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
    with _removed(runner):
        yield runner


def _user() -> list[str]:
    """Return the option for the user inside; an ordinary caller is root there, without one."""
    return [f"--user={NOBODY}"] if os.geteuid() == 0 else []
