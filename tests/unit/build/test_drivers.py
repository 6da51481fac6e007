"""Buildah's storage driver: overlay where it can be mounted, in one way or another, else vfs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.storage import driver_of, tried
from builder.system.process import Completed, Processes
from builder.system.storage_drivers import Driver, needed_bytes

MOUNT, FUSE = "mount", "fuse-overlayfs"


@pytest.fixture(name="host")
def fake_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with fuse-overlayfs; a file `NAME-refuses` says what a mount is answered."""
    program = tmp_path / "bin" / FUSE
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def capture(_self: Processes, argv: Sequence[Any], **_: Any) -> Completed:
        name = MOUNT if MOUNT in argv else FUSE
        refusal = tmp_path / f"{name}-refuses"
        text = refusal.read_text() if refusal.exists() else ""
        return Completed(argv=(), returncode=int(bool(text)), stderr=text)

    monkeypatch.setattr(Processes, "capture", capture)
    monkeypatch.delenv("STORAGE_DRIVER", raising=False)
    tried.cache_clear()
    yield tmp_path
    tried.cache_clear()


def driver(host: Path) -> Driver:
    return driver_of(host, str(host / "bin"))


def test_the_kernels_overlay_comes_first_then_a_program(host: Path) -> None:
    assert driver(host).options == ("--storage-driver=overlay",)
    assert [path.name for path in host.iterdir()] == ["bin"], "nothing is left of the trial"
    (host / f"{MOUNT}-refuses").write_text("mount: merged: permission denied.\n")
    tried.cache_clear()
    found = driver(host)
    program = f"--storage-opt=overlay.mount_program={host}/bin/{FUSE}"
    assert found.options == ("--storage-driver=overlay", program)
    assert found.title == "overlay by fuse-overlayfs"


def test_vfs_is_what_is_left_and_says_why(host: Path) -> None:
    (host / f"{MOUNT}-refuses").write_text("mount: merged: permission denied.\n")
    (host / f"{FUSE}-refuses").write_text("fuse: device not found\n")
    found = driver(host)
    assert found.options == ("--storage-driver=vfs",)
    reasons = "mount: merged: permission denied.; fuse-overlayfs: fuse: device not found"
    assert found.why == f"overlay does not work there: {reasons}"
    (host / "bin" / FUSE).unlink()
    tried.cache_clear()
    assert driver(host).why.endswith("fuse-overlayfs: not found")


def test_the_users_own_choice_counts(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    assert driver(host).options == ("--storage-driver=vfs",)


def test_vfs_takes_more_room() -> None:
    assert needed_bytes(Driver(name="vfs")) > 3 * needed_bytes(Driver(name="overlay"))
