"""Answers of servers: files that are read, files that are asked for, and trials of downloads.

Mirrors and indexes belong to others: the size that a server names is not believed.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests

from builder.model import LockedSource
from builder.model.digests import sha256_of_file
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


class OutOfReach(Exception):
    """The reason why a server or a file of it cannot be read, in one line."""


class NotOnServer(OutOfReach):
    """The server answers, and has no such file."""


ReadUrl = Callable[[str], bytes]  # raises `OutOfReach`


def read_url(url: str, *, accept: str = "*/*", session: requests.Session | None = None) -> bytes:
    """Return the bytes at an `https:`, `http:` or `file:` URL. Raises `OutOfReach`."""
    name = url.rstrip("/").rpartition("/")[2]
    try:
        if url.startswith("file:"):
            return _read_file(Path(unquote(urlsplit(url).path)))
        get = (session or requests).get
        with get(url, headers={"Accept": accept}, timeout=_READ_TIMEOUT_S, stream=True) as response:
            if response.status_code in _GONE:
                raise NotOnServer(f"it has no {name} ({response.status_code})")
            response.raise_for_status()
            data = bytearray()
            for chunk in response.iter_content(1 << 20):
                data += chunk
                _check_size(len(data), name)
            return bytes(data)
    except requests.ConnectionError as error:
        raise OutOfReach(f"{server_of(url)} cannot be reached: {innermost(error)}") from error
    except (requests.RequestException, OSError) as error:
        raise OutOfReach(f"{name} cannot be read: {innermost(error)}") from error


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise NotOnServer(f"it has no {path.name}")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    _check_size(len(data), path.name)
    return data


def _check_size(size: int, name: str) -> None:
    if size > LARGEST:
        raise OutOfReach(f"{name} is larger than {LARGEST >> 20} MiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A server's answer about a URL: it `has` it or not; None if unknown, `text` is the reason."""

    has: bool | None
    text: str = ""


Ask = Callable[[str], Answer]


class Servers:
    """Asks servers for the heads of files. One that did not answer is not asked again."""

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
    """Tries the files that images download; each URL is asked for once."""

    def __init__(self, ask: Ask, stored_at: Callable[[LockedSource], Path]) -> None:
        self._ask, self._stored_at = ask, stored_at

    def locked(self, sources: Iterable[LockedSource]) -> Iterator[Trial]:
        """Compare the stored file of each locked source with the lock."""
        for source in sources:
            path = self._stored_at(source)
            if not path.exists():
                yield not_tried(SOURCES, source.url, "the store has not fetched it")
            elif sha256_of_file(path) == source.sha256:
                yield passed(SOURCES, source.url, "the store's file is the locked one")
            else:
                yield failed(SOURCES, source.url, "the store's file is not the locked one")

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
        return "it names a folder, and no file"
    if re.search(r"\{|\}|\$|/None/|//", parts.path):
        return "a part of it was not filled in"
    return ""
