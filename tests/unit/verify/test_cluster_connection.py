"""The connection to a scheduler, with a client that is told what its scheduler says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast

from builder.verify.cluster.connection import Connection
from builder.verify.cluster.orders import WorkerFacts

FACTS = WorkerFacts(machine="n1", arch="x86_64", emulates=(), gpus=0, program="", engine="")
Handler = Callable[[tuple[float, object]], None]


class Client:
    """A client of a scheduler that is not there; workers answer when `may_answer` is set."""

    def __init__(self, *workers: str) -> None:
        self.workers, self.status = workers, "running"
        self.handlers: dict[str, Handler] = {}
        self.may_answer = threading.Event()
        self.asked: SimpleQueue[str] = SimpleQueue()

    def subscribe_topic(self, topic: str, handler: Handler) -> None:
        self.handlers[topic] = handler

    def unsubscribe_topic(self, topic: str) -> None:
        del self.handlers[topic]

    def scheduler_info(self, *, n_workers: int) -> dict[str, dict[str, object]]:
        assert n_workers == -1
        return {"workers": dict.fromkeys(self.workers)}

    def run(self, *_: object, workers: list[str], on_error: str = "") -> dict[str, WorkerFacts]:
        assert on_error in {"", "ignore"}
        self.asked.put(workers[0])
        assert self.may_answer.wait(10)
        return {workers[0]: FACTS}

    def say(self, **message: object) -> None:
        self.handlers["all"]((0.0, message))

    def close(self) -> None:
        """Do nothing."""


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


def test_a_scheduler_that_is_gone_is_told_once() -> None:
    client = Client()
    connection, heard = watched(client)
    client.status = "connecting"
    assert heard.get(timeout=10) == ("gone",)
    assert connection.wait_until_idle("run-", ["tcp://a"], 10)  # its orders were cancelled
    connection.close()


def test_a_stopped_worker_is_not_waited_for_longer_than_the_rest() -> None:
    client = Client()
    connection, _ = watched(client)
    assert not connection.wait_until_idle("run-", ["tcp://a"], 0.2)
    client.may_answer.set()
    connection.close()
