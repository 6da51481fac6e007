"""What a machine needs before images are built on it, and what a run is told of it."""

from __future__ import annotations

import dataclasses
import io
import os
import platform
from contextlib import ExitStack, nullcontext

import pytest
from samples import base, image
from test_doctor import Machine, docker_says, machine  # noqa: F401 - one is a fixture

from builder.build import native
from builder.build.engines import Tools
from builder.build.run import BuildSettings, Run
from builder.model import Bootstrap
from builder.model.errors import MissingPrerequisite
from builder.system.terminal import Progress
from builder.verify import preparation

MIRROR = "http://mirror.example/debian"
LENT = {"name": "build-images-ppc64le", "flags": "POCF", "suffix": f".{native.version()}"}


@pytest.fixture(autouse=True)
def _prepare_on_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(preparation, "examine_machine", lambda _: machine.examine())
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(machine.home / "of/builder"))
    monkeypatch.setenv("BUILD_IMAGES_MIRROR", MIRROR)
    monkeypatch.delenv("BUILD_IMAGES_SECURITY_MIRROR", raising=False)
    monkeypatch.setenv("PATH", f"{machine.bin}:{os.environ['PATH']}")


def prepared(
    machine: Machine,  # noqa: F811
    *pockets: str,
    engine: str = "buildah",
    native_tools: bool = True,
    offline: bool = False,
    verbose: bool = False,
    todo: int = 1,
    mirrors: tuple[str, ...] = (),
    known: preparation.ExaminedMachine | None = None,
) -> tuple[Run, str]:
    """The run for one image for ppc64le, and what was said while it was prepared."""
    bootstrap = base().bootstrap
    assert isinstance(bootstrap, Bootstrap)
    based = base(bootstrap=dataclasses.replace(bootstrap, pockets=pockets), mirrors=mirrors)
    planned = image(machine.root / "project", bases=[based], arch=("ppc64le",))
    options = BuildSettings(
        project=machine.root / "project",
        out=machine.root / "of/project",
        engine=engine,
        formats=("oci",),
        native_tools=native_tools,
        offline=offline,
        verbose=verbose,
    )
    said = io.StringIO()
    with ExitStack() as held:
        progress = Progress(stream=said, level=2)
        run = preparation.prepare(options, progress, [planned], todo=todo, held=held, machine=known)
        if not todo:
            run.tools.processes.logged(["echo", "from a program"], log=machine.root / "log")
    return run, said.getvalue()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="native tools are for x86_64 machines")
def test_native_tools_are_required_where_steps_run_them(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Docker cannot lend them, and they can be turned off."""
    asked = list[str]()

    def version(_tools: Tools, name: str) -> str:
        asked.append(name)
        return "9.2.0"

    machine.handler(**LENT)
    with pytest.raises(MissingPrerequisite, match="patchelf"):
        prepared(machine)
    prepared(machine, native_tools=False)
    machine.program("docker", docker_says('{"Version":"20.10.24"}'))
    run, _ = prepared(machine, engine="docker")
    assert "docker" in run.versions
    machine.program("patchelf", "patchelf 0.14.3")
    machine.program("qemu-ppc64le", "qemu-ppc64le version 9.2.0")
    monkeypatch.setattr(Tools, "version", version)
    run, said = prepared(machine)
    assert asked == ["qemu-ppc64le"], "the examination asked the others"
    assert "docker" not in run.versions
    versions = {"mmdebstrap": "1.3.5", "apptainer": "1.4.5", "ch-run": "0.31", "buildah": "1.28.2"}
    assert run.versions == {**versions, "qemu": "9.2.0"}
    assert said == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="native tools are for x86_64 machines")
def test_it_is_said_that_steps_are_emulated_whole(machine: Machine) -> None:  # noqa: F811
    hint = "the kernel's handler is not from set-up"
    assert hint in prepared(machine)[1]
    assert hint not in prepared(machine, native_tools=False)[1]
    known = preparation.ExaminedMachine(
        engine="buildah", diagnosis=machine.examine(), versions={"buildah": "1.2"}
    )
    run, said = prepared(machine, known=known)
    assert (run.versions, hint in said) == ({"buildah": "1.2"}, True)


def test_where_nothing_is_to_be_done_nothing_is_required(machine: Machine) -> None:  # noqa: F811
    (machine.bin / "mmdebstrap").unlink()
    run, said = prepared(machine, todo=0)
    assert (run.versions, run.declared, run.mirror, said) == ({}, {}, None, "")
    assert not run.settings.out.exists()
    assert "from a program" in prepared(machine, todo=0, verbose=True)[1]


@pytest.mark.parametrize("offline", [False, True])
def test_a_base_that_is_not_in_the_store_has_to_be_made(
    offline: bool,
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (machine.bin / "mmdebstrap").unlink()
    with pytest.raises(MissingPrerequisite, match="mmdebstrap"):
        prepared(machine, native_tools=False, offline=offline)
    monkeypatch.setattr(preparation, "stored_base", lambda *_, **__: "one of another day")
    with nullcontext() if offline else pytest.raises(MissingPrerequisite, match="mmdebstrap"):
        prepared(machine, native_tools=False, offline=offline)


@pytest.mark.parametrize(
    ("security", "pockets", "mirrors", "is_said"),
    [
        ("none", ("security",), (), True),
        ("none", ("security",), (MIRROR,), True),
        ("none", ("security",), (MIRROR, f"{MIRROR}-security"), False),
        ("none", (), (), False),
        (f"{MIRROR}-security", ("security",), (), False),
    ],
)
def test_it_is_said_that_there_are_no_security_updates(
    security: str,
    pockets: tuple[str, ...],
    mirrors: tuple[str, ...],
    is_said: bool,
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_SECURITY_MIRROR", security)
    run, said = prepared(machine, *pockets, native_tools=False, mirrors=mirrors)
    assert bool(run.mirror) is not bool(mirrors)
    assert not run.mirror or run.mirror.main == MIRROR
    assert ("BUILD_IMAGES_SECURITY_MIRROR turns security updates off" in said) is is_said
