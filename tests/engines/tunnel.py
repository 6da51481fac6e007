"""A proxy that speaks TLS itself, and leads to whatever host it is asked for."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def tls_proxy(certificate: Path, key: Path) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and what it was asked to lead to, as it comes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    threading.Thread(target=lead, args=(plain,), daemon=True).start()

        def lead(plain: socket.socket) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as here:
                asked.append(here.recv(4096).split(b" ")[1].decode())
                host, _, port = asked[-1].partition(":")
                with socket.create_connection((host, int(port)), timeout=60) as there:
                    here.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    _relay(here, there)

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}", asked


def _relay(here: ssl.SSLSocket, there: socket.socket) -> None:
    """Both ways, in one thread: a TLS connection is not for two."""
    while True:
        ready = [here] if here.pending() else select.select([here, there], [], [])[0]
        for one in ready:
            if not (data := one.recv(1 << 16)):
                return
            (there if one is here else here).sendall(data)
