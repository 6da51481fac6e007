"""A Docker Engine for tests: a daemon of its own, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import need

from builder.system.descendants import end_tree


@contextlib.contextmanager
def docker_engine() -> Iterator[str]:
    """Its address for $DOCKER_HOST, on a socket in a temporary folder; skips where it cannot be."""
    need("dockerd", "docker", "skopeo")
    if os.geteuid():
        pytest.skip("dockerd needs root")
    with tempfile.TemporaryDirectory(prefix="docker-") as name:
        folder = Path(name)
        host = f"unix://{folder}/docker.sock"
        log = (folder / "dockerd.log").open("wb")
        daemon = subprocess.Popen(
            [
                "dockerd",
                f"--host={host}",
                f"--data-root={folder}/data",
                f"--exec-root={folder}/exec",
                f"--pidfile={folder}/pid",
                "--iptables=false",
                "--bridge=none",
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for_docker(host, folder)
            yield host
        finally:
            end_tree(daemon.pid, grace_s=20)
            daemon.wait()
            unmount_below(folder)


def wait_for_docker(host: str, folder: Path) -> None:
    for _ in range(120):
        done = subprocess.run(
            ["docker", "version"],
            env={**os.environ, "DOCKER_HOST": host},
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return
        time.sleep(0.5)
    pytest.fail((folder / "dockerd.log").read_text()[-3000:])


def unmount_below(folder: Path) -> None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[1].startswith(str(folder)):
            with contextlib.suppress(subprocess.CalledProcessError):
                subprocess.run(["umount", "-l", line.split()[1]], check=True)
