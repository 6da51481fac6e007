"""A Dask scheduler and workers on loopback, started and ended by process number."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import wait_for

_READY_S = 60.0
_PROFILE = "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"  # idle workers would compute for it


@dataclass(kw_only=True, slots=True)
class Pool:
    """A scheduler, and workers by the homes that they build in."""

    address: str
    folder: Path
    scheduler: subprocess.Popen[bytes] | None = None
    workers: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)

    def revive(self) -> None:
        """Start again what a test ended: the scheduler with all workers, or workers alone."""
        if self.scheduler and self.scheduler.poll() is not None:
            for process in self.workers.values():
                _end(process)
            self.scheduler = _started_scheduler(self.address, self.folder)
        self.add(*(home for home, process in self.workers.items() if process.poll() is not None))

    def end(self) -> None:
        """End all of its processes."""
        for process in (*self.workers.values(), self.scheduler):
            if process:
                _end(process)

    def add(self, *homes: Path) -> None:
        """Start a worker for each home, and wait until all have joined."""
        logs = [self._start_worker(home) for home in homes]
        wait_for(lambda: all("Registered to" in log.read_text() for log in logs), _READY_S)

    def _start_worker(self, home: Path) -> Path:
        """Start a worker; return its log."""
        number = len([*self.folder.glob("worker-*.log")])
        log = self.folder / f"worker-{number}.log"
        argv = [
            *("dask_worker", self.address, "--nworkers=1", "--nthreads=1", "--no-nanny"),
            *("--memory-limit=0", "--death-timeout=60", "--no-dashboard"),
            f"--local-directory={self.folder / str(number)}",
        ]
        environment = {**os.environ, "BUILD_IMAGES_HOME": str(home), _PROFILE: "False"}
        self.workers[home] = _start(argv, log, environment)
        return log


@contextlib.contextmanager
def dask_pool(folder: Path, homes: Sequence[Path] = ()) -> Iterator[Pool]:
    """Run a scheduler, and a worker for each home."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = _started_scheduler(address, folder)
    pool = Pool(address=address, folder=folder, scheduler=scheduler)
    try:
        pool.add(*homes)
        yield pool
    finally:
        pool.end()


def _started_scheduler(address: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a scheduler, and wait until it is there."""
    log, port = folder / "scheduler.log", address.rpartition(":")[2]
    argv = ["dask_scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard"]
    scheduler = _start(argv, log, {**os.environ, _PROFILE: "False"})
    try:
        wait_for(lambda: "Scheduler at" in log.read_text(), _READY_S)
    except AssertionError:
        _end(scheduler)
        raise
    return scheduler


def _start(argv: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{argv[0]}", *argv[1:]],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
