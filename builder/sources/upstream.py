"""Requests of the cache of packages to servers: each origin gets its own login alone.

A login is for one origin (scheme, host and port), and nothing else is sent there: neither what the
user's .netrc, nor the headers that a client sent to a server that redirects.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import requote_uri

if TYPE_CHECKING:
    import requests

Origin = tuple[str, str]  # scheme, and host with port
Login = tuple[str, str]

_TIMEOUT_S = 60.0
_MOST_REDIRECTS = 10
_FOLLOWED = frozenset({"GET", "HEAD"})
_FOR_ONE_SERVER = frozenset({"authorization", "cookie"})


def origin_of(url: str) -> Origin:
    """Return the origin of a URL, to which a login belongs, without a login in the URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Body | Iterator[bytes] | None,
    *,
    logins: Mapping[Origin, Login],
    follow: bool,
    timeout_s: float = _TIMEOUT_S,
) -> requests.Response:
    """Return a server's response, whose body is still to be read.

    With `follow`, redirects are followed; each request has the login of its own origin alone.
    Raises `requests.RequestException`.
    """
    session = _Session()
    for _ in range(_MOST_REDIRECTS):
        session.auth = logins.get(origin_of(url)) or _without_login
        response = session.request(
            method, url, headers=headers, data=body, stream=True, timeout=timeout_s
        )
        target = session.target(response)
        if not (follow and target and body is None and method in _FOLLOWED):
            return response
        response.close()
        url = urljoin(response.url, requote_uri(target))
        if origin_of(url) != origin_of(response.url):
            headers = {
                name: value
                for name, value in headers.items()
                if name.lower() not in _FOR_ONE_SERVER
            }
    raise requests.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects")


class _Session(requests.Session):
    """A session that follows no redirects by itself, which would also read their bodies."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002 - as requests calls it
        return None

    def target(self, response: requests.Response) -> str | None:
        """Return the target of a redirect; None for other responses."""
        return super().get_redirect_target(response)


def _without_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep the login of the headers: neither the URL's nor that of .netrc."""
    return request


_MOST_PAGE = 64 << 20  # bytes
_CHUNK = 1 << 16
_MOST_LINE = 1 << 12  # bytes between chunks
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Body:
    """A request's body of a known size, read from a connection on demand."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._size = file, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        remaining = self._size
        while remaining:
            chunk = self._file.read(min(remaining, _CHUNK))
            if not chunk:
                raise EOFError("the body breaks off")
            remaining -= len(chunk)
            yield chunk


def chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the chunks of a body: https://www.rfc-editor.org/rfc/rfc9112#section-7.1

    Raises `ValueError` for an invalid one, `EOFError` if it breaks off.
    """
    while True:
        size = _line(file).partition(b";")[0].strip()
        if not _SIZE.fullmatch(size):
            raise ValueError("a chunk without its size")
        if not int(size, 16):
            break
        yield from Body(file, int(size, 16))
        _line(file)
    while _line(file):
        pass


def _line(file: io.BufferedIOBase) -> bytes:
    line = file.readline(_MOST_LINE)
    if len(line) == _MOST_LINE:
        raise ValueError("a line that is too long")
    return line.strip()


def page_of(response: requests.Response) -> bytes | None:
    """Return a page, unpacked; None for one of more than 64 MiB."""
    page = bytearray()
    for chunk in response.iter_content(_CHUNK):
        page += chunk
        if len(page) > _MOST_PAGE:
            return None
    return bytes(page)
