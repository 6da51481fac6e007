"""The connection to a scheduler: with a client that is told what to say, and with a real one."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from builder.model import TlsFiles
from builder.model.errors import MissingPrerequisite
from builder.verify.cluster import connection as connections
from builder.verify.cluster.connection import (
    Connection,
    Scheduler,
    carry_out_here,
    connected,
    new_scheduler,
    orders_here,
)
from builder.verify.cluster.orders import WorkerFacts

FACTS = WorkerFacts(machine="n1", arch="x86_64", emulates=(), gpus=0, program="", engine="")
Handler = Callable[[tuple[float, object]], None]


class Future:
    """An order that a test ends, with a text or an error."""

    def __init__(self, key: str) -> None:
        self.key, self.status = key, "pending"
        self.value: str | Exception = ""
        self.calls: list[Callable[[Future], object]] = []

    def add_done_callback(self, call: Callable[[Future], object]) -> None:
        self.calls.append(call)

    def cancelled(self) -> bool:
        return self.status == "cancelled"

    def result(self) -> str:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def end(self, value: str | Exception, status: str = "") -> None:
        self.value = value
        self.status = status or ("error" if isinstance(value, Exception) else "finished")
        for call in self.calls:
            call(self)


class Client:
    """A client of a scheduler that is not there; workers answer when `may_answer` is set."""

    def __init__(self, *workers: str) -> None:
        self.workers, self.status = workers, "running"
        self.handlers: dict[str, Handler] = {}
        self.may_answer = threading.Event()
        self.asked: SimpleQueue[str] = SimpleQueue()
        self.answer: Exception | None = None
        self.counts = [1, 0]  # the orders of each worker, whenever they are asked for
        self.futures: dict[str, Future] = {}
        self.options: dict[str, dict[str, object]] = {}
        self.gathered: list[list[str]] = []
        self.cancelled: list[str] = []

    def subscribe_topic(self, topic: str, handler: Handler) -> None:
        self.handlers[topic] = handler

    def unsubscribe_topic(self, topic: str) -> None:
        del self.handlers[topic]

    def scheduler_info(self, *, n_workers: int) -> dict[str, dict[str, object]]:
        assert n_workers == -1
        return {"workers": dict.fromkeys(self.workers)}

    def run(
        self, work: object, *keys: str, workers: list[str], on_error: str = ""
    ) -> dict[str, object]:
        self.asked.put(workers[0])
        assert self.may_answer.wait(10)
        if self.answer:
            raise self.answer
        if work is orders_here:
            assert (keys, on_error) == (("run-",), "ignore")
            return dict.fromkeys(workers, self.counts.pop(0))
        return {workers[0]: FACTS}

    def submit(self, work: object, *words: str, key: str, **options: object) -> Future:
        assert (work, words) == (carry_out_here, (key, f"text of {key}"))
        self.options[key] = options
        return self.futures.setdefault(key, Future(key))

    def gather(self, futures: list[Future]) -> list[str]:
        self.gathered.append([future.key for future in futures])
        return [future.result() for future in futures]

    def cancel(self, futures: list[Future], *, force: bool) -> None:
        assert force
        self.cancelled += [future.key for future in futures]

    def say(self, **message: object) -> None:
        self.handlers["all"]((0.0, message))

    def close(self) -> None:
        self.status = "closed"


def watched(client: Client) -> tuple[Connection, SimpleQueue[tuple[object, ...]]]:
    """A connection, and what it tells: workers that joined, those that are lost, and lines."""
    heard: SimpleQueue[tuple[object, ...]] = SimpleQueue()
    connection = Connection(cast("Any", client))
    connection.watch(
        lambda *worker: heard.put(("joined", *worker)),
        lambda *worker: heard.put(("lost", *worker)),
        lambda *line: heard.put(("told", *line)),
        lambda: heard.put(("gone",)),
    )
    return connection, heard


def test_workers_join_and_leave() -> None:
    client = Client("tcp://a")
    client.may_answer.set()
    connection, heard = watched(client)
    assert heard.get(timeout=10) == ("joined", "tcp://a", FACTS)
    client.say(action="add-worker", worker="tcp://a")
    client.say(action="add-worker", worker="tcp://b")
    assert heard.get(timeout=10) == ("joined", "tcp://b", FACTS)
    client.say(action="remove-worker", worker="tcp://a", expected=False)
    assert heard.get(timeout=10) == ("lost", "tcp://a", False)
    client.say(action="add-worker", worker="tcp://a")
    assert heard.get(timeout=10) == ("joined", "tcp://a", FACTS)
    connection.close()
    assert heard.empty()


def test_a_worker_that_is_lost_while_it_is_asked_does_not_join() -> None:
    """Its tasks would wait for ever: nothing more is heard of it."""
    client = Client("tcp://a")
    connection, heard = watched(client)
    assert client.asked.get(timeout=10) == "tcp://a"
    client.say(action="remove-worker", worker="tcp://a", expected=False)
    assert heard.get(timeout=10) == ("lost", "tcp://a", False)
    client.may_answer.set()
    connection._asking.shutdown()
    connection._noting.shutdown()
    assert heard.empty()
    connection.close()


def test_a_scheduler_that_is_gone_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_POLL_S", 0.01)
    client = Client()
    connection, heard = watched(client)
    client.status = "connecting"
    assert heard.get(timeout=10) == ("gone",)
    assert connection.wait_until_idle("run-", ["tcp://a"], 10)  # its orders were cancelled
    connection.close()
    before = {*threading.enumerate()}
    closed, heard = watched(Client())
    new = {*threading.enumerate()} - before
    [guard] = [thread for thread in new if thread.name.endswith("(_guard)")]
    closed.close()
    guard.join(10)
    assert (guard.daemon, heard.empty()) == (True, True)  # it keeps no process from its end


def test_what_is_told_comes_one_after_the_other() -> None:
    client, told = Client(), SimpleQueue[tuple[str, ...]]()
    may_end = threading.Event()

    def tell(*line: str) -> None:
        told.put(line)
        assert may_end.wait(10)

    connection = Connection(cast("Any", client))
    connection.watch(print, print, tell, print)
    lines = [("run-1", "tcp://a", text) for text in ("first", "second")]
    for line in lines:
        client.handlers["build-images"]((0.0, line))
    assert told.get(timeout=10) == lines[0]
    time.sleep(0.05)
    assert told.empty()
    may_end.set()
    assert told.get(timeout=10) == lines[1]
    connection.close()


def test_a_stopped_worker_is_not_waited_for_longer_than_the_rest() -> None:
    client = Client(*(f"tcp://{name}" for name in "abcdefghi"))
    connection, heard = watched(client)
    assert connection._collector.daemon
    assert not connection.wait_until_idle("run-", ["tcp://a"], 0.05)
    before = client.asked.qsize()
    connection.close()
    client.may_answer.set()
    connection._asking.shutdown()
    assert (before, client.asked.qsize(), heard.empty()) == (8, 8, True)


def test_workers_say_what_they_are() -> None:
    client = Client("tcp://a", "tcp://b")
    client.may_answer.set()
    connection = Connection(cast("Any", client))
    assert connection.workers() == {"tcp://a": FACTS, "tcp://b": FACTS}
    client.answer = ModuleNotFoundError("No module named 'builder'")
    text = "it does not say what it is: ModuleNotFoundError: No module named 'builder'"
    assert connection.workers() == {"tcp://a": text, "tcp://b": text}
    connection.close()
    assert client.status == "closed"


def test_workers_that_end_their_orders_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_POLL_S", 0.001)
    client = Client()
    client.may_answer.set()
    connection, _ = watched(client)
    assert connection.wait_until_idle("run-", ["tcp://a", "tcp://b"], 10)
    assert client.counts == []
    client.answer = OSError("the scheduler has ended")
    assert connection.wait_until_idle("run-", ["tcp://a"], 10)
    connection.close()


# ---- Orders ----


class Orders:
    """The orders of a connection, and how those ended that it told of."""

    def __init__(self, client: Client) -> None:
        self.client, self.connection = client, Connection(cast("Any", client))
        self.ended: SimpleQueue[tuple[str, str, str]] = SimpleQueue()
        self.may_go_on = threading.Event()

    def submit(self, *keys: str) -> None:
        for key in keys:
            self.connection.submit(key, f"text of {key}", "tcp://a", self._note(key))

    def _note(self, key: str) -> Callable[[str, BaseException | None], object]:
        def note(text: str, error: BaseException | None) -> None:
            self.ended.put((key, text, str(error or "")))
            assert self.may_go_on.wait(10)

        return note

    def end(self, **values: str | Exception) -> None:
        for key, value in values.items():
            self.client.futures[key].end(value)

    def next(self, count: int) -> list[tuple[str, str, str]]:
        return [self.ended.get(timeout=10) for _ in range(count)]


@pytest.fixture(name="orders")
def orders_of_a_client() -> Iterator[Orders]:
    orders = Orders(Client())
    yield orders
    orders.may_go_on.set()
    orders.connection.close()
    orders.connection._collector.join(10)
    assert not orders.connection._collector.is_alive()


def test_results_are_fetched_together(orders: Orders) -> None:
    """Each fetch takes 10 ms."""
    orders.submit("a", "b", "c", "d")
    assert orders.client.options["a"] == {
        "workers": ["tcp://a"],
        "allow_other_workers": False,
        "pure": False,
    }
    orders.end(a="A")
    assert orders.next(1) == [("a", "A", "")]
    orders.end(b="B", c=ValueError("no"), d="D")
    orders.may_go_on.set()
    assert orders.next(3) == [("b", "B", ""), ("c", "", "no"), ("d", "D", "")]
    assert orders.client.gathered == [["a"], ["b", "d"]]


def test_a_result_that_is_lost_costs_no_other(orders: Orders) -> None:
    orders.submit("a", "b", "c")
    orders.end(a="A")
    orders.next(1)
    orders.client.futures["c"].end(OSError("lost"), "finished")
    orders.end(b="B")
    orders.may_go_on.set()
    assert orders.next(2) == [("c", "", "lost"), ("b", "B", "")]


def test_nothing_is_told_of_orders_that_were_cancelled(orders: Orders) -> None:
    orders.may_go_on.set()
    orders.submit("a", "b", "c")
    orders.connection.cancel(["a", "of another run"])
    assert orders.client.cancelled == ["a"]
    orders.client.futures["b"].end("", "cancelled")  # by its scheduler
    orders.end(a="A", c="C")
    assert orders.next(1) == [("c", "C", "")]
    orders.connection.cancel(["a", "b", "c"])
    orders.submit("d")
    orders.client.status = "connecting"
    orders.connection.cancel(["d"])
    assert orders.client.cancelled == ["a"]  # nobody could be asked


# ---- A real scheduler ----


@contextlib.contextmanager
def worker_of(connection: Connection, scheduler: Scheduler, folder: Path) -> Iterator[Any]:
    """A worker in this process, with the files for TLS that a worker of Slurm has."""
    from distributed import Security, Worker  # noqa: PLC0415 - an optional package, 0.5 s to import

    tls = scheduler.tls
    assert tls
    security = Security(tls_ca_file=tls.ca, tls_worker_cert=tls.certificate, tls_worker_key=tls.key)

    async def start() -> Worker:
        worker = Worker(
            *(scheduler.address,), nthreads=1, security=security, local_directory=str(folder)
        )
        await worker
        return worker

    worker = connection._client.sync(start)
    try:
        yield worker
    finally:
        connection._client.sync(worker.close)


def test_orders_are_carried_out_by_workers_of_a_new_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carried(text: str, wanted: Callable[[], bool], tell: Callable[[str], object]) -> str:
        tell(f"at work on {text}")
        while text == "long" and wanted():
            time.sleep(0.005)
        return {"good": "done", "long": "unwanted"}[text]

    from distributed import default_client  # noqa: PLC0415 - see `worker_of`

    monkeypatch.setattr("distributed.utils.get_ip", lambda: "127.0.0.1")
    monkeypatch.setattr(connections, "run_order", carried)
    monkeypatch.setattr(connections, "describe", lambda: FACTS)
    monkeypatch.setattr(connections, "_POLL_S", 0.01)
    heard: SimpleQueue[tuple[object, ...]] = SimpleQueue()
    clusters = tmp_path / "home/clusters"
    with new_scheduler(clusters) as (scheduler, connection):
        check_scheduler(scheduler, clusters)
        assert connection.workers() == {}
        connection.watch(
            lambda *worker: heard.put(("joined", *worker)),
            lambda *worker: heard.put(("lost", *worker)),
            lambda *line: heard.put(("told", *line)),
            lambda: heard.put(("gone",)),
        )
        with worker_of(connection, scheduler, tmp_path / "worker") as worker:
            address = worker.address
            assert heard.get(timeout=10) == ("joined", address, FACTS)
            for key, text, end in (
                ("run-1", "good", "('ended', 'done', None)"),
                ("run-2", "bad", "('ended', '', KeyError('bad'))"),
                ("run-3", "long", ""),
            ):
                connection.submit(key, text, address, lambda *end: heard.put(("ended", *end)))
                events = [str(heard.get(timeout=30)) for _ in ("told", *([end] if end else []))]
                line = f"('told', '{key}', '{address}', 'at work on {text}')"
                assert {*events} == {line, *([end] if end else [])}
            assert connection.wait_until_idle("another-", [address], 30)
            assert not connection.wait_until_idle("run-", [address], 0.1)
            connection.cancel(["run-3"])
            assert connection.wait_until_idle("run-", [address], 30)
            connection._client.retire_workers([address])
        assert heard.get(timeout=10) == ("lost", address, True)
        with pytest.raises(ValueError, match="No client"):  # of code that uses Dask by itself
            default_client()
        assert connection._client.id.startswith("Client-build-images-")
        with connected(scheduler.address, scheduler.tls) as other:
            assert other.workers() == {}
    with monkeypatch.context() as patch:  # the folder is there, and what fails leaves nothing in it
        patch.setattr("distributed.Security.temporary", raising)
        with pytest.raises(RuntimeError, match="no key"), new_scheduler(clusters):
            pass
    assert [*clusters.iterdir()] == []
    for name in ("asyncio", "distributed.core", "distributed.scheduler", "tornado.application"):
        assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)


def raising() -> None:
    raise RuntimeError("no key")


def check_scheduler(scheduler: Scheduler, clusters: Path) -> None:
    """Its address, its files for TLS, and the settings that it has."""
    import dask  # noqa: PLC0415 - see `worker_of`

    folder = scheduler.folder
    assert scheduler.address.startswith("tls://127.0.0.1:")
    assert (folder.parent, folder.name.partition("-")[0]) == (clusters, "run")
    assert scheduler.tls == TlsFiles(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / "certificate.pem"),
        key=str(folder / "key.pem"),
    )
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert dask.config.get("distributed.scheduler.worker-ttl") == "60s"
    assert dask.config.get("distributed.scheduler.work-stealing") is False


def test_nothing_goes_unencrypted_where_the_site_has_files_for_tls(tmp_path: Path) -> None:
    from distributed import Security  # noqa: PLC0415 - see `worker_of`

    made, paths = Security.temporary(), dict[str, str]()
    texts = {
        "ca": made.tls_ca_file,
        "certificate": made.tls_worker_cert,
        "key": made.tls_worker_key,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        paths[name] = str(tmp_path / name)
    with (
        pytest.raises(MissingPrerequisite, match="encryption") as caught,
        connected("tcp://127.0.0.1:9", TlsFiles(**paths)),
    ):
        pass
    assert caught.value.hint.startswith("start one with 'dask scheduler'")
