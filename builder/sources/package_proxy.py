"""A caching HTTP proxy for packages, which runs for the duration of one run.

Build steps of all images and architectures, and mmdebstrap, use it through `http_proxy`. It caches
files that never change under one name (`.deb`, `.rpm`, `.whl`) and forwards everything else:
indices and signatures always come from the mirror, so package managers verify each file as usual.
Files served to a failed step are fetched again: the package manager may have refused one.

HTTPS does not go through the proxy, except for pip: build steps find a pip configuration in
`/.packages` with an index at the proxy's own address,
`http://127.0.0.1:PORT/via/https/HOST/simple`. The proxy forwards the pages of this machine's pip
index, with links changed to lead through the proxy. pip compares each file with the checksum in the
page as usual (https://peps.python.org/pep-0503/).

The files of each build are noted (`builder.sources.journals`). With `offline`, a known build gets
the same files again; if no server answers, any other build gets the newest ones.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import requests

from builder.model.digests import sha256_of_file
from builder.model.package_indices import MOST_BYTES, is_release, state_of
from builder.sources.journals import ANSWERS, ServedFile, is_build_id, key_of, user_and_key
from builder.sources.package_cache import PackageCache
from builder.sources.suites import Suites
from builder.sources.upstream import Body, origin_of, page_of, request
from builder.system.files import note_use, temporary_folder
from builder.system.home import PIP_CONFIG
from builder.system.host_facts import own_index
from builder.system.process import Processes
from builder.system.web import server_of, without_users

_LONG_S = 86_400.0
_CHUNK = 1 << 16
# https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
}


@contextlib.contextmanager
def package_cache(
    folder: Path, *, offline: bool = False, suites: Suites | None = None, shared: Path | None = None
) -> Iterator[PackageCache]:
    """Run a proxy on loopback that caches packages in `folder`, until the end of the context.

    Files in a `shared` folder are used and not fetched.
    """
    cache = PackageCache(
        folder=folder,
        shared=shared,
        secret=secrets.token_hex(16),
        offline=offline,
        suites=suites or Suites(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for partial in folder.glob("partial-*"):  # of a killed run
        with contextlib.suppress(FileNotFoundError):
            if partial.stat().st_mtime < time.time() - _LONG_S:
                partial.unlink()
    handler = type("Handler", (_Handler,), {"cache": cache})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        cache.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
        thread.start()
        try:
            yield cache
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def pip_configuration(cache: PackageCache, folder: Path, processes: Processes) -> Iterator[str]:
    """Yield a folder below `folder` with a pip configuration for the proxy.

    Yields an empty text if this machine has no pip that knows its index.
    """
    index = (cache.offline and cache.journals.index) or own_index(processes)
    if not index:
        yield ""
        return
    parts = urlsplit(index)
    if parts.username:
        login = (parts.username, parts.password or "")
        cache.logins[origin_of(index)] = login
    cache.journals.note_index(without_users(index))
    with temporary_folder(folder, "pip-") as temporary:
        config = temporary / Path(PIP_CONFIG).name
        config.write_text(f"[global]\nindex-url = {via(index, cache.url)}\n")
        yield str(temporary)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for absolute URLs, as HTTP proxies do."""

    cache: PackageCache
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms after its headers

    def do_GET(self) -> None:
        via_url = target(self.path, self.cache.address)
        self._url = via_url or self.path
        # pip sends the login in its index's URL, and may bypass the proxy.
        names = ("Proxy-Authorization", "Authorization")[: 2 if via_url else 1]
        keys = [user_and_key(self.headers.get(name, "")) for name in names]
        secret = self.cache.secret
        known = [user for user, key in keys if hmac.compare_digest(key, key_of(secret, user))]
        if not known:
            self._request_key()
            return
        if not via_url and not self.path.startswith("http://"):
            self.send_error(HTTPStatus.BAD_REQUEST, "this proxy supports only http:// URLs")
            return
        if "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)  # this ends the connection
            return
        if via_url:
            del self.headers["Authorization"]
        self._user = known[-1]
        if self.command == "GET" and (file := self.cache.noted(self._user, self._url)):
            self._serve(self.cache.folder / file.file, file.kind)
            return
        place = self.cache.place(self._url, listed=self._is_via)
        if place is None or self.command != "GET" or self._is_own:
            self._forward(None)
            return
        with self.cache.alone(place):
            self.cache.begin(place)
            if not (self.cache.is_good(place) and self._serve(place, note=True)):
                self._forward(place)

    do_HEAD = do_POST = do_PUT = do_OPTIONS = do_GET  # noqa: N815 - as http.server calls them

    def _request_key(self) -> None:
        """Request the run's key: apt and pip send it unasked, dnf after this response."""
        self.send_response(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
        # https://www.rfc-editor.org/rfc/rfc9110#section-11.7.1
        self.send_header("Proxy-Authenticate", 'Basic realm="one run"')
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def _note(self, place: Path, kind: str = "") -> None:
        """Note the file that answered the request."""
        file = ServedFile(url=self._url, file=str(place.relative_to(self.cache.folder)), kind=kind)
        self.cache.journals.note(self._user, [file])

    def _serve(self, place: Path, kind: str = "", *, note: bool = False) -> bool:
        """Answer with the cached file, if it exists; note it first with `note`."""
        path = self.cache.file_at(place)
        try:
            file = path.open("rb")
        except OSError:
            return False
        with file:
            if is_release(self._url):
                self._note_index(self._url, path.read_bytes())
            size = os.fstat(file.fileno()).st_size
            note_use(path)
            self.cache.count(size)
            if note:
                self._note(place)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(size))
            self.send_header("Content-Type", kind or "application/octet-stream")
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, _CHUNK)
        return True

    def _forward(self, place: Path | None) -> None:
        """Forward the request and the server's answer; cache a complete file at `place`."""
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP_BY_HOP | {"host", "accept-encoding"}
        }
        headers["Accept-Encoding"] = "identity"
        if self._is_via:
            headers["Accept"] = "text/html, */*;q=0.1"  # the proxy can rewrite links only in HTML
        address = self._url if self.cache.offline else self.cache.suites.address(self._url)
        try:
            # Only an index gets a login: build steps do not know it. Others get the step's headers.
            response = request(
                self.command,
                address,
                headers,
                self._body(),
                logins=self.cache.logins if self._is_via else {},
                follow=self._is_via,
            )
        except requests.RequestException as error:
            if self.command == "GET" and (last := self.cache.newest(self._url)):
                self._serve(self.cache.folder / last.file, last.kind)
                return
            # Offline, 404 is final: package managers go on without optional files.
            status = HTTPStatus.NOT_FOUND if self.cache.offline else HTTPStatus.BAD_GATEWAY
            self.send_error(status, f"{type(error).__name__} at the server")
            return
        with response:
            self._copy(response, place, address)

    def _note_index(self, address: str, content: bytes) -> None:
        """Note the state of a suite if `content` is its Release file."""
        behind = self.cache.suites.behind_days(self._url)
        if state := state_of(self._url, address, content, behind):
            self.cache.note_index(self._user, state)

    @property
    def _is_via(self) -> bool:
        return self._url != self.path

    def _body(self) -> Body | None:
        """Return the request's body, which is read while it is forwarded."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return None
        self.close_connection = True
        return Body(self.rfile, int(length))

    def _copy(self, response: requests.Response, place: Path | None, address: str) -> None:
        is_ok = response.status_code == HTTPStatus.OK
        if is_ok and self._is_via and _is_page(response) and self.command == "GET":
            self._copy_page(response)
            return
        length = response.headers.get("Content-Length", "")
        has_body = self.command != "HEAD" and response.status_code not in {204, 304}
        self.send_response(response.status_code, response.reason)
        for name, value in response.headers.items():
            if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        if has_body and not length:
            self.send_header("Connection", "close")  # the body ends with the connection
            self.close_connection = True
        if not has_body:
            self.end_headers()
            return
        self.flush_headers()
        has_size = is_ok and length.isdecimal()
        kind = response.headers.get("Content-Type", "")
        place = None if _is_page(response) else place
        release = bytearray() if is_ok and is_release(self._url) else None
        # The answer is noted before the last chunk is sent: a client that has all of it may end.
        last = b"\r\n"  # the end of the headers; an empty body has no other chunk
        try:
            with self._cached_copy(place, int(length) if has_size else -1, kind) as copy:
                for chunk in response.raw.stream(_CHUNK, decode_content=False):
                    self.wfile.write(last)
                    last = chunk
                    _copy_chunk(chunk, copy)
                    if release is not None and len(release) < MOST_BYTES:
                        release += chunk
            if release is not None:
                self._note_index(address, bytes(release))
        finally:
            self.wfile.write(last)

    def _copy_page(self, response: requests.Response) -> None:
        """Answer with an index page whose links lead through this proxy."""
        theirs = page_of(response)
        if theirs is None:
            self.send_error(HTTPStatus.BAD_GATEWAY, "the server's page is too long")
            return
        page = rewrite_links(theirs, response.url)
        with self._cached_copy(None, len(page), "text/html") as copy:
            _copy_chunk(page, copy)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    @contextlib.contextmanager
    def _cached_copy(self, place: Path | None, size: int, kind: str) -> Iterator[IO[bytes] | None]:
        """Yield a file that is moved to `place` and noted once it has `size` bytes.

        Without a place it is cached by SHA-256 if the request belongs to a build. Without a size,
        nothing is cached. If the disk is full or the server breaks off, only the copy is lost.
        """
        if size < 0 or not (place or self._is_noted):
            yield None
            return
        with tempfile.NamedTemporaryFile(
            dir=self.cache.folder, prefix="partial-", delete=False, buffering=0
        ) as copy:
            partial = Path(copy.name)
            try:
                yield copy.file
                if partial.stat().st_size == size:
                    target = place or self.cache.folder / ANSWERS / sha256_of_file(partial)
                    self.cache.keep(partial, target)
                    self._note(target, kind)
            finally:
                partial.unlink(missing_ok=True)

    @property
    def _is_noted(self) -> bool:
        """Return whether the request belongs to a build, and every client gets the same answer."""
        return self.command == "GET" and is_build_id(self._user) and not self._is_own

    @property
    def _is_own(self) -> bool:
        """Return whether the answer is specific to one client."""
        return any(map(self.headers.get, ("Range", "Authorization", "Cookie")))

    def handle(self) -> None:
        # If a client or a server breaks off, only this connection ends.
        with contextlib.suppress(Exception):
            super().handle()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing: the clients report errors."""


def _is_page(response: requests.Response) -> bool:
    return response.headers.get("Content-Type", "").startswith("text/html")


def _copy_chunk(chunk: bytes, copy: IO[bytes] | None) -> None:
    """Write a chunk to a copy; if the disk is full, the copy is too short and is dropped."""
    if copy:
        with contextlib.suppress(OSError):
            copy.write(chunk)


# ---- pip ----

_VIA = "/via/"
_TARGET = re.compile(rf"{_VIA}(?P<scheme>https?)/(?P<host>[^/]+)(?P<path>/.*)")
# No < inside a tag, so a page of unclosed tags takes linear time; PEP 503 writes &lt; there.
_ABSOLUTE = re.compile(rb"""(?P<start><a\s[^<>]*?href\s*=\s*["'])(?P<scheme>https?)://""", re.I)
_ROOTED = re.compile(rb"""(?P<start><a\s[^<>]*?href\s*=\s*["'])/(?!/|via/)""", re.I)


def target(url: str, address: str) -> str:
    """Return the real URL for a URL or path on the cache's own address; empty for others."""
    match = _TARGET.fullmatch(url.removeprefix(address))
    return f"{match['scheme']}://{unquote(match['host'])}{match['path']}" if match else ""


def via(url: str, address: str) -> str:
    """Return the URL on the cache's address for an external URL, whose login is removed."""
    parts = urlsplit(url)
    return f"{address}{_VIA}{parts.scheme}/{server_of(url)}{parts.path}"


def rewrite_links(page: bytes, url: str) -> bytes:
    """Rewrite the links of an index page to lead through the cache; `url` is the page's own."""
    parts = urlsplit(url)
    here = f"{_VIA}{parts.scheme}/{parts.netloc}/".encode()
    page = _ABSOLUTE.sub(rb"\g<start>" + _VIA.encode() + rb"\g<scheme>/", page)
    return _ROOTED.sub(rb"\g<start>" + here.replace(b"\\", b"\\\\"), page)
