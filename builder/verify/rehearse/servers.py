"""Requests to servers: files that are read, trials of downloads, package indexes.

Servers are not trusted: the size of a file is limited, whatever size they announce.
"""

from __future__ import annotations

import contextlib
import functools
import json
import posixpath
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from builder.model import LockedSource
from builder.model.digests import sha256_of_file
from builder.model.exact_json import part
from builder.system.web import innermost, server_of
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import SOURCES, Trial, failed, not_tried, passed

# Ubuntu's universe has 15 MB packed, EPEL's primary.xml 4 MB, a channel of conda some 250 MB.
LARGEST = 512 << 20  # bytes
URL = re.compile(r"https?://[^\s'\"|]+")
_ASK_TIMEOUT_S = (5.0, 20.0)
_READ_TIMEOUT_S = 120.0
_GONE = frozenset({404, 410})
_FETCHERS = frozenset({"wget", "curl"})


class Unavailable(Exception):
    """Raised with a one-line reason if a server, or a file on it, cannot be read."""


class NotOnServer(Unavailable):
    """Raised if the server answers, but does not have the file."""


ReadUrl = Callable[[str], bytes]  # raises `Unavailable`


def read_url(
    url: str,
    *,
    accept: str = "*/*",
    session: requests.Session | None = None,
    limit: int | None = None,
) -> bytes:
    """Return the bytes at an `https:`, `http:` or `file:` URL.

    Raises `Unavailable`, also for more bytes than `limit` (by default `LARGEST`).
    """
    name = url.rstrip("/").rpartition("/")[2]
    try:
        if url.startswith("file:"):
            return _read_file(Path(unquote(urlsplit(url).path)))
        get = (session or requests).get
        with get(url, headers={"Accept": accept}, timeout=_READ_TIMEOUT_S, stream=True) as response:
            if response.status_code in _GONE:
                raise NotOnServer(f"it has no {name} ({response.status_code})")
            response.raise_for_status()
            _check_size(int(response.headers.get("Content-Length", 0)), name, limit)
            data = bytearray()
            for chunk in response.iter_content(1 << 20):
                data += chunk
                _check_size(len(data), name, limit)
            return bytes(data)
    except requests.ConnectionError as error:
        raise Unavailable(f"{server_of(url)} cannot be reached: {innermost(error)}") from error
    except (requests.RequestException, OSError, ValueError) as error:
        raise Unavailable(f"{name} cannot be read: {innermost(error)}") from error


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise NotOnServer(f"it has no {path.name}")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    _check_size(len(data), path.name)
    return data


def _check_size(size: int, name: str, limit: int | None = None) -> None:
    most = limit or LARGEST
    if size > most:
        raise Unavailable(f"{name} is larger than {most >> 20} MiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A server's answer about a URL: `has` is None if unknown; `text` is the reason if not True."""

    has: bool | None
    text: str = ""


Ask = Callable[[str], Answer]


class Servers:
    """Sends HEAD requests to servers. A server that did not answer is not asked again."""

    def __init__(self) -> None:
        self._session = requests.Session()
        self._silent: dict[str, Answer] = {}
        self.ask = functools.cache(self._ask)

    def _ask(self, url: str) -> Answer:
        server = server_of(url)
        if server in self._silent:
            return self._silent[server]
        try:
            response = self._session.head(url, timeout=_ASK_TIMEOUT_S, allow_redirects=True)
        except requests.RequestException as error:
            text = f"{server} cannot be reached: {innermost(error)}"
            return self._silent.setdefault(server, Answer(has=None, text=text))
        if response.status_code in _GONE:
            return Answer(has=False, text=f"{server} has no such file ({response.status_code})")
        if response.ok:
            return Answer(has=True)
        return Answer(has=None, text=f"{server} answers with status {response.status_code}")


class SourceTrials:
    """Tries the files that images download; each URL is requested once."""

    def __init__(self, ask: Ask, stored_at: Callable[[LockedSource], Path]) -> None:
        self._ask, self._stored_at = ask, stored_at

    def locked(self, sources: Iterable[LockedSource]) -> Iterator[Trial]:
        """Compare the stored file of each locked source with the lock."""
        for source in sources:
            path = self._stored_at(source)
            if not path.exists():
                yield not_tried(SOURCES, source.url, "it is not in the store")
            elif sha256_of_file(path) == source.sha256:
                yield passed(SOURCES, source.url, "the file in the store matches the lock")
            else:
                yield failed(SOURCES, source.url, "the file in the store differs from the lock")

    def of(self, steps: Iterable[Step]) -> Iterator[Trial]:
        """Try each URL that a step fetches."""
        for step in steps:
            if step.program in _FETCHERS:
                for url in URL.findall(" ".join(step.argv)):
                    yield self._trial(url, step.line)

    def _trial(self, url: str, line: int) -> Trial:
        if problem := _wrong_shape(url):
            return failed(SOURCES, url, problem, line)
        answer = self._ask(url)
        if answer.has is None:
            return not_tried(SOURCES, url, answer.text, line)
        if answer.has:
            return passed(SOURCES, url, "its server has it", line)
        return failed(SOURCES, url, answer.text, line)


def _wrong_shape(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https":
        return "it is not fetched by https"
    if "." not in (parts.hostname or ""):
        return "it names no server"
    if not posixpath.basename(parts.path):
        return "it names a folder, not a file"
    if re.search(r"\{|\}|\$|/None/|//", parts.path):
        return "a part of it has no value"
    return ""


# ---- Python package indexes ----

# https://packaging.python.org/en/latest/specifications/simple-repository-api/
_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """One wheel or source distribution. `tags` is empty for a source distribution."""

    name: str
    url: str
    version: Version
    tags: frozenset[Tag]
    requires_python: str
    is_yanked: bool


class Index:
    """The index at a URL (`https://index.example/simple`).

    Pages and files are read once per rehearsal.
    """

    def __init__(self, url: str, read: Callable[..., bytes] | None = None) -> None:
        self._url = url.rstrip("/")
        self._read = read or functools.partial(read_url, session=requests.Session())
        self.files = functools.cache(self._files)
        self.read = functools.cache(self._read)

    def _files(self, project: str) -> tuple[IndexFile, ...]:
        url = f"{self._url}/{project}/"
        try:
            page = json.loads(self._read(url, accept=_JSON))
        except NotOnServer:
            return ()
        except ValueError as error:
            server = server_of(self._url)
            raise Unavailable(f"{server} has no JSON page of {project}") from error
        return tuple(file for row in part(page, "files") or () if (file := _file(row, url)))


def _file(row: Mapping[str, object], page_url: str) -> IndexFile | None:
    """Return the file of a row; None for eggs, installers and an invalid name."""
    name, tags = str(row["filename"]), frozenset[Tag]()
    try:
        if name.endswith(".whl"):
            _, version, _, tags = parse_wheel_filename(name)
        else:
            _, version = parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return IndexFile(
        name=name,
        url=urljoin(page_url, str(row["url"])),
        version=version,
        tags=tags,
        requires_python=str(row.get("requires-python") or ""),
        is_yanked=bool(row.get("yanked")),
    )


LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def served(answer: Callable[[str], bytes | None]) -> Iterator[str]:
    """Serve the result of `answer` for a path, or status 404 for None; yield the server's URL.

    Pages and files have the same content type, since pip checks only that of pages.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = answer(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", _JSON)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
