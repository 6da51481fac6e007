"""Requests of the cache of packages to servers: whose login goes where.

A login is for one origin (scheme, host and port), and nothing else is sent there: neither what the
user's .netrc says, nor what a client sent to the server that leads elsewhere.
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
    """What a login is for; a name and a password in the URL are no part of it."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def ask(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Body | Iterator[bytes] | None,
    *,
    logins: Mapping[Origin, Login],
    follow: bool,
) -> requests.Response:
    """A server's answer, whose body is still to be read.

    To `follow` is to go where a server leads; each request has the login of its own origin alone.
    Raises `requests.RequestException`.
    """
    session = _Session()
    for _ in range(_MOST_REDIRECTS):
        session.auth = logins.get(origin_of(url)) or _as_given
        answer = session.request(
            method, url, headers=headers, data=body, stream=True, timeout=_TIMEOUT_S
        )
        target = session.target(answer)
        if not (follow and target and body is None and method in _FOLLOWED):
            return answer
        answer.close()
        url = urljoin(answer.url, requote_uri(target))
        if origin_of(url) != origin_of(answer.url):
            headers = {
                name: value
                for name, value in headers.items()
                if name.lower() not in _FOR_ONE_SERVER
            }
    raise requests.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects")


class _Session(requests.Session):
    """A session that leads nowhere by itself, which would also read a redirect's whole body."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:  # noqa: ARG002 - as requests calls it
        return None

    def target(self, answer: requests.Response) -> str | None:
        """Where an answer leads."""
        return super().get_redirect_target(answer)


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """No login but that in the headers: neither the URL's nor that of .netrc."""
    return request
