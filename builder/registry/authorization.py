"""The Authorization header of a registry's requests: Basic, or a token for a scope.

https://distribution.github.io/distribution/spec/auth/token/ and its oauth2 twin, for identity
tokens: https://distribution.github.io/distribution/spec/auth/oauth/
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from builder.registry.credentials import LOGIN_HINT, Credentials, Login
from builder.registry.failures import Denied
from builder.system.web import LONGEST, joined

PULL, PUSH, DELETE = "pull", "pull,push", "pull,push,delete"
_BASIC_KEY = "basic"
_TOKEN = re.compile(r"[!-~]+")  # what a header can hold
_BEARER = re.compile(r"(?:^|,)\s*bearer\s(.*)", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(r'\b(\w+)\s*=\s*(?:"([^"]*)"|([^\s",]+))')


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Actions on a repository; `also` are other repositories that are read with it."""

    repository: str
    actions: str = PULL
    also: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """Return the scopes in the syntax of token servers."""
        others = [f"repository:{name}:{PULL}" for name in self.also]
        return [f"repository:{self.repository}:{self.actions}", *others]


# A request to a token server: method, URL, headers, form; returns the body of its response.
TokenRequest = Callable[[str, str, Mapping[str, str], Mapping[str, str]], bytes]


@dataclass(kw_only=True, slots=True)
class RegistryState:
    """Facts about a registry that all clients of one repository share, so that each is found once.

    `base` is its URL, empty if that is not known; `lists_referrers`, as far as is known. The locks
    are held while the base is looked for, and while an authorization is requested.
    """

    base: str = ""
    lists_referrers: bool = True
    authorizations: dict[Scope | str, str] = field(default_factory=dict)
    base_lock: threading.RLock = field(default_factory=threading.RLock)
    authorization_lock: threading.RLock = field(default_factory=threading.RLock)


class Authorization:
    """The Authorization headers for one registry, shared by all threads."""

    def __init__(
        self, registry: str, credentials: Credentials, ask: TokenRequest, state: RegistryState
    ) -> None:
        self._registry, self._credentials, self._ask = registry, credentials, ask
        self._known, self._lock = state.authorizations, state.authorization_lock

    def known(self, scope: Scope) -> str:
        """Return the header's value if one is known: none before the registry requested it."""
        with self._lock:
            return self._known.get(scope) or self._known.get(_BASIC_KEY, "")

    def answer(self, challenge: str, scope: Scope, *, stale: str) -> str:
        """Return the value that a 401 asks for, empty if there is none; `stale` was refused.

        Raises `Denied` when the token server gives none.
        """
        if len(challenge) > LONGEST:
            problem = f"it asks who we are in {len(challenge)} characters"
            raise Denied(f"{self._registry}: {problem}", hint=LOGIN_HINT)
        with self._lock:
            value = self._known.get(scope, "")
            if value and value != stale:
                return value  # another thread asked meanwhile
            login = self._credentials.login(self._registry, scope.repository)
            if bearer := _BEARER.search(challenge):
                self._known[scope] = self._bearer(bearer[1], scope, login)
                return self._known[scope]
            if login is None or login.identity_token or login.basic == stale:
                return ""
            self._known[_BASIC_KEY] = login.basic
            return login.basic

    def _bearer(self, challenge: str, scope: Scope, login: Login | None) -> str:
        parameters: dict[str, str] = {}
        for name, quoted, plain in _PAIR.findall(challenge):
            parameters.setdefault(name.lower(), quoted or plain)  # another way, Basic, may follow
        realm, service = parameters.get("realm", ""), parameters.get("service", "")
        try:
            realm = joined(realm, "")
        except ValueError as error:
            problem = "it names no server of tokens"
            raise Denied(f"{self._registry}: {problem}", hint=LOGIN_HINT) from error
        if login and login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "scope": " ".join(scope.texts()),
                "client_id": "build-images",
                "refresh_token": login.identity_token,
            }
            body = self._ask("POST", realm, {}, form)
        else:
            headers = {"Authorization": login.basic} if login else {}
            query = [("service", service)] if service else []
            query += [("scope", text) for text in scope.texts()]
            mark = "&" if "?" in realm else "?"
            url = f"{realm}{mark}{urlencode(query)}"
            body = self._ask("GET", url, headers, {})
        try:
            data = json.loads(body)
            token = data.get("token") or data.get("access_token")
        except (ValueError, RecursionError, AttributeError):
            token = None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise Denied(f"{self._registry}: its server of tokens gives none", hint=LOGIN_HINT)
        return f"Bearer {token}"
