"""A trial of Buildah's storage: a small layer is unpacked in a folder, by the driver in use."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import oci
from builder.build.engines.protocol import shortened
from builder.build.engines.storage import Driver, driver_of
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BuildImagesError
from builder.system.files import as_root_of_own, remove_tree
from builder.system.process import Processes

_TIMEOUT_S = 60.0
# Names, modes and owners: a setuid program, and an owner that is the user's only by way of sub-ids.
_MEMBERS = (("bin", 0o755, 0), ("bin/sh", 0o4755, 0), ("file", 0o600, 65534))


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageTrial:
    """The driver that would be used in a folder; `problem` is why it does not do, or empty."""

    driver: Driver
    problem: str = ""
    seconds: float = 0.0


def try_storage(folder: Path, *, arch: str, search_path: str, processes: Processes) -> StorageTrial:
    """Unpack a layer of a few files in a new storage in `folder`, which then is gone again."""
    driver, start = driver_of(folder, search_path), time.monotonic()
    with _scratch(folder) as scratch:
        archive = _small_image(scratch, arch)
        command = [
            *("buildah", f"--root={scratch}/storage", f"--runroot={scratch}/run"),
            *driver.options,
            *("pull", "--quiet", f"oci-archive:{archive}"),
        ]
        try:
            # What root's storage mounts is gone with the namespace.
            done = processes.capture(
                [*(as_root_of_own() if os.geteuid() == 0 else ()), *command],
                env={"PATH": search_path, "TMPDIR": str(scratch)},
                check=False,
                timeout_s=_TIMEOUT_S,
            )
        except (BuildImagesError, OSError) as error:
            return StorageTrial(driver=driver, problem=str(error).splitlines()[0])
    problem = ""
    if done.timed_out:
        problem = f"no answer within {_TIMEOUT_S:.0f} s"
    elif done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        problem = shortened(lines[-1], 120)
    return StorageTrial(driver=driver, problem=problem, seconds=time.monotonic() - start)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".trial-"))
    try:
        yield scratch
    finally:
        remove_tree(scratch)


def _small_image(folder: Path, arch: str) -> Path:
    """An image of few members."""
    rootfs, archive = folder / "rootfs.tar", folder / "image.tar"
    with tarfile.open(rootfs, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, owner in _MEMBERS:
            member = tarfile.TarInfo(name)
            member.mode, member.uid, member.gid = mode, owner, owner
            member.type = tarfile.DIRTYPE if name == "bin" else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO())
    oci.write_archive(
        rootfs,
        archive,
        architecture=ARCHITECTURES[arch].oci,
        environment={},
        name="trial",
    )
    return archive
