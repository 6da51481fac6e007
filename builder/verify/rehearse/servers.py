"""Which servers answer this machine: each is asked once in a rehearsal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import requests

from builder.system.web import innermost, server_of

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
