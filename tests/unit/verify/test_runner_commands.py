"""The command lines by which each runner opens an image, runs a command in it and tidies up.

Engine tests show that they work; these that none of them changes unseen, on whichever machine.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from recorded import Commands

from builder.verify.launched import LAUNCHED
from builder.verify.measure.bare import bare_kind
from builder.verify.ranks.launchers import Launcher, cancel
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Around, Container, Kind

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
    return commands


def container(machine: Commands, kind: Kind) -> Container:
    return Container(
        artifact=machine.folder / "images" / ARTIFACTS[kind.format],
        work=machine.folder / "work",
        tools=machine.tools,
        directory="/workspace",
    )


def run_in(kind: Kind, image: Container) -> None:
    with kind.open(image) as runner:
        runner.run(["python3", "-c", "print(1)"], timeout_s=12.5)


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user"])
@pytest.mark.parametrize("name", KINDS)
def test_commands_are_run_in_an_image(name: str, is_root: bool, machine: Commands) -> None:
    kind = KINDS[name]
    plain = container(machine, kind)
    with machine.user(is_root=is_root):
        run_in(kind, plain)
        machine.note("## with GPUs and a folder of data")
        run_in(kind, dataclasses.replace(plain, gpu=True, data=machine.folder / "data"))
        machine.note("## a command that hangs")
        machine.hanging.add("print(1)")
        run_in(kind, plain)
    machine.compare(f"runners/{name}-{'root' if is_root else 'user'}")


# What is asked of all of them.


def command(machine: Commands, name: str, *, is_root: bool = True, **changes: Any) -> list[str]:
    """The words that run a command in an image."""
    kind = RUNNERS[name]
    with machine.user(is_root=is_root):
        run_in(kind, dataclasses.replace(container(machine, kind), **changes))
    lines = [line for line in machine.lines if "print(1)" in line]
    return shlex.split(lines[-1])


@pytest.mark.parametrize(
    ("name", "home", "directory"),
    [
        ("buildah", "--env=HOME=/tmp", "--workingdir=/work"),
        ("podman", "--env=HOME=/tmp", "--workdir=/work"),
        ("docker", "--env=HOME=/tmp", "--workdir=/work"),
        ("apptainer", "--home=/tmp", "--pwd=/work"),
        ("charliecloud", "--set-env=HOME=/tmp", "--cd=/work"),
    ],
)
def test_each_sets_home_and_the_working_directory(
    name: str, home: str, directory: str, machine: Commands
) -> None:
    assert {home, directory} <= {*command(machine, name, directory="/work")}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("buildah", "--device=nvidia.com/gpu=all"),
        ("podman", "--device=nvidia.com/gpu=all"),
        ("docker", "--gpus=all"),
        ("apptainer", "--nv"),
        ("charliecloud", "--cdi=nvidia.com/gpu=all"),
    ],
)
def test_each_hands_over_gpus_where_they_are_requested(
    name: str, option: str, machine: Commands
) -> None:
    """Command lines alone: no machine with a GPU has run them yet."""
    machine.output["ch-run --help"] = "--cdi"
    without, handed_over = command(machine, name), command(machine, name, gpu=True)
    assert option not in without
    assert option in handed_over
    assert [word for word in handed_over if word != option] == without


@pytest.mark.parametrize("name", RUNNERS)
def test_each_shows_a_folder_of_the_host(name: str, machine: Commands) -> None:
    without, shown = command(machine, name), command(machine, name, data=Path("/data/set"))
    (option,) = [word for word in shown if word not in without]
    assert option in {"--volume=/data/set:/mnt", "--bind=/data/set:/mnt"}
    assert [word for word in shown if word != option] == without


@pytest.mark.parametrize("name", ["buildah", "podman", "docker"])
def test_engines_of_root_run_as_an_ordinary_user(name: str, machine: Commands) -> None:
    assert "--user=65534:65534" in command(machine, name)


def test_the_callers_environment_is_kept_out(machine: Commands) -> None:
    assert "--cleanenv" in command(machine, "apptainer")
    line = command(machine, "charliecloud")
    assert line.index("--unset-env=*") < line.index("--set-env")


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_an_entry_point_is_not_in_the_way(name: str, machine: Commands) -> None:
    line = command(machine, name)
    assert line[-4] == "--entrypoint=python3"
    assert line[-2:] == ["-c", "print(1)"]


def test_podman_is_given_limits_that_it_may_set(machine: Commands) -> None:
    line = command(machine, "podman", is_root=False)
    assert "--ulimit=nofile=4096:4096" in line
    assert not [word for word in line if word.startswith("--user")]


def test_a_container_of_an_interrupted_command_is_removed(machine: Commands) -> None:
    kind = RUNNERS["podman"]
    machine.interrupted.add("print(1)")
    with machine.user(is_root=True), pytest.raises(KeyboardInterrupt):
        run_in(kind, container(machine, kind))
    [removal] = [line for line in machine.lines if " rm --force " in line]
    assert removal.endswith("rm --force build-images-<random>")


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


def test_ranks_are_given_the_launchers_variables_and_folders(machine: Commands) -> None:
    """Values are in no command line: what the launcher gets is in its environment."""
    mounts = {"/opt/mpi": Path("/opt/mpi"), "/host-mpi": Path("/x")}
    around = Around(command=("srun", "-n4"), environment={"PATH": "/bin"})
    line = command(machine, "apptainer", around=around, mounts=mounts)
    assert line[1] == "env"
    assert "--unset=STORAGE_DRIVER" in line
    assert "--unset=PATH" not in line
    assert "--cleanenv" not in line
    end = line.index("--bind=/opt/mpi:/opt/mpi:ro")
    assert line[end + 1] == "--bind=/x:/host-mpi:ro"
    line = command(machine, "charliecloud", around=around, mounts=mounts)
    unset = [word for word in line if word.startswith("--unset-env")]
    assert unset == ["--unset-env=LD_LIBRARY_PATH"]
    end = line.index("--bind=/opt/mpi:/opt/mpi")
    assert line[end + 1] == "--bind=/x:/host-mpi"


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
