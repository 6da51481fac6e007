"""The connection to a Dask scheduler: this module alone knows `distributed`.

What is relied upon was seen with release 2026.8: a task that is submitted to one worker, without
others allowed, waits when that worker is lost; the events of the topic "all" tell which workers
join and leave; a task that is cancelled, or whose client is gone, has the state `cancelled` on its
worker until it ends.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from builder.model import TlsFiles
from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.files import temporary_folder
from builder.verify.cluster.orders import WorkerFacts
from builder.verify.cluster.task import describe, run_order

if TYPE_CHECKING:
    from distributed import Client, Future, Security

Ended = Callable[[str, BaseException | None], object]

_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")
_ANSWER_S = 20.0  # for a scheduler to answer
_POLL_S = 0.3  # how often it is looked whether the scheduler is there, and who is at work
_AT_ONCE = 8  # workers that are asked what they are
_LINES = "build-images"  # the topic of the lines of progress
_EVENTS = "all"  # the topic of workers that come and go
_SETTINGS = {  # of a scheduler that is started here: a worker that is silent for so long is lost
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.work-stealing": False,
}
_RUNNING: set[str] = set()  # orders of this worker's process


def need_distributed() -> None:
    """Raise `MissingPrerequisite` unless Dask's `distributed` is installed."""
    try:
        import distributed  # noqa: F401, PLC0415 - an optional package, 0.5 s to import
    except ImportError as error:
        raise MissingPrerequisite(
            "--on needs Dask's package distributed, which is not installed",
            hint="pip install '.[cluster]', in a clone of build-images",
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduler:
    """A scheduler as workers see it: its address, and the files for TLS, in `folder`."""

    address: str
    tls: TlsFiles | None = None
    folder: Path = Path()


class Connection:
    """A connection to a scheduler; callbacks are called in its threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._futures: dict[str, Future[str]] = {}
        self._lock = threading.Lock()
        self._asking = ThreadPoolExecutor(_AT_ONCE)
        self._noting = ThreadPoolExecutor(1)  # what is told, in its order
        self._is_closed = False
        self._present: set[str] = set()  # workers that have not left
        self._done: SimpleQueue[tuple[Future[str], Ended] | None] = SimpleQueue()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def workers(self) -> dict[str, WorkerFacts | str]:
        """Return the workers by address; a text for one that does not say what it is."""
        addresses = [*self._client.scheduler_info(n_workers=-1)["workers"]]
        return dict(self._asking.map(lambda one: (one, self._facts(one)), addresses))

    def watch(
        self,
        joined: Callable[[str, WorkerFacts | str], object],
        lost: Callable[[str, bool], object],
        told: Callable[[str, str, str], object],
        gone: Callable[[], object],
    ) -> None:
        """Call `joined` for each worker, now and later, `lost` when it leaves, `told` for lines.

        Workers are named by their addresses; a line has the key of its order before. `joined` gets
        a text if a worker does not say what it is; `lost` gets whether the worker was to leave.
        `gone` is called if the scheduler is gone.
        """

        def note(event: tuple[float, object]) -> None:
            _, message = event
            match message:
                case {"action": "add-worker", "worker": address}:
                    self._ask(address, joined)
                case {"action": "remove-worker", "worker": address, "expected": expected}:
                    self._present.discard(address)
                    self._noting.submit(lost, address, bool(expected))

        def tell(event: tuple[float, tuple[str, str, str]]) -> None:
            self._noting.submit(told, *event[1])

        self._client.subscribe_topic(_EVENTS, note)
        self._client.subscribe_topic(_LINES, tell)
        for address in self._client.scheduler_info(n_workers=-1)["workers"]:
            self._ask(address, joined)
        threading.Thread(target=self._guard, args=(gone,), daemon=True).start()

    def _guard(self, gone: Callable[[], object]) -> None:
        """Wait until the scheduler is gone. It then has cancelled all orders, so all is over."""
        while self._is_up:
            time.sleep(_POLL_S)
        if not self._is_closed:
            gone()

    @property
    def _is_up(self) -> bool:
        return self._client.status == "running"

    def submit(self, key: str, text: str, address: str, ended: Ended) -> None:
        """Submit an order to a worker. `ended` gets the result's text, or an error.

        It is not called for an order that is cancelled, or whose worker is lost.
        """
        future = self._client.submit(
            carry_out_here,
            key,
            text,
            key=key,
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )
        with self._lock:
            self._futures[key] = future
        future.add_done_callback(lambda done: self._done.put((done, ended)))

    def _collect(self) -> None:
        """Report orders that are done. Results are fetched together: each fetch takes 10 ms."""
        while batch := self._next_done():
            good = [future for future, _ in batch if future.status == "finished"]
            try:
                texts = dict(zip([one.key for one in good], self._client.gather(good), strict=True))
            except Exception:  # a worker was lost with its result: each is asked for by itself
                texts = {}
            for future, ended in batch:
                with self._lock:
                    is_known = self._futures.pop(str(future.key), None) is not None
                if not is_known or future.cancelled():
                    continue
                try:
                    text = texts[future.key] if future.key in texts else future.result()
                except Exception as error:  # of the order, of its worker, or of Dask
                    ended("", error)
                else:
                    ended(text, None)

    def _next_done(self) -> list[tuple[Future[str], Ended]]:
        """Return the orders that are done, at least one; none after the end."""
        batch = [self._done.get()]
        while not self._done.empty():
            batch.append(self._done.get())
        return [] if None in batch else [one for one in batch if one]

    def cancel(self, keys: Iterable[str]) -> None:
        """Cancel orders; their workers end them."""
        with self._lock:
            futures = [self._futures.pop(key) for key in keys if key in self._futures]
        if futures and self._is_up:
            self._client.cancel(futures, force=True)

    def wait_until_idle(self, keys: str, addresses: Iterable[str], seconds: float) -> bool:
        """Return whether workers ended the orders whose keys begin so, after so many seconds."""
        deadline, busy = time.monotonic() + seconds, {*addresses}
        while busy and self._is_up:
            asked = self._asking.submit(
                self._client.run, orders_here, keys, workers=[*busy], on_error="ignore"
            )
            wait([asked], timeout=deadline - time.monotonic())
            if not asked.done():  # a worker that is stopped does not answer
                return False
            counts = {} if asked.exception() else asked.result()  # the scheduler may have ended
            busy = {address for address in busy if counts.get(address)}
            time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        """Close the connection; tasks that run are cancelled."""
        with self._lock:
            self._is_closed = True
        self._done.put(None)
        for threads in (self._asking, self._noting):
            threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Exception):  # the scheduler may be gone, or nothing is watched
            for topic in (_EVENTS, _LINES):
                self._client.unsubscribe_topic(topic)
        self._client.close()

    def _ask(self, address: str, joined: Callable[[str, WorkerFacts | str], object]) -> None:
        """Ask a worker what it is, and call `joined` unless it left meanwhile."""

        def answer() -> None:
            facts = self._facts(address)
            with contextlib.suppress(RuntimeError):  # the connection is closed
                self._noting.submit(enter, facts)

        def enter(facts: WorkerFacts | str) -> None:
            if address in self._present:
                joined(address, facts)

        with self._lock:
            if address in self._present or self._is_closed:
                return
            self._present.add(address)
        self._asking.submit(answer)

    def _facts(self, address: str) -> WorkerFacts | str:
        try:
            facts = self._client.run(describe, workers=[address])[address]
        except Exception as error:  # whatever its machine raises
            return f"it does not say what it is: {type(error).__name__}: {error}"
        assert isinstance(facts, WorkerFacts)
        return facts


def check_address(address: str, *, has_security: bool) -> None:
    """Raise `BadInput` unless a text can be the address of a scheduler."""
    if not _ADDRESS.fullmatch(address):
        raise BadInput(
            f"{address}: not the address of a Dask scheduler",
            hint="write tcp://HOST:PORT, or tls://HOST:PORT with security: in site.yaml",
        )
    if address.startswith("tls") and not has_security:
        raise BadInput(f"{address}: TLS needs security: in site.yaml", hint="docs/scale-out.md")


@contextlib.contextmanager
def connected(address: str, security: TlsFiles | Security | None) -> Iterator[Connection]:
    """Connect to a scheduler; raises `MissingPrerequisite` if it does not answer."""
    need_distributed()
    from distributed import Client, Security  # noqa: PLC0415 - see `need_distributed`

    check_address(address, has_security=bool(security))
    _silence()
    if isinstance(security, TlsFiles):
        ends = {"cert": security.certificate, "key": security.key}
        files = {
            f"tls_{role}_{end}": path
            for role in ("client", "scheduler", "worker")
            for end, path in ends.items()
        }
        security = Security(tls_ca_file=security.ca, require_encryption=True, **files)
    try:
        client = Client(
            address, security=security, timeout=_ANSWER_S, name="build-images", set_as_default=False
        )
    except Exception as error:  # of the network, of TLS, or of Dask
        raise MissingPrerequisite(
            f"{address}: no Dask scheduler answers: {error or type(error).__name__}",
            hint="start one with 'dask scheduler'; docs/scale-out.md has an example",
        ) from error
    connection = Connection(client)
    try:
        yield connection
    finally:
        connection.close()


def _silence() -> None:
    """Log nothing of Dask's: what a user has to know is told by this program."""
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith(("asyncio", "distributed", "tornado")):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextlib.contextmanager
def new_scheduler(folder: Path) -> Iterator[tuple[Scheduler, Connection]]:
    """Start a scheduler in this process, with TLS; yield it, and a connection to it.

    The files for TLS are below `folder`, for this user alone, and are removed at the end: workers
    on other machines read them there.
    """
    need_distributed()
    import dask  # noqa: PLC0415 - see `need_distributed`
    from distributed import LocalCluster, Security  # noqa: PLC0415
    from distributed.utils import get_ip  # noqa: PLC0415

    with temporary_folder(folder, "run-") as own:
        security = Security.temporary()
        files = {"ca": security.tls_ca_file, "certificate": security.tls_worker_cert}
        for title, text in {**files, "key": security.tls_worker_key}.items():
            (own / f"{title}.pem").touch(mode=0o600)
            (own / f"{title}.pem").write_text(text)
        tls = TlsFiles(**{title: str(own / f"{title}.pem") for title in (*files, "key")})
        with (
            dask.config.set(_SETTINGS),
            LocalCluster(
                n_workers=0,
                host=get_ip(),
                protocol="tls://",
                security=security,
                dashboard_address="127.0.0.1:0",  # it asks for no password
                silence_logs=logging.CRITICAL,
            ) as cluster,
            connected(cluster.scheduler_address, security) as connection,
        ):
            address = cluster.scheduler_address
            yield Scheduler(address=address, tls=tls, folder=own), connection


# ---- In the worker ----


def carry_out_here(key: str, text: str) -> str:
    """Carry out an order in this worker; it ends early when it is cancelled."""
    from distributed import Status, get_worker  # noqa: PLC0415 - see `need_distributed`

    worker = get_worker()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        is_up = worker.status in {Status.running, Status.paused}
        return is_up and task is not None and task.state != "cancelled"

    _RUNNING.add(key)
    try:
        return run_order(
            text, is_wanted, lambda line: worker.log_event(_LINES, (key, worker.address, line))
        )
    finally:
        _RUNNING.discard(key)


def orders_here(keys: str) -> int:
    """Return the number of this worker's orders whose keys begin so."""
    return sum(key.startswith(keys) for key in _RUNNING)
