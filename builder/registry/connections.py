"""Connections to registries: their trust, and the pool of open ones."""

from __future__ import annotations

import errno
import functools
import http.client
import os
import socket
import ssl
import threading
from pathlib import Path
from urllib.parse import urlsplit

import requests
import requests.adapters
import requests.utils
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import ProxyManager, pool_classes_by_scheme
from urllib3.util.ssl_ import create_urllib3_context

from builder.model.errors import BadInput
from builder.registry.answers import TLS_HINT
from builder.registry.deadlines import WatchedSending

_CHUNK = 1 << 20  # bytes of a body in one write
_OPENING = threading.Lock()
_MOST_IDLE = 16  # connections to one server that wait to be used again
# Files or folders of certificates, each with the variable that names it.
_Authorities = tuple[tuple[str, str], ...]


def session() -> requests.Session:
    """Return a session for one thread; all threads share the connections.

    Raises `BadInput` for a file or folder in which no certificates can be read.
    """
    opened = requests.Session()
    with _OPENING:
        opened.mount("https://", _connections(_authorities()))
        opened.mount("http://", _connections())
    opened.trust_env = False  # what of the environment counts is asked for once
    opened.headers["User-Agent"] = "build-images"
    opened.headers["Accept-Encoding"] = "identity"  # digests are of what registries have
    return opened


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections that write bodies in large pieces; `context` is for those with TLS."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._more: dict[str, object] = {"ssl_context": context} if context else {}
        super().__init__(pool_maxsize=_MOST_IDLE)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **more: object
    ) -> None:
        more |= {**self._more, "blocksize": _CHUNK}
        super().init_poolmanager(connections, maxsize, block, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **more: object) -> ProxyManager:
        own = {**self._more, "proxy_ssl_context": self._more.get("ssl_context")}
        manager: ProxyManager = super().proxy_manager_for(proxy, **own, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def cert_verify(
        self, conn: HTTPSConnectionPool, url: str, verify: object, cert: object
    ) -> None:
        """Leave trust to the context: requests would have it read for each connection."""
        del url, verify, cert
        conn.cert_reqs, conn.ca_certs, conn.ca_cert_dir = "CERT_REQUIRED", None, None


class _Plain(WatchedSending, HTTPConnection):
    """Without TLS."""


class _Encrypted(WatchedSending, HTTPSConnection):
    """With TLS; a server that closes it while a body is sent may have answered why (401, 413).

    urllib3 reads that after a broken pipe, but not after what TLS makes of one.
    """

    def send(self, data: object) -> None:
        try:
            super().send(data)
        except ssl.SSLEOFError as error:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from error


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


_POOLS = {**pool_classes_by_scheme, "http": _PlainPool, "https": _EncryptedPool}


@functools.cache
def _connections(authorities: _Authorities = ()) -> _Adapter:
    """Return the pool of connections with the same trust: certificates are read once.

    Raises `BadInput` for a file or folder in which no certificates can be read.
    """
    return _Adapter(_context_that_trusts(authorities) if authorities else None)


def _context_that_trusts(authorities: _Authorities) -> ssl.SSLContext:
    context = create_urllib3_context()
    for name, path in authorities:
        location = {"capath" if Path(path).is_dir() else "cafile": path}
        try:
            context.load_verify_locations(**location)
        except OSError as error:
            shown = f"{name}: {path}" if name else path
            raise BadInput(f"{shown}: no certificates can be read there", hint=TLS_HINT) from error
    return context


def _authorities() -> _Authorities:
    """Return the certificate files that a site names, with their variables; else the usual one.

    Of requests' own variables the first counts, and SSL_CERT_FILE in any case.
    """
    environment = os.environ
    names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
    named = [(name, environment[name]) for name in names if environment.get(name)]
    used = [pair for pair in named if pair == named[0] or pair[0] == "SSL_CERT_FILE"]
    by_path = {path: name for name, path in reversed(used)}
    return tuple((name, path) for path, name in by_path.items()) or (
        ("", requests.utils.DEFAULT_CA_BUNDLE_PATH),
    )


def speaks_tls(host: str) -> bool:
    """Return whether a local server speaks TLS; nothing is sent, so nothing is verified."""
    parts = urlsplit(f"//{host}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        address = parts.hostname or "", parts.port or http.client.HTTPS_PORT
        with socket.create_connection(address, timeout=2.0) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False
