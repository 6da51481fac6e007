"""Requests to one registry: TLS, redirects, authorization, and what is tried again.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import urlsplit

import requests
import requests.adapters
import requests.utils
import urllib3.exceptions

from builder.registry.answers import broken, failure, lost, no_token
from builder.registry.authorization import Authorization, Learned, Scope
from builder.registry.connections import session, shakes_hands
from builder.registry.credentials import Credentials
from builder.registry.deadlines import SMALL_BODY, TOO_LONG, BodyLimits, Watch, watched
from builder.registry.failures import Denied, NotThere, Passing, RegistryFailed, Unreachable
from builder.registry.patience import Patience, Seldom, Sleep
from builder.registry.references import DOCKER_HUB
from builder.registry.web import cause_of, joined, origin, server_of
from builder.system.home import Home
from builder.system.locks import locked

TIMEOUT_S = (10.0, 60.0)  # to connect, and without a byte
_REDIRECTS = 5
_SMALL = 1 << 16
_LARGEST_TOKEN = 1 << 20  # bytes of the answer that holds one
# How registries answer what they do not know; some by leading to a web site, whatever that says.
_UNKNOWN = (400, 404, 405, 406)
_LOOPBACK = re.compile(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
_DOCKER_HUB_AT = "registry-1.docker.io"
# Makes what is sent: bytes, a form, or a file at the place to go on from.
Body = Callable[[], bytes | IO[bytes] | dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """What is asked, wherever that leads; `what` names the thing in errors."""

    method: str
    what: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    limits: BodyLimits = SMALL_BODY


class Transport:
    """Requests to one registry, from any number of threads.

    `plain_http` are hosts that are asked without TLS. A loopback address is, too, unless it answers
    that it wants TLS. `sleep` is ended by `stop`. What is `learned` of a repository may be shared.
    `tell` is told of what is waited for, and how long. See `builder.registry.deadlines`.
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
        learned: Learned | None = None,
    ) -> None:
        self.registry, self.timeout_s, self.tell = registry, timeout_s, tell
        self.sleep = Sleep()
        self._until = math.inf
        self._tell_silence, self._tell_attempt = Seldom(tell), Seldom(tell)
        self.sent_bytes = 0
        self.learned = learned or Learned()
        self._wait = wait or self.sleep
        self._plain_http = plain_http
        self._threads = threading.local()
        self._lock = threading.RLock()
        self._proxies: dict[tuple[str, str], dict[str, str]] = {}
        self._authorization = Authorization(registry, credentials, self._token, self.learned)

    def patience(self) -> Patience:
        """The attempts at one thing that is sent or fetched in parts."""
        return Patience(self._wait, self._tell_attempt)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """A time in which all requests have to be over, whichever thread makes them."""
        self._until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = math.inf

    @contextlib.contextmanager
    def turn(self, name: str, what: str) -> Iterator[None]:
        """A time in which no other client of this home writes a thing, which has a lock's name."""
        with locked(
            Home.of_environment().path / "registries",
            name,
            waiting=lambda: self.tell(f"waiting for another build-images that writes {what}"),
            stopped=lambda: self.sleep.is_ended,
        ):
            yield

    @contextlib.contextmanager
    def asked(self, **request: Any) -> Iterator[requests.Response]:
        """The answer to a request, asked again while what stands against it may pass; see `once`.

        Not for what the answer's body breaks off in: that is up to who reads it.
        """
        patience = self.patience()
        while True:
            try:
                answer = self.once(**request)
            except Passing as passing:
                patience.after(passing)
            else:
                break
        with answer:
            yield answer

    def once(
        self,
        *,
        method: str,
        path: str,
        scope: Scope,
        what: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        good: Collection[int] = (200,),
        optional: bool = False,
        limits: BodyLimits = SMALL_BODY,
    ) -> requests.Response:
        """The answer to one request; `path` begins with /v2/, or is a URL that the registry gave.

        `what` names the thing in errors. Raises `Passing` for what may pass by itself, and
        `NotThere`, `Denied`, `Unreachable` or `RegistryFailed` for any status not in `good`. What
        is `optional` a registry need not know: `NotThere` is raised for each way of saying so.
        """
        self.sleep.check()
        if time.monotonic() > min(self._until, limits.until):  # of all attempts
            raise Unreachable(f"{self._at(what)}: {TOO_LONG}", reason=TOO_LONG)
        call = _Call(method=method, headers=headers or {}, body=body, what=what, limits=limits)
        with self.guarded(what):
            answer = self._answer(call, path, scope)
        if answer.status_code in good:
            if method != "GET":
                _drain(answer)
            return answer
        with answer, self.guarded(what):
            if optional and (answer.status_code in _UNKNOWN or not self._is_home(answer.url)):
                raise NotThere(f"{self._at(what)}: the registry does not know this request")
            raise failure(answer, self._at(what))

    def _answer(self, call: _Call, path: str, scope: Scope) -> requests.Response:
        """The answer, whatever its status; the registry's question who we are is answered."""
        url = self._joined(self.base(), path, call.what)
        if urlsplit(self.base()).scheme == "https" and urlsplit(url).scheme != "https":
            at = self._at(call.what)
            raise RegistryFailed(f"{at}: the registry names an address without TLS")
        known = self._authorization.known(scope)
        answer = self._follow(call, url, known)
        # What another thread was told meanwhile may be over by now, too; what we are told is not.
        for _ in range(2 if self._authorization.known(scope) != known else 1):
            if answer.status_code != requests.codes.unauthorized or not self._is_home(answer.url):
                break
            challenge = answer.headers.get("WWW-Authenticate", "")
            known = self._authorization.answer(challenge, scope, stale=known)
            if not known:
                break
            with answer:
                _drain(answer)
            answer = self._follow(call, url, known)
        return answer

    def silent(self) -> str:
        """Why the registry gives no answer at all, empty if it does: a refusal is one."""
        try:
            self._send(_Call(method="GET", what="v2"), f"{self.base()}/v2/").close()
        except Passing as passing:
            failed = passing.failure
            return failed.reason if isinstance(failed, Unreachable) else str(failed)
        except Unreachable as error:
            return error.reason
        return ""

    def base(self) -> str:
        """The URL of the registry: `https://quay.io`."""
        with self.learned.finding:
            self.learned.base = self.learned.base or self._find_base()
            return self.learned.base

    def _find_base(self) -> str:
        host = _DOCKER_HUB_AT if self.registry == DOCKER_HUB else self.registry
        if host in self._plain_http or host.partition(":")[0] in self._plain_http:
            return f"http://{host}"
        if _LOOPBACK.fullmatch(host) and not self._wants_tls(host):
            return f"http://{host}"
        return f"https://{host}"

    def _wants_tls(self, host: str) -> bool:
        """Whether a registry of this machine speaks TLS: asked in the clear, servers say so."""
        try:
            call = _Call(method="GET", what="v2")
            with self._asked(call, f"http://{host}/v2/", {}) as answer:
                _drain(answer)
                return answer.status_code == requests.codes.bad_request
        except requests.exceptions.RequestException as error:
            refused = isinstance(cause_of(error), ConnectionRefusedError)
            return not refused and shakes_hands(host)

    @property
    def _session(self) -> requests.Session:
        """This thread's."""
        found: requests.Session | None = getattr(self._threads, "session", None)
        if found is None:
            self._threads.session = found = session()
        return found

    def _proxies_for(self, url: str) -> dict[str, str]:
        """The proxies that the environment names for a server."""
        parts = urlsplit(url)
        server = parts.scheme, parts.netloc
        with self._lock:
            if server not in self._proxies:
                self._proxies[server] = requests.utils.get_environ_proxies(url, no_proxy=None)
            return self._proxies[server]

    def _follow(self, call: _Call, url: str, authorization: str) -> requests.Response:
        """The answer after all redirects. Another host than the registry's sees no authorization.

        Only what is read is redirected.
        """
        for _ in range(_REDIRECTS):
            known = authorization and self._is_home(url)
            answer = self._send(call, url, {"Authorization": authorization} if known else {})
            if not answer.is_redirect or call.method not in {"GET", "HEAD"}:
                return answer
            with answer:
                target = self._joined(url, answer.headers["location"], call.what)
                _drain(answer)
            if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
                raise RegistryFailed(f"{self._at(call.what)}: a redirect leads away from https")
            url = target
        raise RegistryFailed(f"{self._at(call.what)}: more than {_REDIRECTS} redirects")

    def _send(
        self, call: _Call, url: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> requests.Response:
        """The answer to one request, with `more` headers, whatever it says."""
        try:
            return self._asked(call, url, more)
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            raise lost(error, self._at(call.what)) from error
        except OSError as error:
            raise lost(error, self._at(call.what)) from error

    def _asked(self, call: _Call, url: str, more: Mapping[str, str]) -> requests.Response:
        watch = Watch(
            what=self._at(call.what),
            check=self.sleep.check,
            tell=self._tell_silence,
            silence_s=self.timeout_s[1],
            until=min(self._until, BodyLimits.from_now(call.limits.size).until, call.limits.until),
            size=call.limits.size,
        )
        with watched(watch):
            return self._session.request(
                call.method,
                url,
                headers={**call.headers, **more},
                data=call.body() if call.body else None,
                auth=_as_it_is,
                timeout=self.timeout_s,
                proxies=self._proxies_for(url),
                allow_redirects=False,
                stream=True,
            )

    def _is_home(self, url: str) -> bool:
        """Whether a URL is the registry's own: no other host is told who we are, or asks us."""
        return origin(url) == origin(self.base())

    def _joined(self, base: str, given: str, what: str) -> str:
        try:
            return joined(base, given)
        except ValueError as error:
            raise RegistryFailed(
                f"{self._at(what)}: the registry names an address that is none"
            ) from error

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """For whatever reads an answer: all that its bytes can make libraries raise is a failure.

        Raises `Passing` for what broke off, `RegistryFailed` for what cannot be understood.
        """
        try:
            yield
        except (ValueError, OverflowError, RecursionError) as error:
            problem = "the registry's answer cannot be understood"
            raise RegistryFailed(f"{self._at(what)}: {problem}") from error
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise self.broken(error, what) from error

    def broken(self, error: Exception, what: str) -> Passing:
        """The failure for an answer whose body broke off."""
        return broken(error, self._at(what))

    def _at(self, what: str) -> str:
        return f"{self.registry}/{what}"

    def _token(
        self, method: str, url: str, *, headers: Mapping[str, str], form: Mapping[str, str]
    ) -> bytes:
        """What the server that gives out tokens answers."""
        if not url.startswith("https://") and not self._may_be_clear(url):
            raise Denied(f"{self.registry}: it names a server of tokens without TLS")
        patience = self.patience()
        sent, what = dict(form), f"token of {server_of(url)}"
        while True:
            try:
                with self._led(method, url, headers, sent, what) as answer, self.guarded(what):
                    if answer.status_code != requests.codes.ok:
                        raise no_token(answer, f"{self.registry}: its server of tokens")
                    content: bytes = answer.raw.read(_LARGEST_TOKEN, decode_content=False)
                    return content
            except Passing as passing:
                patience.after(passing)

    def _led(
        self, method: str, url: str, headers: Mapping[str, str], sent: dict[str, str], what: str
    ) -> requests.Response:
        """The answer of a server of tokens that may lead on, but to no other host: it sees all."""
        call = _Call(
            method=method, headers=headers, body=(lambda: sent) if sent else None, what=what
        )
        answer = self._send(call, url)
        for _ in range(_REDIRECTS):
            target = (
                self._joined(url, answer.headers["location"], what) if answer.is_redirect else ""
            )
            if method != "GET" or not target or origin(target) != origin(url):
                break
            with answer:
                _drain(answer)
            answer = self._send(call, target)
        return answer

    def _may_be_clear(self, url: str) -> bool:
        """Whether a login may go to a server of tokens without TLS: to hosts that are asked so."""
        there, base = urlsplit(url), urlsplit(self.base())
        named = {there.netloc, there.hostname} & set(self._plain_http)
        same = there.hostname == base.hostname
        return base.scheme == "http" and bool(named or same or _LOOPBACK.fullmatch(there.netloc))

    def count(self, size: int) -> None:
        """Note that bytes of a blob were sent."""
        with self._lock:
            self.sent_bytes += size


def _drain(answer: requests.Response) -> None:
    """Read what nobody wants of an answer: else its connection cannot be used again."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
        answer.raw.read(_SMALL)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """No credentials from .netrc in the place of ours."""
    return request
