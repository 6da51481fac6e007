"""Requests to one registry: TLS, redirects, authorization and retries.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import urllib3.exceptions
from urllib3 import HTTPResponse, Timeout

from builder.model.errors import BadInput
from builder.registry.connections import (
    SMALL_BODY,
    TOO_LONG,
    BodyLimits,
    Watch,
    connections,
    speaks_tls,
    watched,
)
from builder.registry.credentials import Authorization, Credentials, Scope
from builder.registry.failures import (
    Denied,
    NotFound,
    RegistryFailed,
    Retries,
    Sleep,
    Transient,
    Unreachable,
    failure,
    no_response,
    no_token,
)
from builder.registry.references import DOCKER_HUB, HOST
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.web import cause_of, innermost, joined, origin, server_of

T = TypeVar("T")
TIMEOUT_S = (10.0, 60.0)  # for connecting, and for a pause between two bytes
_REDIRECTS = 5
_SMALL = 1 << 16
_LARGEST_TOKEN = 1 << 20  # bytes of a token server's response
# The status of requests that a registry does not support; some redirect to a web site instead.
_UNKNOWN = (400, 404, 405, 406)
_LOOPBACK = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_DOCKER_HUB_AT = "registry-1.docker.io"
# Digests are of the stored bytes, so no compression on the way.
_HEADERS = {"User-Agent": "build-images", "Accept-Encoding": "identity"}
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


# Returns the body for each attempt: bytes, or chunks whose total length is in the headers.
Body = Callable[[], bytes | Iterator[bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request that redirects may repeat.

    `resource` names its object in errors: `quay.io/site/a: manifests/1.0`. Any status not in `good`
    is a failure. A registry need not support an `optional` request. With `stays`, a redirect to
    another host is not followed, but returned as the response.
    """

    method: str
    resource: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    limits: BodyLimits = SMALL_BODY
    good: Collection[int] = (200,)
    optional: bool = False
    stays: bool = False


class Transport:
    """Requests to one registry, from any number of threads.

    `plain_http` are hosts without TLS; anything else is `BadInput`. Loopback addresses are used
    without TLS, too, unless the server requires it. `sleep.stop` ends all requests.
    `lists_referrers` is false if the registry is known to have no lists. `tell` receives a line for
    each wait. See `builder.registry.connections`.
    """

    def __init__(
        self,
        registry: str,
        credentials: Credentials,
        *,
        plain_http: Collection[str] = (),
        wait: Callable[[float], object] | None = None,
        tell: Callable[[str], object] = lambda _: None,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        attempts: int | None = None,
    ) -> None:
        if not all(map(HOST.fullmatch, plain_http)):  # not printed: it may hold a login
            raise BadInput("--plain-http: not HOST or HOST:PORT")
        self.registry, self.timeout_s, self.tell = registry, timeout_s, tell
        self._attempts = attempts
        self.sleep = Sleep()
        self._until = math.inf
        self.lists_referrers = True
        self._base, self._base_lock = "", threading.RLock()
        self._wait = wait or self.sleep
        self._plain_http = plain_http
        self._ping = Request(method="GET", resource=f"{registry}/v2")
        self._authorization = Authorization(registry, credentials, self._token)

    def retries(self) -> Retries:
        """Return a counter of the attempts at one transfer."""
        return Retries(self._wait, self.tell, self._attempts)

    @contextlib.contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """Within the context, make the requests of all threads fail after that time."""
        self._until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = math.inf

    def write_lock(self, label: str) -> AbstractContextManager[None]:
        """Lock the object named `label` against writes by other clients with the same home."""
        return locked(
            Home.of_environment().path / "registries",
            hashlib.sha256(label.encode()).hexdigest(),
            waiting=lambda holder: self.tell(f"waiting for {holder}, which writes {label}"),
            stopped=lambda: self.sleep.is_ended,
        )

    def retried(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; temporary failures are retried."""
        retries = self.retries()
        while True:
            try:
                return attempt()
            except Transient as transient:
                retries.wait(transient)

    def request_once(self, request: Request, path: str, scope: Scope) -> HTTPResponse:
        """Return the response to a request; `path` begins with /v2/, or is a URL of the registry.

        Raises `Transient` for temporary failures, and `NotFound`, `Denied`, `Unreachable` or
        `RegistryFailed` for others; each refusal of an `optional` request raises `NotFound`.
        """
        at = request.resource
        self.sleep.check()
        if time.monotonic() > min(self._until, request.limits.until):  # of all attempts
            raise Unreachable(f"{at}: {TOO_LONG}", reason=TOO_LONG)
        with self.reading(at):
            response = self._answer(request, path, scope)
        if response.status in request.good:
            if request.method != "GET":
                _drain(response)
            return response
        with response, self.reading(at):
            is_unknown = response.status in _UNKNOWN or not self._is_home(str(response.url))
            if request.optional and is_unknown:
                raise NotFound(f"{at}: the registry does not support this request")
            raise failure(response, at)

    def _answer(self, request: Request, path: str, scope: Scope) -> HTTPResponse:
        """Return the response with any status; after a 401, repeat the request with a token."""
        url = self._joined(self.base(), path, request.resource)
        known = self._authorization.known(scope)
        response = self._follow(request, url, known)
        # A token that another thread requested may have expired; the one requested here has not.
        for _ in range(2 if self._authorization.known(scope) != known else 1):
            is_challenge = response.status == HTTPStatus.UNAUTHORIZED
            if not (is_challenge and self._is_home(str(response.url))):
                break
            challenge = response.headers.get("WWW-Authenticate", "")
            known = self._authorization.answer(challenge, scope, stale=known)
            if not known:
                break
            with response:
                _drain(response)
            response = self._follow(request, url, known)
        return response

    def unreachable_reason(self) -> str:
        """Return why the registry does not answer; empty if it answers, even with a refusal."""
        try:
            self._send(self._ping, f"{self.base()}/v2/").close()
        except Transient as transient:
            failed = transient.failure
            return failed.reason if isinstance(failed, Unreachable) else str(failed)
        except Unreachable as error:
            return error.reason
        return ""

    def base(self) -> str:
        """Return the URL of the registry: `https://quay.io`."""
        with self._base_lock:
            self._base = self._base or self._find_base()
            return self._base

    def _find_base(self) -> str:
        host = _DOCKER_HUB_AT if self.registry == DOCKER_HUB else self.registry
        is_plain = bool({host, host.partition(":")[0]} & set(self._plain_http)) or (
            _LOOPBACK.fullmatch(host) is not None and not self._wants_tls(host)
        )
        return f"{'http' if is_plain else 'https'}://{host}"

    def _wants_tls(self, host: str) -> bool:
        """Return whether a local registry requires TLS: such servers answer 400 to plain HTTP."""
        try:
            response = self._send(self._ping, f"http://{host}/v2/")
        except (Transient, RegistryFailed) as error:
            refused = isinstance(cause_of(error), ConnectionRefusedError)
            return not refused and speaks_tls(host)
        with response:
            _drain(response)
            return response.status == HTTPStatus.BAD_REQUEST

    def _follow(self, request: Request, url: str, authorization: str = "") -> HTTPResponse:
        """Follow redirects of GET and HEAD; send `authorization` only to the registry's host."""
        for _ in range(_REDIRECTS):
            known = authorization and self._is_home(url)
            response = self._send(request, url, {"Authorization": authorization} if known else {})
            location = response.get_redirect_location()
            if not location or request.method not in {"GET", "HEAD"}:
                return response
            target = self._joined(url, location, request.resource)
            if request.stays and origin(target) != origin(url):
                return response
            with response:
                _drain(response)
            url = target
        raise RegistryFailed(f"{request.resource}: more than {_REDIRECTS} redirects")

    def _send(
        self, request: Request, url: str, extra: Mapping[str, str] = MappingProxyType({})
    ) -> HTTPResponse:
        """Return the response, with any status, to one request with `extra` headers."""
        watch = Watch(
            resource=request.resource,
            check=self.sleep.check,
            tell=self.tell,
            silence_s=self.timeout_s[1],
            until=min(
                self._until, BodyLimits.from_now(request.limits.size).until, request.limits.until
            ),
            size=request.limits.size,
        )
        pool = connections(url)
        try:
            with watched(watch):
                response = pool.urlopen(
                    request.method,
                    url,
                    body=request.body() if request.body else None,
                    headers={**_HEADERS, **request.headers, **extra},
                    timeout=Timeout(*self.timeout_s),
                    redirect=False,
                    retries=False,
                    preload_content=False,
                )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            server, at = server_of(url), request.resource
            at += "" if server in re.split("[/ ]", at) else f": {server}"  # after a redirect
            at += f" through the proxy {pool.proxy.netloc}" if pool.proxy else ""
            raise no_response(error, at) from error
        assert isinstance(response, HTTPResponse)
        response.url, response.auto_close = url, False  # so that `with` closes it
        return response

    def _is_home(self, url: str) -> bool:
        """Return whether a URL is the registry's own; no other host gets the authorization."""
        return origin(url) == origin(self.base())

    def _joined(self, base: str, address: str, resource: str) -> str:
        try:
            url = joined(base, address)
        except ValueError as error:
            problem = "the registry returned an invalid URL"
            raise RegistryFailed(f"{resource}: {problem}") from error
        if base.startswith("https:") and not url.startswith("https:"):
            raise RegistryFailed(f"{resource}: the registry returned a URL without TLS")
        return url

    @contextlib.contextmanager
    def reading(self, resource: str) -> Iterator[None]:
        """Raise `Transient` for a truncated response, `RegistryFailed` for an invalid one."""
        try:
            yield
        except (ValueError, OverflowError, RecursionError) as error:
            problem = "the registry's response is invalid"
            raise RegistryFailed(f"{resource}: {problem}") from error
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = innermost(error)
            broken = Unreachable(f"{resource}: transfer failed: {reason}", reason=reason)
            raise Transient(broken) from error

    def _token(self, url: str, headers: Mapping[str, str], form: Mapping[str, str]) -> bytes:
        if not url.startswith("https://") and not self._allows_clear(url):
            raise Denied(f"{self.registry}: its token server has no TLS")
        body = urlencode(form).encode()
        request = Request(
            method="POST" if form else "GET",
            resource=f"{self.registry}/token of {server_of(url)}",
            headers={**headers, **(_FORM if form else {})},
            body=(lambda: body) if form else None,
            stays=True,  # the request carries the login
        )

        def attempt() -> bytes:
            with self._follow(request, url) as response, self.reading(request.resource):
                if response.status != HTTPStatus.OK:
                    raise no_token(response, f"{self.registry}: its token server")
                return response.read(_LARGEST_TOKEN, decode_content=False)

        return self.retried(attempt)

    def _allows_clear(self, url: str) -> bool:
        """Return whether a token server may receive a login without TLS."""
        server, base = urlsplit(url), urlsplit(self.base())
        named = {server.netloc, server.hostname} & set(self._plain_http)
        same = server.hostname == base.hostname
        return base.scheme == "http" and bool(named or same or _LOOPBACK.fullmatch(server.netloc))


def _drain(response: HTTPResponse) -> None:
    """Read the unused rest of a response, so that its connection can be used again."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
        response.read(_SMALL)
