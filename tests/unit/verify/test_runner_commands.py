"""The command lines by which each runner opens an image, runs a command in it and tidies up.

Engine tests show that they work; these that none of them changes unseen, on whichever machine.
"""

from __future__ import annotations

import dataclasses
import errno
import getpass
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from recorded import Commands

from builder.model.errors import BadInput
from builder.system.process import Completed, Processes
from builder.verify.launched import LAUNCHED
from builder.verify.ranks.launchers import Launcher, cancel
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Around, Container, Kind, with_home
from builder.verify.runners.sites import bare_kind

PROGRAMS = ("buildah", "podman", "docker", "skopeo", "apptainer", "ch-run", "ch-fromhost", "pigz")
OUTPUT = {
    " from ": "Getting image\nworking-container-3",
    " inspect ": "sha256:4f4e\n",
    " pull ": "Copying blob\nsha256:9a9a",
    " top ": "PID\n",
}
KINDS = {**RUNNERS, "bare": bare_kind({"PATH": "/opt/bin:/bin", "LANG": "C.UTF-8"})}
ARTIFACTS = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """One with all engines."""
    commands = Commands(tmp_path, monkeypatch)
    commands.install(*PROGRAMS)
    commands.output.update(OUTPUT)
    (tmp_path / "home").rmdir()  # nothing has been built here yet
    return commands


def container(machine: Commands, kind: Kind) -> Container:
    return Container(
        artifact=machine.folder / "images" / ARTIFACTS[kind.format],
        work=machine.folder / "work",
        tools=machine.tools,
        directory="/workspace",
    )


def run_in(kind: Kind, image: Container) -> Completed:
    with kind.open(image) as runner:
        return runner.run(["python3", "-c", "print(1)"], timeout_s=12.5)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user"])
@pytest.mark.parametrize("name", KINDS)
def test_commands_are_run_in_an_image(name: str, is_root: bool, machine: Commands) -> None:
    kind = KINDS[name]
    plain = container(machine, kind)
    with machine.user(is_root=is_root):
        run_in(kind, plain)
        machine.note("## with GPUs and two folders of this machine")
        binds = {"/mnt": machine.folder / "data", "/opt/own": machine.folder / "own"}
        run_in(kind, dataclasses.replace(plain, gpu=True, binds=binds))
        machine.note("## a command that hangs")
        machine.hanging.add("print(1)")
        run_in(kind, plain)
    machine.compare(f"runners/{name}-{'root' if is_root else 'user'}")


def test_a_root_that_is_entered_has_the_folders_to_mount_on(
    machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, capture = KINDS["bare"], machine._capture

    def unpacking(argv: Sequence[Any], **options: Any) -> Completed:
        if argv[0] == "tar":
            Path(argv[-1], "proc").mkdir()  # an image may have some of them
            Path(argv[-1], "srv").symlink_to("/opt")
        return capture(argv, **options)

    monkeypatch.setattr(Processes, "capture", staticmethod(unpacking))
    image = container(machine, kind)
    bound = dataclasses.replace(image, binds={"/mnt/a": machine.folder})
    with machine.user(is_root=True), kind.open(bound):
        [root] = machine.folder.glob("work/run-*/image")
        assert {path.name for path in root.iterdir()} == {"proc", "sys", "dev", "mnt", "srv"}
        assert (root / "mnt/a").is_dir()
    outside = dataclasses.replace(image, binds={"/srv/a": machine.folder})
    with (
        machine.user(is_root=True),
        pytest.raises(BadInput, match=r"^/srv/a: the image has a link there"),
        kind.open(outside),
    ):
        pass


def command(machine: Commands, *, gpu: bool) -> list[str]:
    """The words by which Charliecloud runs a command in an image."""
    kind = RUNNERS["charliecloud"]
    with machine.user(is_root=True):
        run_in(kind, dataclasses.replace(container(machine, kind), gpu=gpu))
    return shlex.split([line for line in machine.lines if "print(1)" in line][-1])


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_an_entry_has_a_number(
    error: type[Exception], machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    kind = RUNNERS["charliecloud"]
    with machine.user(is_root=False):
        run_in(kind, container(machine, kind))
    assert f"    USER={os.getuid()}" in machine.lines


def test_a_new_charliecloud_is_told_which_gpus(machine: Commands) -> None:
    machine.output["ch-run --help"] = "--cdi"
    without, handed_over = command(machine, gpu=False), command(machine, gpu=True)
    option = "--cdi=nvidia.com/gpu=all"
    assert option in handed_over
    assert [word for word in handed_over if word != option] == without


def test_a_container_of_an_interrupted_command_is_removed(machine: Commands) -> None:
    kind = RUNNERS["podman"]
    machine.interrupted.add("print(1)")
    with machine.user(is_root=True), pytest.raises(KeyboardInterrupt):
        run_in(kind, container(machine, kind))
    [removal] = [line for line in machine.lines if " rm --force " in line]
    assert removal.endswith("rm --force build-images-<random>")


def test_what_podman_leaves_mounted_fails_no_command(
    machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, left, rmdir = RUNNERS["podman"], set[str](), os.rmdir

    def remove(path: str, **options: Any) -> None:
        if str(path).startswith("/tmp/podman-"):
            left.add(path)
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", remove)
    with machine.user(is_root=True):
        assert run_in(kind, container(machine, kind)).returncode == 0
    [folder] = left
    rmdir(folder)


def test_what_hangs_in_dockers_daemon_is_told(machine: Commands) -> None:
    """The daemon may be on another machine, whose processes are not here."""
    kind = RUNNERS["docker"]
    machine.hanging.add("print(1)")
    machine.output[" top "] = f"PID\n{os.getpid()}\n{1 << 30}\n"
    [waiting] = run_in(kind, container(machine, kind)).waiting
    assert "python" in waiting


@contextmanager
def few_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A caller with few variables, of which a launched container is to have none."""
    with monkeypatch.context() as patch:
        for variable in list(os.environ):
            patch.delenv(variable)
        for variable in ("PATH", "TMPDIR", "A_TOKEN"):
            patch.setenv(variable, "of-the-caller")
        yield


def launch(machine: Commands, kind: Kind) -> None:
    around = Around(
        command=("srun", "--ntasks=2"),
        environment={"PATH": "/usr/bin", "UCX_TLS": "rc"},
    )
    mounts = {"/host-mpi": Path("/opt/mpi")}
    image = dataclasses.replace(container(machine, kind), around=around, mounts=mounts)
    for with_gpu in (image, dataclasses.replace(image, gpu=True)):
        with kind.open(with_gpu) as runner:
            runner.run(["hostname"], timeout_s=60)


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launcher_starts_containers(
    name: str, machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_root in (True, False):
        with machine.user(is_root=is_root), few_variables(monkeypatch):
            launch(machine, RUNNERS[name])
    machine.compare(f"runners/{name}-launched")


@pytest.mark.parametrize("steps", ["12.0\n12.1\n", ""])
def test_what_is_left_of_a_job_is_ended(
    steps: str, machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.output["squeue"] = steps
    with machine.user(is_root=True), few_variables(monkeypatch):
        launcher = Launcher(
            name="srun", product="Slurm", version="", command=("srun",), job="build-images-1"
        )
        cancel(launcher, machine.tools.home)
    machine.compare(f"runners/cancel-{'steps' if steps else 'nothing'}")


def test_a_mount_below_home_has_its_mount_point(machine: Commands) -> None:
    """Runtimes do not create it below another mount."""
    folder = machine.folder / "work"
    data = {"/root/data/1": machine.folder, "/rooted": machine.folder}
    image = dataclasses.replace(container(machine, KINDS["apptainer"]), binds=data)
    assert with_home(image, folder).binds == {"/root": folder / "home", **data}
    assert [path.name for path in (folder / "home").rglob("*")] == ["data", "1"]
