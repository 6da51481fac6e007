"""Packages that are downloaded once: a caching HTTP proxy for the time of one run.

Build steps of every image and architecture, and mmdebstrap, are pointed to it by `http_proxy`. It
keeps files that never change under one name (`.deb`, `.rpm`, `.whl`) and passes everything else
through: indices and their signatures are always the mirror's own, so package managers verify each
file as they always do. What a step was given that failed is not kept: the package manager may have
refused it. HTTPS does not go through it, but for pip: `builder.wheels` says how.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from builder import wheels
from builder.errors import StepFailed

if TYPE_CHECKING:
    import requests

    from builder.process import Processes

_KEPT = (".deb", ".udeb", ".rpm", ".whl")
_SOURCES = (".tar.gz", ".zip")  # of Python packages: an index never changes what it lists
_TIMEOUT_S = 60.0
_LONG_S = 86_400.0
_CHUNK = 1 << 16
# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
}
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_~-]")


@dataclass(kw_only=True)
class PackageCache:
    """The folder of kept files, and what came from it in this run.

    `address` is the proxy's; `url` has the `key` that it wants, which other users of the machine
    do not have. `logins` are names and passwords by host, of package indices that want one.
    """

    folder: Path
    address: str = ""
    url: str = ""
    key: str = ""
    logins: dict[str, tuple[str, str]] = field(default_factory=dict)
    taken: int = 0
    taken_bytes: int = 0
    fetched: int = 0
    dropped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: dict[Path, threading.Lock] = field(default_factory=dict)
    _given: dict[Path, float] = field(default_factory=dict)  # when, by `time.monotonic`

    def place(self, url: str, *, listed: bool = False) -> Path | None:
        """Where a file is kept, `listed` by an index or not; None if it is of no kind that is."""
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        if not name.endswith((*_KEPT, *_SOURCES) if listed else _KEPT):
            return None
        digest = hashlib.sha256(url.encode()).hexdigest()[:24]
        return self.folder / digest[:2] / f"{digest}-{_UNSAFE.sub('_', name)[-160:]}"

    @contextlib.contextmanager
    def alone(self, place: Path) -> Iterator[None]:
        """A time in which no other thread fetches the same file."""
        with self._lock:
            lock = self._busy.setdefault(place, threading.Lock())
        with lock:
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step that may install packages; what it was given is dropped if it fails.

        A package manager that refuses a file ends its step, and would be given the same file again
        for ever. No request says which step it is of, so what steps beside it were given meanwhile
        is dropped, too: it costs them nothing, and a later one a download.
        """
        begun = time.monotonic()
        try:
            yield
        except StepFailed:
            self._drop(begun)
            raise

    def _drop(self, since: float) -> None:
        """Remove what was given since that time; what is on its way still will not be kept."""
        with self._lock:
            for place in [one for one, when in self._given.items() if when >= since]:
                del self._given[place]
                place.unlink(missing_ok=True)
                self.dropped += 1

    def begin(self, place: Path) -> None:
        """Note that somebody is about to be given a file."""
        with self._lock:
            self._given[place] = time.monotonic()

    def keep(self, partial: Path, place: Path) -> None:
        """Keep a file that was fetched, unless the step that it was for has failed meanwhile."""
        with self._lock:
            if place in self._given:
                partial.chmod(0o644)
                place.parent.mkdir(exist_ok=True)
                partial.replace(place)
                self.fetched += 1

    def count(self, taken: int) -> None:
        """Note a file that was taken from the folder, by its size."""
        with self._lock:
            self.taken, self.taken_bytes = self.taken + 1, self.taken_bytes + taken


@contextlib.contextmanager
def package_cache(folder: Path) -> Iterator[PackageCache]:
    """A proxy on loopback that keeps packages in `folder`, until the end of the context."""
    cache = PackageCache(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    for partial in folder.glob("partial-*"):  # of a killed run, and not of another one
        with contextlib.suppress(FileNotFoundError):
            if partial.stat().st_mtime < time.time() - _LONG_S:
                partial.unlink()
    handler = type("Handler", (_Handler,), {"cache": cache})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        secret = secrets.token_hex(16)
        cache.address = f"http://127.0.0.1:{server.server_address[1]}"
        cache.url = cache.address.replace("//", f"//run:{secret}@")
        cache.key = "Basic " + base64.b64encode(f"run:{secret}".encode()).decode()
        thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
        thread.start()
        try:
            yield cache
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def pip_configuration(cache: PackageCache, folder: Path, processes: Processes) -> Iterator[str]:
    """A folder, made in `folder`, with a configuration that leads pip through the cache.

    Empty where this machine has no pip that could say what its index is.
    """
    index = wheels.own_index(processes)
    if not index:
        yield ""
        return
    parts = urlsplit(index)
    if parts.username:
        login = (parts.username, parts.password or "")
        cache.logins[parts.netloc.rpartition("@")[2]] = login
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="pip-") as made:
        config = Path(made) / Path(wheels.CONFIG).name
        config.write_text(f"[global]\nindex-url = {wheels.via(index, cache.url)}\n")
        yield made


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests for absolute URLs, as proxies do."""

    cache: PackageCache
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        via = wheels.target(self.path, self.cache.address)
        self._url = via or self.path
        # pip sends what its index's URL has, and perhaps past the proxy.
        keys = (self.headers.get("Proxy-Authorization"), self.headers.get("Authorization"))
        if self.cache.key not in (keys if via else keys[:1]):
            self._want_key()
            return
        if not via and not self.path.startswith("http://"):
            self.send_error(HTTPStatus.BAD_REQUEST, "this is a proxy for http:// addresses")
            return
        if via:
            del self.headers["Authorization"]
        place = self.cache.place(self._url, listed=self._is_via)
        own = ("Range", "Authorization", "Cookie")  # answers to these are for one client alone
        if place is None or self.command != "GET" or any(map(self.headers.get, own)):
            self._pass_on(None)
            return
        with self.cache.alone(place):
            self.cache.begin(place)
            if not self._give(place):
                self._pass_on(place)

    do_HEAD = do_POST = do_PUT = do_OPTIONS = do_GET  # noqa: N815 - as http.server calls them

    def _want_key(self) -> None:
        """Ask for the run's key: apt and pip send it at once, dnf when it is told how."""
        text = b"this proxy is for one run\n"
        self.send_response(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
        # https://www.rfc-editor.org/rfc/rfc9110#section-11.7.1
        self.send_header("Proxy-Authenticate", 'Basic realm="one run"')
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _give(self, place: Path) -> bool:
        """Answer with the kept file, if it is there."""
        try:
            file = place.open("rb")
        except OSError:
            return False
        with file:
            size = os.fstat(file.fileno()).st_size
            os.utime(place)  # `gc` leaves what was of use lately
            self.cache.count(size)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(size))
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, _CHUNK)
        return True

    def _pass_on(self, place: Path | None) -> None:
        """Answer as the server does; keep the file at `place` if all of it came."""
        import requests  # noqa: PLC0415 - commands that build nothing start without it

        given = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP_BY_HOP | {"host", "accept-encoding"}
        }
        given["Accept-Encoding"] = "identity"
        if self._is_via:
            given["Accept"] = "text/html, */*;q=0.1"  # pages whose links can be led through here
        try:
            session = requests.Session()
            # And not with what the user's .netrc says.
            session.auth = self.cache.logins.get(urlsplit(self._url).netloc) or _as_given
            answer = session.request(
                self.command,
                self._url,
                headers=given,
                data=self._body(),
                stream=True,
                allow_redirects=self._is_via,
                timeout=_TIMEOUT_S,
            )
        except requests.RequestException as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, f"{type(error).__name__} at the server")
            return
        with answer:
            self._copy(answer, place)

    @property
    def _is_via(self) -> bool:
        return self._url != self.path

    def _body(self) -> bytes | Iterator[bytes] | None:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._chunks()
        length = self.headers.get("Content-Length", "")
        return self.rfile.read(int(length)) if length.isdecimal() else None

    def _chunks(self) -> Iterator[bytes]:
        """The pieces of a body: https://www.rfc-editor.org/rfc/rfc9112#section-7.1"""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _copy(self, answer: requests.Response, place: Path | None) -> None:
        length = answer.headers.get("Content-Length", "")
        if self._is_via and _is_page(answer) and self.command == "GET":
            self._give_page(wheels.leading_through(answer.content, answer.url))
            return
        has_body = self.command != "HEAD" and answer.status_code not in {204, 304}
        self.send_response(answer.status_code, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        if has_body and not length:
            self.send_header("Connection", "close")  # the end of the body is that of the stream
            self.close_connection = True
        self.end_headers()
        if not has_body:
            return
        whole = place and answer.status_code == HTTPStatus.OK and length.isdecimal()
        whole = whole and not _is_page(answer)
        with self._kept(place if whole else None, int(length or 0)) as copy:
            for piece in answer.raw.stream(_CHUNK, decode_content=False):
                self.wfile.write(piece)
                if copy:
                    copy.write(piece)

    def _give_page(self, page: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    @contextlib.contextmanager
    def _kept(self, place: Path | None, size: int) -> Iterator[IO[bytes] | None]:
        """A file that becomes `place` if it gets `size` bytes long; without a place, none.

        A disk that is full, or a server that breaks off, costs the copy and nothing else.
        """
        if place is None:
            yield None
            return
        with tempfile.NamedTemporaryFile(
            dir=self.cache.folder, prefix="partial-", delete=False
        ) as copy:
            partial = Path(copy.name)
            try:
                yield cast("IO[bytes]", _Forgiving(copy))
                copy.flush()
                if partial.stat().st_size == size:
                    self.cache.keep(partial, place)
            finally:
                partial.unlink(missing_ok=True)

    def handle(self) -> None:
        # A client that goes away, or a server that breaks off, ends this connection alone.
        with contextlib.suppress(Exception):
            super().handle()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing: what goes wrong, the client says."""


def _is_page(answer: requests.Response) -> bool:
    return answer.headers.get("Content-Type", "").startswith("text/html")


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class _Forgiving:
    """A file that takes no more once a write failed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._failed = file, False

    def write(self, data: bytes) -> None:
        if not self._failed:
            try:
                self._file.write(data)
            except OSError:
                self._failed = True
