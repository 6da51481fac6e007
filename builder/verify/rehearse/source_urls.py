"""What specs download: the shape of each URL, what its server says, and what the store holds."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests

from builder.model import LockedSource
from builder.model.digests import sha256_of_file
from builder.system.web import innermost, server_of
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import SOURCES, Trial, failed, not_tried, passed

URL = re.compile(r"https?://[^\s'\"|]+")
_FETCHERS = frozenset({"wget", "curl"})

StoredAt = Callable[[LockedSource], Path]


class SourceTrials:
    """Tries the files that images download; each URL is asked for once."""

    def __init__(self, ask: Ask, stored_at: StoredAt) -> None:
        self._ask, self._stored_at = ask, stored_at

    def locked(self, sources: Iterable[LockedSource]) -> Iterator[Trial]:
        """A trial for each locked file: the store's bytes against the lock."""
        for source in sources:
            path = self._stored_at(source)
            if not path.exists():
                yield not_tried(SOURCES, source.url, "the store has not fetched it")
            elif sha256_of_file(path) == source.sha256:
                yield passed(SOURCES, source.url, "the store's file is the locked one")
            else:
                yield failed(SOURCES, source.url, "the store's file is not the locked one")

    def of(self, steps: Iterable[Step]) -> Iterator[Trial]:
        """A trial for each URL that a step fetches."""
        for step in steps:
            if step.program not in _FETCHERS:
                continue
            for url in URL.findall(" ".join(step.argv)):
                yield self._trial(url, step.line)

    def _trial(self, url: str, line: int) -> Trial:
        if problem := _shape(url):
            return failed(SOURCES, url, problem, line)
        answer = self._ask(url)
        if answer.has is None:
            return not_tried(SOURCES, url, answer.text, line)
        if answer.has:
            return passed(SOURCES, url, "its server has it", line)
        return failed(SOURCES, url, answer.text, line)


def _shape(url: str) -> str:
    """What is wrong with a URL by itself; empty if nothing is."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return "it is not fetched by https"
    if not parts.hostname or "." not in parts.hostname:
        return "it names no server"
    if not posixpath.basename(parts.path):
        return "it names a folder, and no file"
    if re.search(r"\{|\}|\$|/None/|//", parts.path):
        return "a part of it was not filled in"
    return ""


_TIMEOUT_S = (5.0, 20.0)
_GONE = frozenset({404, 410})


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a server said of a URL: it `has` it, or not, or nothing is known and `text` says why."""

    has: bool | None
    text: str = ""


Ask = Callable[[str], Answer]


class Servers:
    """Asks servers for the heads of files. One that did not answer is not asked again."""

    def __init__(self, session: requests.Session | None = None) -> None:
        self._session = session or requests.Session()
        self._silent: dict[str, Answer] = {}
        self.ask = functools.cache(self._ask)

    def _ask(self, url: str) -> Answer:
        server = server_of(url)
        if known := self._silent.get(server):
            return known
        try:
            answer = self._session.head(url, timeout=_TIMEOUT_S, allow_redirects=True)
        except requests.RequestException as error:
            text = f"{server} cannot be reached: {innermost(error)}"
            return self._silent.setdefault(server, Answer(has=None, text=text))
        if answer.status_code in _GONE:
            return Answer(has=False, text=f"{server} has no such file ({answer.status_code})")
        if answer.ok:
            return Answer(has=True)
        return Answer(has=None, text=f"{server} answers with status {answer.status_code}")
