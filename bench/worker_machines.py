"""Machines of a cluster on loopback: a Dask scheduler, and workers that can be harmed one by one.

Each machine has a home and a host name of its own (a UTS namespace, for which root is needed). Each
worker reaches the scheduler through a relay that can be cut, or fall silent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.system.files import mounted_below

HOME = "BUILD_IMAGES_HOME"
WORKER_TTL = "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"
_PROFILE = "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"  # idle workers would compute for it
_READY_S = 90.0
_ENDING_S = 20.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a connection ends by a reset


class Relay:
    """A proxy between one worker and the scheduler."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        """Reset all connections, and each new one, until `restore`."""
        with self._lock:
            self._is_cut = True
            ends, self._ends = self._ends, set()
        for end in ends:
            _reset(end)

    def silence(self) -> None:
        """Carry nothing more, until `restore`."""
        self._flows.clear()

    def restore(self) -> None:
        """Carry everything again."""
        self._is_cut = False
        self._flows.set()

    def close(self) -> None:
        self.restore()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                end, _ = self._server.accept()
                try:
                    other = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    _reset(end)
                    continue
                with self._lock:
                    is_cut = self._is_cut
                    self._ends |= set() if is_cut else {end, other}
                if is_cut:
                    _reset(end)
                    _reset(other)
                    continue
                for source, target in ((end, other), (other, end)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._ends.discard(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@dataclass(kw_only=True, slots=True)
class WorkerProcess:
    """A worker of a machine; after it ended, another process can take its place."""

    machine: str
    home: Path
    folder: Path
    relay: Relay
    number: int = 0  # of its processes so far
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it; `is_ready` tells when it has joined."""
        self.number += 1
        words = [
            *("-m", "distributed.cli.dask_worker", self.relay.address, "--nworkers=1"),
            *("--nthreads=1", "--no-nanny", "--memory-limit=0", "--death-timeout=60"),
            *("--no-dashboard", f"--local-directory={self.folder}"),
        ]
        script = f'hostname {self.machine} && exec "$@"'
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o1777)  # as /tmp: containers of an ordinary user have it
        environment = {
            **os.environ,
            HOME: str(self.home),
            "TMPDIR": str(temporary),
            _PROFILE: "False",
        }
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                ["unshare", "--uts", "sh", "-c", script, "sh", sys.executable, *words],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the bench
            )

    @property
    def log(self) -> Path:
        return self.folder / f"worker-{self.number}.log"

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        return "Registered to" in self.log.read_text()

    @property
    def is_busy(self) -> bool:
        """Whether it has started an order."""
        return self.process.pid in {parent_of(pid) for pid in all_processes()}

    def send(self, number: signal.Signals) -> None:
        if self.is_alive:
            self.process.send_signal(number)

    def end(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self.process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """A scheduler, the homes of machines, and their workers."""

    address: str
    folder: Path
    homes: Sequence[Path]
    workers: Sequence[WorkerProcess]

    def start_missing(self) -> None:
        """Start new workers for those that ended."""
        for worker in self.workers:
            if not worker.is_alive:
                worker.start()

    def wait_for(self, workers: Sequence[WorkerProcess]) -> None:
        """Wait until these workers have joined."""
        deadline = time.monotonic() + _READY_S
        while not all(worker.is_ready for worker in workers):
            if time.monotonic() > deadline or not all(worker.is_alive for worker in workers):
                raise RuntimeError(f"workers do not join: {self.folder}")
            time.sleep(0.1)

    def leftover_processes(self) -> list[str]:
        """The processes of homes that are no workers, containers among them."""
        own = {worker.process.pid for worker in self.workers}
        return [
            f"{pid}: {command_line(pid)}" for pid in sorted(all_processes() - own) if self._has(pid)
        ]

    def leftover_mounts(self) -> list[str]:
        """What is mounted below homes."""
        found = [place for home in self.homes for place in mounted_below(home) if place != home]
        return [str(place) for place in found]

    def _has(self, pid: int) -> bool:
        """Whether a process runs in a home, or for one."""
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            if str((process / "root").readlink()).startswith(tuple(map(str, self.homes))):
                return True
            words = (process / "environ").read_bytes().split(b"\0")
            return any(f"{HOME}={home}".encode() in words for home in self.homes)
        return False


@contextlib.contextmanager
def machines_at_work(
    folder: Path, homes: Sequence[Path], *, workers: int, ttl_s: int
) -> Iterator[Machines]:
    """Run a scheduler and workers, spread over machines; `ttl_s` is for workers that are silent."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "scheduler.log"
    words = ["--host=127.0.0.1", f"--port={port}", "--no-dashboard"]
    with log.open("wb") as sink:
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *words],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, WORKER_TTL: f"{ttl_s}s", _PROFILE: "False"},
            start_new_session=True,
        )
    started: list[WorkerProcess] = []
    try:
        _wait(lambda: "Scheduler at" in log.read_text(), scheduler)
        for number in range(workers):
            at = number % len(homes)
            worker = WorkerProcess(
                machine=f"machine-{at + 1}",
                home=homes[at],
                folder=folder / f"worker-{number + 1}",
                relay=Relay(port),
            )
            worker.start()
            started.append(worker)
        machines = Machines(
            address=f"tcp://127.0.0.1:{port}", folder=folder, homes=homes, workers=started
        )
        machines.wait_for(started)
        yield machines
    finally:
        for worker in started:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        for worker in started:
            worker.end()
            worker.relay.close()
        scheduler.terminate()
        scheduler.wait()


def _wait(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while not condition():
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError("the scheduler does not start")
        time.sleep(0.1)


def all_processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*")}


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0


def processor_time_of(pid: int) -> float:
    """The seconds of a processor that a process took, with its children that ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return line.decode(errors="replace").strip()[:200]
    return "?"
