"""A proxy before a registry on loopback, that sees each request and can make it fail."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(kw_only=True, slots=True)
class Fault:
    """What goes wrong with one request.

    `status` answers so in the registry's place. `lost` does all that was asked, and resets the
    connection in the place of an answer. `sent` resets it after so many bytes of the request's
    body, `got` after so many of the answer's; `changed` changes a byte of the answer's body, and
    `replace` is another one. `body` is how that comes: cut (half of it, and the connection ends),
    reset (half of it), slow (half of it, and no more for a while), huge (a gigabyte).

    In a proxy's list it goes wrong with good answers to requests of a `method` whose path matches:
    `times` says how often, and `seen` how often it was.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False
    sent: int = -1
    got: int = -1
    changed: bool = False
    replace: bytes | None = None
    body: str = ""
    path: str = ""
    method: str = "GET"
    times: int = 1_000_000
    seen: int = 0

    def meets(self, request: str) -> bool:
        """Whether one of a list is for a request, `METHOD PATH`."""
        method, _, path = request.partition(" ")
        left = self.seen < self.times and method == self.method
        return left and re.search(self.path, path) is not None


Decide = Callable[[str, int], "Fault | None"]  # from `METHOD PATH` and its number, from 0 on


@dataclass
class Proxy:
    """A proxy that runs. `decide` is asked before each request that none of `faults` is for."""

    upstream: str
    host: str = ""
    decide: Decide = lambda _request, _number: None
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    received: int = 0  # bytes of the bodies of requests
    answered: int = 0  # and of answers
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, request: str) -> Fault | None:
        """Note a request; what goes wrong with it."""
        with self.lock:
            self.requests.append(request)
            number = len(self.requests) - 1
            found = next((one for one in self.faults if one.meets(request)), None)
            if found:
                found.seen += 1
        return found or self.decide(request, number)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for its headers

    def serve(self) -> None:
        """Hand a request on, or let it fail."""
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        fault = proxy.next(f"{self.command} {self.path}") or Fault()
        length = int(self.headers.get("Content-Length") or 0)
        if fault.sent >= 0 and length:
            self.rfile.read(min(length, fault.sent))
            self._reset()
        body = self.rfile.read(length)
        with proxy.lock:
            proxy.received += len(body)
        if fault.status and not fault.path:
            self._answer(fault.status, dict(fault.headers), b"", fault)
            return
        upstream = http.client.HTTPConnection(proxy.upstream, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body or None, self._asked_with())
            answer = upstream.getresponse()
            content = answer.read()
        if fault.lost:
            self._reset()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in {"transfer-encoding", "connection", "date"}
        }
        if fault.path and answer.status >= HTTPStatus.BAD_REQUEST:
            fault = Fault()
        if fault.status or fault.replace is not None:
            content = b"" if fault.replace is None else fault.replace
            headers["Content-Length"] = str(len(content))
        if fault.body == "huge":
            headers["Content-Length"] = str(1 << 30)
        self._answer(fault.status or answer.status, {**headers, **fault.headers}, content, fault)

    def _asked_with(self) -> dict[str, str]:
        """The headers of a request; of one that is there several times, all values."""
        found: dict[str, str] = {}
        for name, value in self.headers.items():
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: Fault) -> None:
        if fault.changed and body:
            body = (
                body[: len(body) // 2]
                + bytes([body[len(body) // 2] ^ 1])
                + body[len(body) // 2 + 1 :]
            )
        self.send_response_only(status)
        if "Content-Length" not in headers:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        proxy: Proxy = self.server.proxy  # type: ignore[attr-defined]
        with proxy.lock:
            proxy.answered += len(body)
        if 0 <= fault.got < len(body):
            self.wfile.write(body[: fault.got])
            self.wfile.flush()
            time.sleep(0.1)  # a reset takes with it what the client has not read
            self._reset()
        self._write(body, fault.body)

    def _write(self, body: bytes, how: str) -> None:
        if how == "huge":
            for _ in range(1 << 10):
                self.wfile.write(b" " * (1 << 20))
            return
        self.wfile.write(body[: len(body) // 2] if how else body)
        self.wfile.flush()
        self.close_connection = self.close_connection or bool(how)
        if how == "slow":
            time.sleep(30)
        if how == "reset":
            time.sleep(0.1)  # a reset takes with it what the client has not read
            self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        raise ConnectionResetError

    def log_message(self, *_: object) -> None:
        pass


for _method in ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.serve)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A reset that was asked for, or a client that was killed."""


@contextlib.contextmanager
def proxy_before(upstream: str, decide: Decide = lambda _request, _number: None) -> Iterator[Proxy]:
    """A proxy before `upstream` (HOST:PORT, without TLS), for a block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = Proxy(upstream=upstream, host=f"127.0.0.1:{server.server_address[1]}", decide=decide)
    server.proxy = proxy  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
