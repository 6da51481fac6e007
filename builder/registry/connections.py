"""Connections to registries: trusted certificates, time limits and connection pools."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import io
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

import requests.utils
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager, ProxyManager, pool_classes_by_scheme
from urllib3.util import make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context

from builder.model.errors import BadInput
from builder.registry.failures import TLS_HINT

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
LEAST_RATE = 1 << 10  # bytes a second, in each minute
MEAN_RATE = 16 << 10  # bytes a second, on average over a blob
ANY_S = 300.0  # limit for bodies of unknown size; added to the time for a body's size
TOO_LONG = "the time limit for all attempts is exceeded"
_POLL_S = 0.2
_RATED_S = 60.0
_REPORT_S = 5.0  # silence that is reported
_LARGEST_HEAD = 1 << 20  # bytes; http.client limits only the number of headers
_FRAMING = 16 << 20  # bytes besides a body: chunk sizes and trailers


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """The size limit of a body in bytes, and the time limit for all attempts to transfer it.

    `until` is a time of `time.monotonic`.
    """

    size: int
    until: float = math.inf

    @classmethod
    def from_now(cls, size: int) -> BodyLimits:
        """Return the limits for a body whose first attempt begins now."""
        return cls(size=size, until=time.monotonic() + ANY_S + size / MEAN_RATE)


SMALL_BODY = BodyLimits(size=4 << 20)


@dataclass(kw_only=True, slots=True)
class Watch:
    """The time limits of one request for a `resource`, and its progress.

    `check` raises to end the request; `tell` receives a line for a long silence. `until` is a time
    of `time.monotonic`; a body has at most `size` bytes.
    """

    resource: str
    check: Callable[[], object]
    tell: Callable[[str], object]
    silence_s: float
    until: float
    size: int
    _head_since: float = 0.0  # start of the wait for the response's head; 0 outside it
    _received: int = 0
    _rated: int = 0
    _waited_s: float = 0.0
    _is_reported: bool = False

    def send(self, sock: socket.socket, data: bytes | bytearray) -> None:
        """Send all of `data`; raises `TimeoutError` if it takes too long."""
        self.check()  # connecting took time
        sock.settimeout(_POLL_S)
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[self._wait(partial(sock.send, remaining)) :]

    def receive(self, sock: socket.socket, buffer: WriteableBuffer) -> int:
        """Read bytes and return their number, 0 at the end; raises `TimeoutError` if too slow."""
        size = self._wait(partial(sock.recv_into, buffer))
        self._received += size
        most = _LARGEST_HEAD + (0 if self._head_since else 2 * self.size + _FRAMING)
        if self._received > most:
            raise ConnectionError(f"received more than {most} bytes")
        return size

    def begin_head(self) -> None:
        """Note that the wait for the head of a response begins."""
        self._received = 0
        self._head_since = time.monotonic()

    def end_head(self) -> None:
        """Note that the head of a response has been read; its body follows."""
        self._head_since = self._waited_s = 0.0
        self._rated = 0

    def _wait(self, transfer: Callable[[], int]) -> int:
        """Wait until bytes are sent or received; time between transfers does not count."""
        start = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):  # of the socket, after _POLL_S
                size = transfer()
                break
            self._check(silent_s=time.monotonic() - start)
        self._rated += size
        self._waited_s += time.monotonic() - start
        self._check(silent_s=0.0)
        return size

    def _check(self, *, silent_s: float) -> None:
        self.check()
        now = time.monotonic()
        if now > self.until:
            raise TimeoutError(TOO_LONG)
        if self._head_since:
            silent_s = now - self._head_since
        if silent_s > self.silence_s:
            problem = "no complete response within" if self._head_since else "silent for"
            raise TimeoutError(f"{problem} {self.silence_s:g} s")
        if silent_s > _REPORT_S and not self._is_reported:
            self._is_reported = True
            missing = "response" if self._head_since else "byte"
            limits = f"for {_REPORT_S:g} s; timeout after {self.silence_s:g} s"
            self.tell(f"{self.resource}: no {missing} {limits}")
        if self._waited_s > _RATED_S and not self._head_since:
            if self._rated < LEAST_RATE * self._waited_s:
                raise TimeoutError(f"fewer than {LEAST_RATE} bytes a second")
            self._waited_s, self._rated = 0.0, 0


_CURRENT: ContextVar[Watch] = ContextVar("watch")


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Use a watch for this thread's request, until the head of its response has been read.

    The response uses the same watch for its body.
    """
    token = _CURRENT.set(watch)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        watch.end_head()


class _WatchedSocket:
    """A connected socket, with or without TLS, limited by the watch of the current request."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def sendall(self, data: bytes | bytearray) -> None:
        """Send all of `data`.

        A server that closes TLS while a body is sent may have answered with a reason (401, 413).
        urllib3 reads that response after a broken pipe, but not after the error that TLS raises.
        """
        try:
            _CURRENT.get().send(self._sock, data)
        except ssl.SSLEOFError as error:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the file that a response is read from."""
        self._sock.settimeout(_POLL_S)
        return io.BufferedReader(_ResponseFile(self._sock, _CURRENT.get()))


class _ResponseFile(io.RawIOBase):
    """The bytes of a socket, which stays open until this file is closed."""

    def __init__(self, sock: socket.socket, watch: Watch) -> None:
        super().__init__()
        self._sock, self._watch = sock, watch
        self._holder = sock.makefile("rb", buffering=0)
        watch.begin_head()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._watch.receive(self._sock, buffer)

    def close(self) -> None:
        self._holder.close()
        super().close()


_PROXY = "name it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; SOCKS is not supported"
_OPENING = threading.Lock()
_MOST_IDLE = 16  # idle connections to one server
# Files or folders of certificates, each with the variable that sets it.
_Authorities = tuple[tuple[str, str], ...]


def connections(url: str) -> PoolManager:
    """Return the pool of connections to a server, through the environment's proxy if it has one.

    Raises `BadInput` for an invalid proxy, and for a file or folder without readable certificates.
    """
    proxies = requests.utils.get_environ_proxies(url, no_proxy=None)
    with _OPENING:
        return _pool(_authorities(), requests.utils.select_proxy(url, proxies) or "")


@functools.cache
def _pool(authorities: _Authorities, proxy: str) -> PoolManager:
    """Return the pool for these certificates and proxy; certificates are read only once."""
    context = _context_that_trusts(authorities)
    pool: PoolManager
    if proxy:
        try:
            proxy = requests.utils.prepend_scheme_if_needed(proxy, "http")
            login = unquote(parse_url(proxy).auth or "")
            pool = ProxyManager(
                proxy if parse_url(proxy).host else "",
                proxy_headers=make_headers(proxy_basic_auth=login) if login else None,
                proxy_ssl_context=context,
                ssl_context=context,
                maxsize=_MOST_IDLE,
            )
        except (ValueError, TypeError) as error:  # TypeError: a login without a host
            # Without the URL, which may hold a password.
            raise BadInput(
                "the proxy in the environment ($https_proxy) cannot be used", hint=_PROXY
            ) from error
    else:
        pool = PoolManager(ssl_context=context, maxsize=_MOST_IDLE)
    pool.pool_classes_by_scheme = _POOLS
    return pool


class _Plain(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = cast("socket.socket", _WatchedSocket(self.sock))


class _Encrypted(_Plain, HTTPSConnection):
    def _tunnel(self) -> None:
        """Request the connection from a proxy, within the limits of the current request."""
        sock = self.sock
        self.sock = cast("socket.socket", _WatchedSocket(sock))
        super()._tunnel()
        sock.settimeout(self.timeout)  # for the TLS handshake
        _CURRENT.get().end_head()


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


_POOLS = {**pool_classes_by_scheme, "http": _PlainPool, "https": _EncryptedPool}


def _context_that_trusts(authorities: _Authorities) -> ssl.SSLContext:
    context = create_urllib3_context()
    for name, path in authorities:
        location = {"capath" if Path(path).is_dir() else "cafile": path}
        try:
            context.load_verify_locations(**location)
        except OSError as error:
            shown = f"{name}: {path}" if name else path
            raise BadInput(f"{shown}: cannot read certificates", hint=TLS_HINT) from error
    return context


def _authorities() -> _Authorities:
    """Return the certificate files that variables name, with the variables; else the default file.

    As in requests, the first variable that is set counts. SSL_CERT_FILE always counts.
    """
    environment = os.environ
    names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
    named = [(name, environment[name]) for name in names if environment.get(name)]
    used = [pair for pair in named if pair == named[0] or pair[0] == "SSL_CERT_FILE"]
    return tuple(used) or (("", requests.utils.DEFAULT_CA_BUNDLE_PATH),)


def speaks_tls(host: str) -> bool:
    """Return whether a local server speaks TLS; no data is sent, so no certificate is verified."""
    parts = urlsplit(f"//{host}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        address = parts.hostname or "", parts.port or http.client.HTTPS_PORT
        with socket.create_connection(address, timeout=2.0) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False
