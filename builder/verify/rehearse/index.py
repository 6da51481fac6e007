"""Python package indexes: a remote one's files, and one of our own on loopback.

https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from builder.model.exact_json import part
from builder.system.web import server_of
from builder.verify.rehearse.servers import NotOnServer, ReadUrl, Unavailable, read_url

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
    size: int


# A page of an index as JSON, by project; None where the index has no such project.
ReadPage = Callable[[str], Mapping[str, object] | None]


class Index:
    """An index. Pages and files are read once: an answer holds for one rehearsal."""

    def __init__(self, read_page: ReadPage, read_file: ReadUrl) -> None:
        self.files = functools.cache(lambda project: _files(read_page(project)))
        self.read = functools.cache(read_file)

    def size_of(self, url: str) -> int:
        """Return the size of the file at a URL in bytes; 0 if the index does not say."""
        project = canonicalize_name(url.rpartition("/")[2].partition("-")[0])
        return next((file.size for file in self.files(project) if file.url == url), 0)


def remote_index(url: str) -> Index:
    """Return the index at a URL (`https://index.example/simple`)."""
    session = requests.Session()

    def read_page(project: str) -> Mapping[str, object] | None:
        try:
            data = read_url(f"{url.rstrip('/')}/{project}/", accept=_JSON, session=session)
            page: Mapping[str, object] = json.loads(data)
        except NotOnServer:
            return None
        except ValueError as error:
            raise Unavailable(f"{server_of(url)} gives no JSON page of {project}") from error
        return page

    return Index(read_page, functools.partial(read_url, session=session))


def _files(page: Mapping[str, object] | None) -> tuple[IndexFile, ...]:
    return tuple(file for row in part(page, "files") or () if (file := _file(row)))


def _file(row: Mapping[str, object]) -> IndexFile | None:
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
        url=str(row["url"]),
        version=version,
        tags=tags,
        requires_python=str(row.get("requires-python") or ""),
        is_yanked=bool(row.get("yanked")),
        size=int(str(row.get("size") or 0)),
    )


# ---- An index on loopback ----

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def served(answer: Callable[[str], bytes | None]) -> Iterator[str]:
    """Serve what `answer` has for a path, and status 404 for None; the URL is that of the server.

    Pages and files have the same type: pip looks at that of pages alone.
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
