"""Requests of the cache of packages to servers: each origin gets its own login alone.

A login is for one origin (scheme, host and port), and nothing else is sent there: neither what the
user's .netrc, nor the headers that a client sent to a server that redirects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import requote_uri

from builder.sources.request_bodies import Body

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
