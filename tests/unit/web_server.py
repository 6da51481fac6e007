"""Web servers on loopback, and clients that know nothing of the user's proxies and logins."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests


class Answering(BaseHTTPRequestHandler):
    """Answers requests by `get`, which HEAD asks for, too, and by `post`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for its headers

    def do_GET(self) -> None:
        self.get()

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def do_POST(self) -> None:
        self.post()

    def get(self) -> None:
        raise NotImplementedError

    def post(self) -> None:
        raise NotImplementedError

    def answer(self, content: bytes = b"", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], **attributes: object) -> Iterator[str]:
    """The URL of a server whose handler has some attributes, until the end of the context."""
    own = type("Handler", (handler,), attributes)
    with ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def client(proxy: str = "") -> requests.Session:
    """A session that asks through a proxy, if one is named."""
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"http": proxy} if proxy else {}
    return session
