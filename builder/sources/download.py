"""One file over HTTP: streamed to disk, resumed where it broke off, retried where that can help.

What comes back is never trusted: whoever calls compares the checksum.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
import urllib3.exceptions

from builder.model.errors import Interrupted
from builder.registry.web import TRANSIENT, cause_of, innermost, retry_after, server_of

ATTEMPTS = 4
TIMEOUT_S = (10.0, 60.0)  # to connect, and between two pieces
_CHUNK = 1 << 17
_REDIRECTS = 10
_LONGEST_WAIT_S = 30.0
# As servers have the file: what a server compresses on the way has another checksum.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "build-images"}

OnBytes = Callable[[int], object]


class NotFetched(Exception):
    """Why a URL gave no file, in one line."""


class _Again(Exception):
    """What went wrong may pass: `wait_s` is the least time that the server asks to be left.

    `validator` names the state of the file that a part of came, for `If-Range`.
    """

    def __init__(self, reason: str, *, wait_s: float = 0.0, validator: str = "") -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.validator = validator


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What was written: `sha256` in hexadecimal, `size` in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """What one transfer is to bring: see `Downloader.fetch`."""

    url: str
    target: Path
    limit: int | None
    seen: Callable[[int], object]
    validator: str = ""

    def headers(self, there: int) -> dict[str, str]:
        wanted = {"Range": f"bytes={there}-"} if there else {}
        if there and self.validator:
            wanted["If-Range"] = self.validator  # else the whole file, should it have changed
        return {**_HEADERS, **wanted}


class Downloader:
    """Fetches URLs, and remembers which servers cannot be reached: they are tried once more only.

    `wait` sleeps for a number of seconds. One value serves all threads of a run.
    """

    def __init__(self, *, wait: Callable[[float], object] = time.sleep) -> None:
        self._wait = wait
        self._unreachable: set[str] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End what is under way in other threads: each raises `Interrupted` at its next piece."""
        self._stopping.set()

    def fetch(
        self, url: str, target: Path, *, limit: int | None = None, on_bytes: OnBytes = lambda _: 0
    ) -> Fetched:
        """Write the file of a URL to `target`, going on after what is there already.

        `limit` is the most bytes that it may have. Raises `NotFetched`; what came stays in
        `target`, so that the next call goes on from there.
        """

        def seen(size: int) -> None:
            if self._stopping.is_set():
                raise Interrupted("interrupted")
            on_bytes(size)

        if url.startswith("file://"):
            return _copied(url, target, seen)
        part = _Part(url=url, target=target, limit=limit, seen=seen)
        server = urlsplit(url).netloc
        attempts = 1 if server in self._unreachable else ATTEMPTS
        for attempt in range(attempts):
            try:
                with requests.Session() as session:
                    _transfer(session, part)
                return digest_of(target)
            except _Again as error:
                if attempt + 1 == attempts:
                    self._unreachable.add(server)
                    raise NotFetched(str(error)) from error
                part = replace(part, validator=error.validator or part.validator)
                self._wait(min(max(0.5 * 2**attempt, error.wait_s), _LONGEST_WAIT_S))
        raise AssertionError  # the last attempt returns or raises


def digest_of(path: Path) -> Fetched:
    """The SHA-256 and the size of a file."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
            size += len(piece)
    return Fetched(sha256=found.hexdigest(), size=size)


def _copied(url: str, target: Path, seen: OnBytes) -> Fetched:
    """From a folder of this machine, as a site's mirror may be one."""
    try:
        shutil.copyfile(unquote(urlsplit(url).path), target)
    except OSError as error:
        raise NotFetched(f"{error.strerror}") from error
    found = digest_of(target)
    seen(found.size)
    return found


def _transfer(session: requests.Session, part: _Part) -> None:
    url, target = part.url, part.target
    there = target.stat().st_size if target.exists() else 0
    with _answer(session, url, part.headers(there)) as answer:
        if there and answer.status_code == requests.codes.requested_range_not_satisfiable:
            if _complete_length(answer) == there:
                return  # all of it had come, and only the end of the connection was missing
            target.unlink()
            raise _Again(f"{server_of(url)} has fewer bytes than were fetched before")
        _check_status(answer, url)
        goes_on = there and answer.status_code == requests.codes.partial_content
        if goes_on and not answer.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            target.unlink()
            raise _Again(f"{server_of(url)} sent another part than the one asked for")
        _write(answer, part, there if goes_on else 0)


def _complete_length(answer: requests.Response) -> int:
    """The size of the whole file, from `Content-Range: bytes */SIZE`; -1 if it is not said."""
    length = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(length) if length.isdecimal() else -1


def _write(answer: requests.Response, part: _Part, there: int) -> None:
    size = there
    with part.target.open("ab" if there else "wb") as file:
        part.seen(size)
        for piece in _pieces(answer):
            size += len(piece)
            if part.limit is not None and size > part.limit:
                raise NotFetched(f"{server_of(part.url)} sends more than {part.limit} bytes")
            file.write(piece)
            part.seen(size)


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    try:
        yield from answer.raw.stream(_CHUNK, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _Again(
            f"{server_of(answer.url)} broke off: {innermost(error)}", validator=_validator(answer)
        ) from error


def _validator(answer: requests.Response) -> str:
    """What `If-Range` may hold: a strong entity tag (RFC 9110, 13.1.5)."""
    tag: str = answer.headers.get("ETag", "")
    return "" if tag.startswith("W/") else tag


def _answer(session: requests.Session, url: str, headers: Mapping[str, str]) -> requests.Response:
    """The answer at the end of all redirects; never from https to a scheme without encryption."""
    for _ in range(_REDIRECTS):
        answer = _asked(session, url, headers)
        if not answer.is_redirect:
            return answer
        answer.close()
        target = urljoin(url, answer.headers["location"])
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
            raise NotFetched(f"{server_of(url)} redirects from https to {urlsplit(target).scheme}")
        url = target
    raise NotFetched(f"{server_of(url)} redirects more than {_REDIRECTS} times")


def _asked(session: requests.Session, url: str, headers: Mapping[str, str]) -> requests.Response:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise NotFetched(f"{urlsplit(url).scheme}: is not fetched; name a mirror with https")
    try:
        return session.get(
            url, headers=dict(headers), stream=True, allow_redirects=False, timeout=TIMEOUT_S
        )
    except requests.exceptions.SSLError as error:
        raise NotFetched(f"{server_of(url)}: TLS fails: {innermost(error)}") from error
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        reason = f"{server_of(url)} cannot be reached: {innermost(error)}"
        cause = cause_of(error)
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            raise NotFetched(reason) from error  # that name does not come to exist by waiting
        raise _Again(reason) from error
    except requests.exceptions.RequestException as error:
        raise NotFetched(f"{server_of(url)}: {innermost(error)}") from error


def _check_status(answer: requests.Response, url: str) -> None:
    if answer.status_code in {requests.codes.ok, requests.codes.partial_content}:
        return
    reason = f"{server_of(url)} answers {answer.status_code} {answer.reason or ''}".rstrip()
    if answer.status_code in TRANSIENT:
        raise _Again(reason, wait_s=retry_after(answer.headers))
    raise NotFetched(reason)
