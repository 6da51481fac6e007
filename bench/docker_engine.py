"""A Docker Engine for a test or a bench: a daemon of its own, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from builder.system.descendants import end_tree


@contextlib.contextmanager
def docker_engine(place: Path | None = None) -> Iterator[str]:
    """Its address for $DOCKER_HOST, in a temporary folder below `place`; root alone starts it."""
    with tempfile.TemporaryDirectory(dir=place, prefix="docker-") as name:
        folder = Path(name)
        host = f"unix://{folder}/docker.sock"
        command = ["dockerd", f"--host={host}", f"--data-root={folder}/data"]
        command += [f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        with (folder / "dockerd.log").open("wb") as log:
            daemon = subprocess.Popen(
                [*command, "--iptables=false", "--bridge=none"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_for_docker(host, folder)
            yield host
        finally:
            end_tree(daemon.pid, grace_s=20)
            daemon.wait()
            for line in Path("/proc/self/mounts").read_text().splitlines():
                if line.split()[1].startswith(str(folder)):
                    subprocess.run(["umount", "-l", line.split()[1]], check=False)


def _wait_for_docker(host: str, folder: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": host}
    for _ in range(120):
        done = subprocess.run(["docker", "version"], env=env, capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.5)
    raise RuntimeError((folder / "dockerd.log").read_text()[-3000:])
