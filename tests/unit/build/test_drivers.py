"""Buildah's storage driver: overlay where it can be mounted, in one way or another, else vfs."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.artifacts.oci import read_layout
from builder.build.engines.storage import driver_of, try_storage, usable_driver
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
    usable_driver.cache_clear()
    yield tmp_path
    usable_driver.cache_clear()


def driver(host: Path) -> Driver:
    return driver_of(host, str(host / "bin"))


def test_the_kernels_overlay_comes_first_then_a_program(host: Path) -> None:
    assert driver(host).options == ("--storage-driver=overlay",)
    assert [path.name for path in host.iterdir()] == ["bin"], "nothing is left of the trial"
    (host / f"{MOUNT}-refuses").write_text("mount: merged: permission denied.\n")
    usable_driver.cache_clear()
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
    usable_driver.cache_clear()
    assert driver(host).why.endswith("fuse-overlayfs: not found")


@pytest.mark.parametrize("is_root", [True, False])
def test_a_trial_unpacks_a_small_image(
    is_root: bool, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the machine's own architecture, with what ordinary users' storages may not hold."""
    seen: list[Any] = []

    def pulled(_self: Processes, argv: Sequence[str], **options: Any) -> Completed:
        *words, image = argv
        with tarfile.open(image.removeprefix("oci-archive:")) as archive:
            archive.extractall(host / "layout", filter="fully_trusted")
        seen.extend([words[words.index("buildah") :], options])
        return Completed(argv=(), returncode=1, stderr=f"first\n{'last ' * 40}\n")

    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    monkeypatch.setattr(Processes, "capture", pulled)
    monkeypatch.setattr("os.geteuid", lambda: 0 if is_root else 1000)
    trial = try_storage(host, arch="ppc64le", search_path="/bin", processes=Processes())
    assert (trial.driver, trial.seconds < 60) == (driver(host), True)
    assert (trial.problem[:15], len(trial.problem)) == ("last last last ", 120)
    layout = read_layout(host / "layout")
    assert (layout.architecture, len(layout.layers)) == ("ppc64le", 1)
    with tarfile.open(layout.layers[0]) as layer:
        assert [(one.name, one.mode, one.uid, one.gid, one.isdir()) for one in layer] == [
            ("bin", 0o755, 0, 0, True),
            ("bin/sh", 0o4755, 0, 0, False),
            ("file", 0o600, 65534, 65534, False),
        ]
    scratch = seen[1]["env"]["TMPDIR"]
    assert Path(scratch).parent == host
    assert not Path(scratch).exists()
    storage = [f"--root={scratch}/storage", f"--runroot={scratch}/run", "--storage-driver=vfs"]
    assert seen == [
        ["buildah", *storage, "pull", "--quiet"],
        {"env": {"PATH": "/bin", "TMPDIR": scratch}, "check": False, "timeout_s": 60.0},
    ]


def test_the_users_own_choice_counts(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    assert driver(host).options == ("--storage-driver=vfs",)


@pytest.mark.parametrize(
    ("one", "options", "title", "size"),
    [
        (Driver(name="vfs"), ("--storage-driver=vfs",), "vfs", 12),
        (Driver(name="overlay"), ("--storage-driver=overlay",), "overlay", 3),
        (
            Driver(name="overlay", program="/bin/fuse-overlayfs"),
            ("--storage-driver=overlay", "--storage-opt=overlay.mount_program=/bin/fuse-overlayfs"),
            "overlay by fuse-overlayfs",
            3,
        ),
    ],
)
def test_each_driver_has_its_options_and_takes_its_room(
    one: Driver, options: tuple[str, ...], title: str, size: int
) -> None:
    assert (one.options, one.title, needed_bytes(one)) == (options, title, size << 30)
