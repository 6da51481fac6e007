"""Servers that take for ever, each in another way: the request ends, in words, and can be ended."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.model.errors import Interrupted
from builder.registry import Credentials, Descriptor, Registry, RegistryFailed, connections
from builder.registry.transport import Transport

CONTENT = bytes(1 << 20)
BLOB = Descriptor.of(CONTENT, "x")
HEAD = b"HTTP/1.1 200 OK\r\n"
Answers = Callable[[socket.socket], object]


@pytest.fixture(autouse=True)
def _soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All times are a hundredth of what they are."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    for name, value in {"_POLL_S": 0.02, "_RATED_S": 0.3, "_REPORT_S": 0.1}.items():
        monkeypatch.setattr(connections, name, value)


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """The host of a server that reads the head of each request, and then answers so."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1 << 12):
                answers(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(server.accept()[0])
                threading.Thread(target=serve, args=(held[-1],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        for one in held:
            one.close()


def client(host: str, told: list[str] | None = None, silence_s: float = 0.5) -> Registry:
    transport = Transport(
        host,
        Credentials(files=()),
        plain_http=[host],
        wait=lambda _: None,
        tell=(told if told is not None else list[str]()).append,
        timeout_s=(1.0, silence_s),
    )
    return Registry(transport, "site/a")


def again(piece: bytes, begin: bytes = b"", every_s: float = 0.02) -> Answers:
    """The same for ever, after a beginning."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(piece)
            time.sleep(every_s)

    return answer


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
FLOOD = 20.0  # seconds of silence: floods end by their size
ENDLESS: dict[str, tuple[Answers, str]] = {
    "no answer": (again(b""), "no response: no complete response within 0.5 s"),
    "a header, byte by byte": (again(b"a", HEAD + b"X: "), "no complete response within 0.5 s"),
    "100 Continue": (again(b"HTTP/1.1 100 Continue\r\n\r\n"), "no complete response within 0.5 s"),
    "a flood of 100 Continue": (
        again(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, every_s=0),
        "received more than 1048576 bytes",
    ),
    "a body that does not come": (
        again(b"", HEAD + b"Content-Length: 9\r\n\r\n"),
        "transfer failed: silent for 0.5 s",
    ),
    "a body, byte by byte": (
        again(b" ", HEAD + b"Content-Length: 9999\r\n\r\n"),
        "transfer failed: fewer than 1024 bytes a second",
    ),
    "trailers, line by line": (
        again(b"a: b\r\n", CHUNKED),
        "transfer failed: fewer than 1024 bytes a second",
    ),
    "a flood of trailers": (
        again(b"a: b\r\n" * 100_000, CHUNKED, every_s=0),
        "transfer failed: received more than 9502720 bytes",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_without_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.registry.failures.ATTEMPTS", 2)
    monkeypatch.setattr(connections, "_FRAMING", 1 << 16)
    answers, reason = ENDLESS[name]
    silence_s = FLOOD if "flood" in name else 0.5
    with serving(answers) as host, pytest.raises(RegistryFailed, match=reason):
        client(host, silence_s=silence_s).resolve("1.0")


def test_a_proxy_has_as_long_as_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.registry.failures.ATTEMPTS", 2)
    answers, reason = ENDLESS["a header, byte by byte"]
    with serving(answers) as proxy, monkeypatch.context() as environment:
        environment.setenv("https_proxy", f"http://{proxy}")
        environment.setenv("no_proxy", "")
        registry = client("registry.example")
        registry.transport._base = "https://registry.example"
        with pytest.raises(RegistryFailed, match=reason):
            registry.resolve("1.0")


def test_a_blob_that_comes_steadily_has_a_time_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It brings enough in each minute, and goes on for days."""
    monkeypatch.setattr(connections, "ANY_S", 0.5)
    monkeypatch.setattr(connections, "MEAN_RATE", 1 << 30)
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(CONTENT)
    with serving(again(bytes(8000), head)) as host:
        start = time.monotonic()
        with pytest.raises(RegistryFailed, match="the time limit for all attempts is exceeded"):
            client(host).read_blob(BLOB, tmp_path / "blob")
        assert time.monotonic() - start < 3
    assert (tmp_path / "blob").stat().st_size > 0


def test_attempts_that_bring_a_byte_each_are_in_vain(tmp_path: Path) -> None:
    asked = []

    def answer(connection: socket.socket) -> None:
        asked.append(time.monotonic())
        part = f"Content-Range: bytes {len(asked) - 1}-\r\n" if len(asked) > 1 else ""
        status = "206 Partial" if part else "200 OK"
        head = f"HTTP/1.1 {status}\r\n{part}Content-Length: 99\r\n\r\n"
        connection.sendall(head.encode() + b"\0")
        connection.shutdown(socket.SHUT_RDWR)

    with serving(answer) as host, pytest.raises(RegistryFailed, match="transfer failed"):
        client(host).read_blob(BLOB, tmp_path / "blob")
    assert len(asked) == 5


def test_an_upload_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.registry.failures.ATTEMPTS", 2)

    def answer(connection: socket.socket) -> None:
        here = b"Location: /v2/site/a/blobs/uploads/x\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(b"HTTP/1.1 202 Accepted\r\n" + here)
        if not connection.recv(1 << 12).startswith(b"HEAD"):
            time.sleep(30)

    with serving(answer) as host, pytest.raises(RegistryFailed, match=r"silent for 0\.5 s"):
        client(host).write_blob(bytes(16 << 20), missing=True)


def test_what_is_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.registry.failures.ATTEMPTS", 2)
    told: list[str] = []
    with serving(again(b"")) as host, pytest.raises(RegistryFailed):
        client(host, told).resolve("1.0")
    at = f"{host}/site/a: manifests/1.0"
    silence = f"{at}: no response for 0.1 s; timeout after 0.5 s"
    retried = f"{at}: no response: no complete response within 0.5 s; attempt 2 of 2 in 0.5 s"
    assert told == [silence, retried, silence]


@pytest.mark.parametrize("name", ENDLESS)
def test_every_wait_hears_of_an_interruption(name: str) -> None:
    with serving(ENDLESS[name][0]) as host:
        registry, failures = client(host, silence_s=60), list[BaseException]()

        def ask() -> None:
            try:
                registry.resolve("1.0")
            except Interrupted as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.1)
        registry.stop()
        thread.join(timeout=2)
        assert failures


def test_all_requests_of_a_time_are_over_with_it() -> None:
    with serving(again(b"a", HEAD + b"X: ")) as host:
        registry = client(host, silence_s=60)
        start = time.monotonic()
        with (
            registry.transport.time_limit(0.3),
            pytest.raises(RegistryFailed, match="time limit"),
        ):
            registry.resolve("1.0")
        assert time.monotonic() - start < 3


def test_cookies_are_not_taken_apart_and_not_sent() -> None:
    """Of 90 of them it took seconds, and each would be kept."""
    heads: list[bytes] = []
    cookie = b"Set-Cookie: a=b; expires=" + b"0" * 10_000 + b"\r\n"

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + cookie * 90 + b"Content-Length: 2\r\n\r\n{}")
        heads.append(connection.recv(1 << 12))
        connection.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

    with serving(answer) as host:
        registry, start = client(host, silence_s=5), time.process_time()
        registry.resolve("1.0")
        registry.resolve("2.0")
        assert time.process_time() - start < 1
    assert b"cookie" not in heads[0].lower()
