"""Downloads over HTTP: streamed to disk, resumed after interruptions, retried if that can help.

The bytes are not trusted: callers must compare the checksum.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
import urllib3.exceptions

from builder.model.digests import sha256_of_file
from builder.model.errors import Interrupted
from builder.system.web import TRANSIENT, cause_of, innermost, retry_after, server_of

ATTEMPTS = 4
TIMEOUT_S = (10.0, 60.0)  # for connecting, and for a pause between two chunks
_CHUNK = 1 << 17
_REDIRECTS = 10
_LONGEST_WAIT_S = 30.0
# No compression: a file that the server compresses has a different checksum.
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "build-images"}

OnBytes = Callable[[int], object]


class NotFetched(Exception):
    """A URL returned no file; the message is the reason, in one line."""


class _Retry(Exception):
    """A temporary failure; `wait_s` is the shortest pause that the server asks for."""

    def __init__(self, reason: str, *, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A written file: `sha256` in hexadecimal, `size` in bytes."""

    sha256: str
    size: int


@dataclass(kw_only=True)
class _Transfer:
    """A transfer of a URL's file to `target`; `validator` is the ETag of the part in `target`."""

    url: str
    target: Path
    limit: int | None
    seen: OnBytes
    validator: str = ""
    accept: str = ""

    def attempt(self, session: requests.Session) -> None:
        """Fetch the rest of the file; raises `_Retry` or `NotFetched`."""
        server = server_of(self.url)
        offset = self.target.stat().st_size if self.target.exists() else 0
        with _response(session, self.url, self._headers(offset)) as response:
            if offset and response.status_code == requests.codes.requested_range_not_satisfiable:
                if _complete_length(response) == offset:
                    return  # the file is complete; only the end of the transfer was missing
                self.target.unlink()
                raise _Retry(f"the file on {server} is shorter than the part already fetched")
            _check_status(response, self.url)
            goes_on = offset and response.status_code == requests.codes.partial_content
            part = response.headers.get("Content-Range", "")
            if goes_on and not part.startswith(f"bytes {offset}-"):
                self.target.unlink()
                raise _Retry(f"{server} sent a range that was not requested")
            self._write(response, offset if goes_on else 0)

    def _headers(self, offset: int) -> dict[str, str]:
        headers = dict(_HEADERS)
        if self.accept:
            headers["Accept"] = self.accept
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if self.validator:
                headers["If-Range"] = self.validator  # if the file has changed, all of it is sent
        return headers

    def _write(self, response: requests.Response, size: int) -> None:
        with self.target.open("ab" if size else "wb") as file:
            self.seen(size)
            for chunk in self._chunks(response):
                size += len(chunk)
                if self.limit is not None and size > self.limit:
                    server = server_of(self.url)
                    raise NotFetched(f"{server} sends more than {self.limit} bytes")
                file.write(chunk)
                self.seen(size)

    def _chunks(self, response: requests.Response) -> Iterator[bytes]:
        try:
            yield from response.raw.stream(_CHUNK, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            tag: str = response.headers.get("ETag", "")
            if tag and not tag.startswith("W/"):  # If-Range needs a strong tag: RFC 9110, 13.1.5
                self.validator = tag
            reason = f"transfer from {server_of(response.url)} failed: {innermost(error)}"
            raise _Retry(reason) from error


class Downloader:
    """Fetches URLs; retries an unreachable server only once.

    `wait` sleeps for a number of seconds. All threads of a run share one instance.
    """

    def __init__(self, *, wait: Callable[[float], object] = time.sleep) -> None:
        self._wait = wait
        self._unreachable: set[str] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the transfers of other threads: each raises `Interrupted` at its next chunk."""
        self._stopping.set()

    def fetch(
        self,
        url: str,
        target: Path,
        *,
        limit: int | None = None,
        accept: str = "",
        on_bytes: OnBytes = lambda _: 0,
    ) -> Fetched:
        """Write the file of a URL to `target`, resuming after the bytes in it.

        `limit` is the largest accepted size in bytes, `accept` the media type to ask for. Raises
        `NotFetched`; the fetched bytes stay in `target`, so that the next call resumes there.
        """

        def seen(size: int) -> None:
            if self._stopping.is_set():
                raise Interrupted("interrupted")
            on_bytes(size)

        if url.startswith("file://"):
            return _copied(url, target, seen)
        transfer = _Transfer(url=url, target=target, limit=limit, seen=seen, accept=accept)
        server = urlsplit(url).netloc
        attempts = 1 if server in self._unreachable else ATTEMPTS
        for attempt in range(attempts):
            try:
                with requests.Session() as session:
                    transfer.attempt(session)
                return digest_of(target)
            except _Retry as error:
                if attempt + 1 == attempts:
                    self._unreachable.add(server)
                    raise NotFetched(str(error)) from error
                self._wait(min(max(0.5 * 2**attempt, error.wait_s), _LONGEST_WAIT_S))
        raise AssertionError  # the last attempt returns or raises


def digest_of(path: Path) -> Fetched:
    """Return the SHA-256 and the size of a file."""
    return Fetched(sha256=sha256_of_file(path), size=path.stat().st_size)


def _copied(url: str, target: Path, seen: OnBytes) -> Fetched:
    """Copy from a local folder: a site's mirror may be one."""
    try:
        shutil.copyfile(unquote(urlsplit(url).path), target)
    except OSError as error:
        raise NotFetched(f"{error.strerror}") from error
    fetched = digest_of(target)
    seen(fetched.size)
    return fetched


def _complete_length(response: requests.Response) -> int:
    """Return the size of the file from `Content-Range: bytes */SIZE`; -1 without one."""
    length = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(length) if length.isdecimal() else -1


def _response(session: requests.Session, url: str, headers: Mapping[str, str]) -> requests.Response:
    """Return the response after redirects; never redirect from https to an unencrypted scheme."""
    for _ in range(_REDIRECTS):
        response = _request(session, url, headers)
        if not response.is_redirect:
            return response
        response.close()
        target = urljoin(url, response.headers["location"])
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
            raise NotFetched(f"{server_of(url)} redirects from https to {urlsplit(target).scheme}")
        url = target
    raise NotFetched(f"{server_of(url)} redirects more than {_REDIRECTS} times")


def _request(session: requests.Session, url: str, headers: Mapping[str, str]) -> requests.Response:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise NotFetched(f"unsupported scheme {urlsplit(url).scheme}; name a mirror with https")
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
            raise NotFetched(reason) from error  # waiting does not help: the host does not exist
        raise _Retry(reason) from error
    except requests.exceptions.RequestException as error:
        raise NotFetched(f"{server_of(url)}: {innermost(error)}") from error


def _check_status(response: requests.Response, url: str) -> None:
    if response.status_code in {requests.codes.ok, requests.codes.partial_content}:
        return
    reason = f"{server_of(url)} answers {response.status_code} {response.reason or ''}".rstrip()
    if response.status_code in TRANSIENT:
        raise _Retry(reason, wait_s=retry_after(response.headers))
    raise NotFetched(reason)
