"""A machine that lacks something accuses no image: exit code 4."""

from __future__ import annotations

import dataclasses
import os
import platform
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manifest_samples import record

from builder.artifacts.oci import read_layout
from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.model.digests import digest_of_file
from builder.model.errors import StepFailed
from builder.model.manifest import required_runs
from builder.system.home import Home
from builder.system.process import Completed, Processes
from builder.verify import preparation
from builder.verify.preparation import machines_fault, not_tried, runs_nothing
from builder.verify.proof import Verified
from builder.verify.runners.protocol import Container, Kind

LACKING = preparation._lacking
INSUFFICIENT = "potentially insufficient UIDs or GIDs available in user namespace"


class Ends:
    """A runner whose programs end so."""

    def __init__(self, status: int, complaint: str = "") -> None:
        self._done = Completed(argv=(), returncode=status, stderr=complaint)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        assert (argv, timeout_s) == (("/ldconfig", "--version"), 60)
        return self._done


def kind(runner: Ends | StepFailed, name: str = "apptainer", form: str = "sif") -> Kind:
    @contextmanager
    def opened(_: Container) -> Iterator[Any]:
        if isinstance(runner, StepFailed):
            raise runner
        yield runner

    return Kind(name=name, format=form, program=name, open=opened)


@pytest.fixture(name="container")
def any_container(tmp_path: Path) -> Container:
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    return Container(artifact=tmp_path / "image", work=tmp_path, tools=tools)


def outcomes(*found: str) -> list[Outcome]:
    return [Outcome(check=f"c{n}", outcome=one, reason="") for n, one in enumerate(found)]


@pytest.fixture(name="lacking", autouse=True)
def nothing_that_doctor_misses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Things that doctor misses: none, unless a test adds one."""
    lacking: list[str] = []
    monkeypatch.setattr(preparation, "_lacking", lambda *_: "; ".join(lacking))
    return lacking


def test_a_runner_that_runs_nothing_accuses_no_image(container: Container) -> None:
    broken = kind(Ends(255, "WARNING: old\nFATAL: no user namespaces\nError: exit status 1"))
    found = machines_fault(broken, container, "x86_64", outcomes(FAILED, FAILED))
    assert found == "FATAL: no user namespaces"
    assert machines_fault(kind(Ends(3)), container, "x86_64", ()) == "exit status 3"


def test_a_container_that_does_not_start_for_want_of_ids(container: Container) -> None:
    error = StepFailed("buildah from: exit status 125", tail=[INSUFFICIENT])
    broken = kind(error, "buildah", "oci")
    assert machines_fault(broken, container, "x86_64", outcomes(FAILED), error) == INSUFFICIENT


def test_an_image_is_accused_where_the_runner_works(container: Container) -> None:
    works = kind(Ends(0))
    error = StepFailed("buildah from: exit status 125", tail=["no such image"])
    assert machines_fault(works, container, "x86_64", outcomes(FAILED), error) == ""


@pytest.mark.parametrize("one", [PASSED, SKIPPED])
def test_where_something_ran_nobody_asks(one: str, container: Container) -> None:
    broken = kind(Ends(255))
    assert machines_fault(broken, container, "x86_64", outcomes(FAILED, one)) == ""


def test_what_doctor_misses_comes_first(container: Container, lacking: list[str]) -> None:
    lacking.append("ppc64le: no handler in binfmt_misc runs its programs")
    found = machines_fault(kind(Ends(0)), container, "ppc64le", outcomes(FAILED))
    assert found.startswith("ppc64le: no handler")


def test_what_doctor_misses_is_named(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking_for(diagnosis: object, *asked: str) -> list[Any]:
        items = [("user namespaces", "none"), *[(name, "missing") for name in asked]]
        assert diagnosis == container.tools.processes
        return [SimpleNamespace(title=title, text=text) for title, text in items]

    monkeypatch.setattr(preparation, "_lacking", LACKING)
    monkeypatch.setattr("builder.host.doctor.examine", lambda processes, **_: processes)
    monkeypatch.setattr(preparation, "lacking_for", lacking_for)
    found = machines_fault(kind(Ends(0)), container, "ppc64le", outcomes(FAILED))
    assert found == "user namespaces: none; apptainer: missing; ppc64le: missing"


@pytest.mark.parametrize("text", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_accuses_no_image(text: str, container: Container, tmp_path: Path) -> None:
    error = StepFailed("tar: exit status 2", tail=[f"tar: x: Cannot write: {text}"])
    found = machines_fault(kind(Ends(0)), container, "x86_64", outcomes(FAILED), error)
    assert found == f"{tmp_path}: the disk is full"


@pytest.mark.parametrize("form", ["oci", "sif", "charliecloud"])
def test_the_control_is_an_artifact_of_the_format(
    form: str, container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can run it, whatever the umask is."""
    seen: list[tuple[str, bool]] = []
    modes: list[int] = []
    paths = {"ldconfig", *("ch/environment", "etc/group", "etc/hosts"), "etc/passwd"}
    paths |= {"etc/resolv.conf", *("ch", "dev", "etc", "home", "mnt", "proc", "root", "run")}
    paths |= {"sys", "tmp", "var", "var/tmp"}

    @contextmanager
    def opened(control: Container) -> Iterator[Any]:
        seen.append((control.artifact.name, control.artifact.exists()))
        assert (control.directory, control.gpu, control.binds) == ("/", False, {})
        assert control.artifact.parent.name.startswith("control-")
        root = control.artifact.with_name("sandbox")
        tarball = control.artifact if form == "charliecloud" else None
        if form == "oci":
            layout = read_layout(control.artifact)
            config, [tarball] = layout.config, layout.layers
            assert config == {
                "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [digest_of_file(tarball)]},
            }
        if tarball:
            with tarfile.open(tarball, "r:gz" if form == "charliecloud" else "r:") as archive:
                assert {(one.uid, one.gid) for one in archive} == {(0, 0)}
                assert {f"./{path}" for path in paths} | {"."} == {*archive.getnames()}
        assert (root / "ldconfig").read_bytes() == program.read_bytes()
        assert {str(path.relative_to(root)) for path in root.rglob("*")} == paths
        modes.extend(path.stat().st_mode & 0o777 for path in (root, *root.rglob("*")))
        yield SimpleNamespace(inner=Ends(0)) if form == "oci" else Ends(0)

    machine, program, script = platform.machine(), tmp_path / "program", tmp_path / "script"
    program.write_bytes(b"\x7fELF")
    script.write_text("#!/bin/sh\n")
    assert [str(path) for path in preparation._STATIC] == [  # the first is Ubuntu's
        *("/sbin/ldconfig.real", "/sbin/ldconfig"),
    ]
    monkeypatch.setattr(preparation, "_STATIC", (script, program))
    mask = os.umask(0o077)
    try:
        with_gpu = dataclasses.replace(
            container, directory="/srv", gpu=True, binds={"/x": tmp_path}
        )
        assert runs_nothing(Kind(name="x", format=form, program="x", open=opened), with_gpu) == ""
    finally:
        os.umask(mask)
    assert {*modes} == {0o755}
    names = {"oci": "image.oci", "sif": "sandbox", "charliecloud": "image.tar.gz"}
    assert seen == [(names[form], True)]
    assert {path.name for path in container.work.iterdir()} == {"program", "script"}
    monkeypatch.setattr(preparation, "_STATIC", (script,))
    assert runs_nothing(kind(Ends(1)), container) == ""  # nobody can tell
    monkeypatch.setattr(preparation, "_STATIC", (program,))
    monkeypatch.setattr("platform.machine", lambda: "unheard-of")
    assert runs_nothing(kind(Ends(1)), container) == ""


def test_what_was_not_tried_is_exit_code_4() -> None:
    error = not_tried("tiny", {"oci": INSUFFICIENT})
    assert error.exit_code == 4
    assert f"Not run, not recorded:\n  oci: {INSUFFICIENT}\n" in str(error)


def test_a_failure_is_one_of_the_runs_that_were_tried() -> None:
    checks = {
        "oci": [{"check": "mpi", "outcome": "failed"}],
        "sif": [{"check": "mpi", "outcome": "passed"}],
    }
    done = Verified(record=record({"checks": checks}), runs=("sif",), untried={"oci": "x"})
    assert not done.has_failed


@pytest.mark.parametrize(
    ("runs", "required"),
    [
        (["oci", "oci-docker", "sif"], {"oci", "sif"}),
        (["oci-podman", "oci-docker", "sif"], {"oci-podman", "oci-docker", "sif"}),
        ([], set()),
    ],
)
def test_which_runs_an_image_has_to_pass(runs: list[str], required: set[str]) -> None:
    assert required_runs(runs) == required
