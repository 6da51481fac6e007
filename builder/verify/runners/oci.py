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

from builder.build.engines import Buildah
from builder.build.engines.buildah import limits
from builder.system.descendants import waiting, waiting_below
from builder.system.files import remove_tree
from builder.system.locks import locked
from builder.system.process import Completed, Processes
from builder.verify.runners import commands
from builder.verify.runners.protocol import NOBODY, Container, Prefixed, Runner, scratch

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
            before, found, after = done.stdout.rpartition(f"\n{mark}\n")
            if found or done.timed_out:
                return dataclasses.replace(
                    done, argv=tuple(argv), stdout=before + after if found else done.stdout
                )
        lost = f"{done.stderr}buildah lost the end of the output {_TRIES} times\n"
        return dataclasses.replace(done, argv=tuple(argv), returncode=1, stderr=lost)


@contextlib.contextmanager
def buildah_runner(container: Container) -> Iterator[Runner]:
    """A working container of buildah's, in which each command runs below a chroot."""
    tools = container.tools
    buildah = Buildah(tools)
    capture = tools.processes.capture
    artifact = container.artifact
    # Buildah names what it pulls after the path, and not every path is a valid name: so the
    # reference is relative, and shared by all images until the container stands.
    with locked(tools.home.path, "oci-runner"):
        made = capture(
            buildah.command("from", "--quiet", "--pull=always", f"oci:{artifact.name}"),
            env=buildah.environment,
            cwd=artifact.parent,
        )
    name = made.stdout.split()[-1]
    inspected = capture(
        buildah.command("inspect", "--format", "{{.FromImageID}}", name), check=False
    )
    options = commands.buildah_run(
        name,
        user=_user(),
        directory=container.directory,
        gpu=container.gpu,
        data=container.shown,
    )
    try:
        yield Chroot(
            inner=Prefixed(
                prefix=tuple(buildah.command(*options)),
                tools=tools,
                env=buildah.environment,
                cwd=container.work,
            )
        )
    finally:
        # An interrupted run cleans the whole storage. Under the lock, since what is removed may be
        # a layer that another image shares, and is just adding: "layer not known".
        with contextlib.suppress(Exception), locked(tools.home.path, "oci-runner"):
            capture(buildah.command("rm", name), check=False)
            capture(buildah.command("rmi", inspected.stdout.strip()), check=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A runner whose containers have names, by which they are removed when they hang."""

    engine: tuple[str, ...]
    container: Container
    image: str
    env: Mapping[str, str]
    is_daemon: bool = False  # whether it is not us who starts what runs in the container

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        name = f"build-images-{secrets.token_hex(8)}"
        ended = False
        try:
            done = self._capture(name, argv, timeout_s)
            ended = not done.timed_out
        finally:
            if not ended:  # also when the run is interrupted, and its processes start nothing more
                Processes().capture(
                    [*self.engine, "rm", "--force", name], env=self.env, check=False, timeout_s=60
                )
        return done

    def _capture(self, name: str, argv: Sequence[str], timeout_s: float) -> Completed:
        tools = self.container.tools
        return tools.processes.capture(
            [*self.engine, *self._options(name, argv[0]), *argv[1:]],
            env=self.env,
            cwd=self.container.work,
            timeout_s=timeout_s,
            check=False,
            supervised=True,
            look=(lambda _pid: self._waiting(name)) if self.is_daemon else waiting_below,
        )

    def _options(self, name: str, program: str) -> list[str]:
        container, image = self.container, self.image
        directory, gpu, data = container.directory, container.gpu, container.shown
        if self.is_daemon:
            return commands.docker_run(
                image, name, program, user=NOBODY, directory=directory, gpu=gpu, data=data
            )
        return commands.podman_run(
            image,
            name,
            program,
            user=_user(),
            directory=directory,
            gpu=gpu,
            data=data,
            limits=limits(),
        )

    def _waiting(self, name: str) -> tuple[str, ...]:
        """What runs below a daemon, which may be on another machine: then nothing is known."""
        listed = Processes().capture(
            [*self.engine, "top", name, "-eo", "pid"], env=self.env, check=False, timeout_s=10
        )
        pids = [int(word) for word in listed.stdout.split() if word.isdecimal()]
        return waiting([pid for pid in pids if Path(f"/proc/{pid}").exists()])


@contextlib.contextmanager
def podman_runner(container: Container) -> Iterator[Runner]:
    """Podman on a storage of the builder's own; an ordinary user's is for this run alone."""
    tools = container.tools
    artifact, env = container.artifact, Buildah(tools).environment
    capture = tools.processes.capture
    with _podman_storage(container) as options:
        engine = (tools.program("podman"), *options)
        with locked(tools.home.path, "oci-runner"):
            made = capture(
                [*engine, "pull", "--quiet", f"oci:{artifact.name}"],
                env=env,
                cwd=artifact.parent,
            )
        image = made.stdout.split()[-1]
        try:
            yield _Named(engine=engine, container=container, image=image, env=env)
        finally:
            with contextlib.suppress(Exception):  # an interrupted run starts nothing more by itself
                Processes().capture([*engine, "rmi", "--force", image], env=env, check=False)


@contextlib.contextmanager
def _podman_storage(container: Container) -> Iterator[tuple[str, ...]]:
    """Options that name a storage, and what is at work in it.

    Podman refuses a runroot with a path of more than 50 characters, as those of users' homes are.
    """
    if os.geteuid() == 0:
        place = container.tools.home.path / "podman"
        yield tuple(f"--{name}={place / name}" for name in ("root", "runroot", "tmpdir"))
        return
    root = Path(tempfile.mkdtemp(dir=container.work, prefix="podman-"))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="podman-") as short:
        try:
            places = {"root": root, "runroot": f"{short}/run", "tmpdir": f"{short}/libpod"}
            named = [f"--{name}={place}" for name, place in places.items()]
            options = (*named, *Buildah(container.tools).driver.options)
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
    image = f"build-images/verify:{secrets.token_hex(8)}"
    with scratch(container) as folder:
        archive = folder / "image.tar"
        source, target = f"oci:{artifact.name}", f"docker-archive:{archive}:{image}"
        skopeo = tools.program("skopeo")
        capture(
            [skopeo, "copy", "--quiet", source, target],
            env=tools.environment,
            cwd=artifact.parent,
        )
        capture([docker, "load", "--quiet", "--input", str(archive)])
    try:
        yield _Named(
            engine=(docker,),
            container=container,
            image=image,
            env=tools.environment,
            is_daemon=True,
        )
    finally:
        with contextlib.suppress(Exception):
            Processes().capture([docker, "rmi", "--force", image], check=False)


def _user() -> str:
    """Whom to be inside; an ordinary caller is root there, and himself to the machine."""
    return NOBODY if os.geteuid() == 0 else ""
