"""Requests of the package cache to servers: each origin gets only its own login.

A login is for one origin (scheme, host and port). No other credentials are sent there: neither
those in the user's .netrc, nor the headers that a client sent to a server that redirects.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import requests
from requests.auth import HTTPBasicAuth

from builder.system.web import server_of

Origin = tuple[str, str]  # scheme, and host with port
Login = tuple[str, str]

_TIMEOUT_S = 60.0
_MOST_REDIRECTS = 10


def origin_of(url: str) -> Origin:
    """Return the origin of a URL: scheme, and host with port, without a login."""
    return urlsplit(url).scheme, server_of(url)


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Body | None,
    *,
    logins: Mapping[Origin, Login],
    follow: bool,
    timeout_s: float = _TIMEOUT_S,
) -> requests.Response:
    """Return a server's response, with its body still unread.

    With `follow`, redirects of GET and HEAD are followed; each request has only the login of its
    own origin. Raises `requests.RequestException`.
    """
    session = _Session(logins, follow=follow and method in {"GET", "HEAD"})
    return session.request(method, url, headers=headers, data=body, stream=True, timeout=timeout_s)


class _Session(requests.Session):
    """A session that sends each origin its own login, never one from a URL or .netrc."""

    def __init__(self, logins: Mapping[Origin, Login], *, follow: bool) -> None:
        super().__init__()
        self.max_redirects = _MOST_REDIRECTS
        self._logins, self._follow = logins, follow
        self.auth = self._add_login

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect to follow, else None; no other body is read."""
        target = super().get_redirect_target(resp) if self._follow else None
        if target:
            resp.close()  # else requests reads the whole body, whatever its size
        return target

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Keep the client's own login only for a redirect to the same origin."""
        if origin_of(prepared_request.url or "") != origin_of(response.url):
            prepared_request.headers.pop("Authorization", None)
        self._add_login(prepared_request)

    def _add_login(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        login = self._logins.get(origin_of(request.url or ""))
        return HTTPBasicAuth(*login)(request) if login else request


_MOST_PAGE = 64 << 20  # bytes
_CHUNK = 1 << 16


class Body:
    """A request's body of known size, read from a connection on demand."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._size = file, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        remaining = self._size
        while remaining:
            chunk = self._file.read(min(remaining, _CHUNK))
            if not chunk:
                raise EOFError("the request body is truncated")
            remaining -= len(chunk)
            yield chunk


def page_of(response: requests.Response) -> bytes | None:
    """Return a page, decompressed; None if it is larger than 64 MiB."""
    page = bytearray()
    for chunk in response.iter_content(_CHUNK):
        page += chunk
        if len(page) > _MOST_PAGE:
            return None
    return bytes(page)
