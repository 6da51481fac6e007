"""Logins for registries, and the Authorization headers made from them: Basic, or a token.

The files: https://docs.docker.com/reference/cli/docker/login/ and containers-auth.json(5). Helpers:
https://github.com/docker/docker-credential-helpers. Tokens:
https://distribution.github.io/distribution/spec/auth/token/, and for identity tokens
https://distribution.github.io/distribution/spec/auth/oauth/. A secret is never shown and never an
argument of a program.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from builder.model.errors import BadInput, MissingPrerequisite
from builder.model.exact_json import part
from builder.registry.failures import LOGIN_HINT, PASSWORD, USER, Denied
from builder.registry.references import DOCKER_HUB
from builder.system.home import folder_of_user
from builder.system.process import Processes
from builder.system.web import LONGEST, joined

NAMED = "BUILD_IMAGES_REGISTRY"  # the registry of USER and PASSWORD, except for publish
_HELPER_TIMEOUT_S = 30.0
_HUB_KEY = "https://index.docker.io/v1/"
_SHARED = Path("/run/containers")  # has a folder for each user; only root can create one
_TOKEN_USER = "<token>"  # noqa: S105 - helpers return it in place of a user name


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A user with a password, or an identity token in place of both."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}"


class Credentials:
    """Logins by repository, looked up when a registry asks for one.

    The login from the environment variables is only for the registry `own` (that of `publish --to`)
    and the host of BUILD_IMAGES_REGISTRY. `logins` take precedence over all files.
    """

    def __init__(
        self,
        *,
        own: str = "",
        logins: Mapping[str, Login] | None = None,
        files: tuple[Path, ...] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._own, self._logins, self._files = own, logins or {}, files
        self._processes = processes or Processes()
        self._answers: dict[tuple[str, str], Login | MissingPrerequisite | None] = {}
        self._lock = threading.Lock()

    def login(self, registry: str, repository: str) -> Login | None:
        """Return the login for a repository; None for anonymous requests.

        Raises `BadInput` for an unreadable file, `MissingPrerequisite` for a failed helper.
        """
        if registry in self._logins:
            return self._logins[registry]
        named = os.environ.get(NAMED, "").partition("/")[0]  # without the namespace
        if registry in {self._own, named} - {""} and (login := _of_variables()):
            return login
        for file in auth_files() if self._files is None else self._files:
            if login := self._in_file(file, registry, repository):
                return login
        return None

    def _in_file(self, file: Path, registry: str, repository: str) -> Login | None:
        content = _read(file)
        if helper := _by_name(content, "credHelpers").get(registry):
            return self._ask(str(helper), registry)
        entries, name = _by_name(content, "auths"), f"{registry}/{repository}"
        while name:  # the most specific name first: containers-auth.json(5)
            entry = entries.get(name)
            if isinstance(entry, dict) and (login := _login_of(entry, file, name)):
                return login
            name = name.rpartition("/")[0]
        if helper := content.get("credsStore"):
            return self._ask(str(helper), registry)
        return None

    def _ask(self, helper: str, registry: str) -> Login | None:
        """Return a helper's login; run it only once: it may prompt the user, or fail slowly."""
        key, program = (helper, registry), f"docker-credential-{helper}"
        with self._lock:
            if key not in self._answers:
                try:
                    login = self._answer(program, _HUB_KEY) if registry == DOCKER_HUB else None
                    self._answers[key] = login or self._answer(program, registry)
                except MissingPrerequisite as error:
                    self._answers[key] = error
            answer = self._answers[key]
        if isinstance(answer, MissingPrerequisite):
            raise answer
        return answer

    def _answer(self, program: str, registry: str) -> Login | None:
        """Return the login that a credential helper prints; errors never quote its output."""
        try:
            done = self._processes.capture(
                [program, "get"],
                input_text=f"{registry}\n",
                check=False,
                timeout_s=_HELPER_TIMEOUT_S,
            )
        except (MissingPrerequisite, OSError, ValueError) as error:  # ValueError: NUL in the name
            why = error.strerror if isinstance(error, OSError) else "program not found"
            raise MissingPrerequisite(
                f"cannot run the credential helper {program}: {why}",
                hint=f"install it, or {LOGIN_HINT}",
            ) from error
        if done.returncode and "credentials not found" in done.stdout + done.stderr:
            return None
        answer = _json(done.stdout)
        user, secret = str(part(answer, "Username") or ""), part(answer, "Secret")
        if done.returncode or done.timed_out or not isinstance(secret, str):
            how = "timeout" if done.timed_out else f"exit status {done.returncode}"
            raise MissingPrerequisite(
                f"{program} returned no credentials for {registry}: {how}", hint=LOGIN_HINT
            )
        if not user and not secret:
            return None  # docker-credential-pass of Debian 12 reports a missing login like this
        if user == _TOKEN_USER:
            return Login(identity_token=secret)
        return Login(user=user, password=secret)


def auth_files() -> tuple[Path, ...]:
    """Return credential files by precedence; REGISTRY_AUTH_FILE replaces all others."""
    environment = os.environ
    if named := environment.get("REGISTRY_AUTH_FILE"):
        return (Path(named),)
    home = folder_of_user() or Path("/")  # most containers use / for users without a home
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker")
    run = environment.get("XDG_RUNTIME_DIR")
    shared = _SHARED / str(os.getuid()) / "auth.json"  # podman login's file without XDG_RUNTIME_DIR
    return (
        *([docker / "config.json"] if environment.get("DOCKER_CONFIG") else []),
        *([Path(run) / "containers/auth.json"] if run else []),
        *([shared] if not run and os.access(shared, os.R_OK) else []),
        config / "containers/auth.json",
        docker / "config.json",
    )


def _of_variables() -> Login | None:
    user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
    if bool(user) != bool(password):
        raise BadInput(f"set both {USER} and {PASSWORD}, or neither")
    return Login(user=user, password=password) if user else None


def _read(file: Path) -> dict[str, object]:
    try:
        document = _json(file.read_text().strip() or "{}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict):
        problem = "this credentials file is not a JSON object, or cannot be read"
        raise BadInput(f"{file}: {problem}", hint=LOGIN_HINT)
    return document


def _json(text: str | bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _by_name(content: Mapping[str, object], key: str) -> dict[str, object]:
    entries = content.get(key)
    if not isinstance(entries, dict):
        return {}
    return {_normal(name): value for name, value in entries.items()}


def _normal(key: str) -> str:
    """Return a key of `auths` as host and path; Docker uses a different URL for docker.io."""
    name = (key.partition("://")[2] or key).rstrip("/")
    host, slash, path = name.partition("/")
    if host in {"index.docker.io", "registry-1.docker.io"}:
        host = DOCKER_HUB
    if path in {"v1", "v2"}:
        slash = path = ""
    return f"{host}{slash}{path}"


def _login_of(entry: Mapping[str, object], file: Path, key: str) -> Login | None:
    """Return the login of an entry; None for an empty entry, whose login a helper has.

    Some programs write name and password as two fields, or base64 in several lines.
    """
    if token := entry.get("identitytoken"):
        return Login(identity_token=str(token))
    if not (packed := entry.get("auth")):
        name, secret = entry.get("username"), entry.get("password")
        return Login(user=str(name), password=str(secret)) if name and secret else None
    try:
        pair = base64.b64decode("".join(str(packed).split()), validate=True).decode()
    except ValueError:
        pair = ""
    user, colon, password = pair.partition(":")
    if not colon:
        raise BadInput(f"{file}: the entry {key} is not user:password in base64", hint=LOGIN_HINT)
    return Login(user=user, password=password.rstrip("\0"))


PULL, PUSH, DELETE = "pull", "pull,push", "pull,push,delete"
_BASIC_KEY = "basic"
_TOKEN = re.compile(r"[!-~]+")  # characters that a header may contain
_BEARER = re.compile(r"(?:^|,)\s*bearer\s(.*)", re.IGNORECASE | re.DOTALL)
_PAIR = re.compile(r'\b(\w+)\s*=\s*(?:"([^"]*)"|([^\s",]+))')


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Actions on a repository; `also` names further repositories that are read."""

    repository: str
    actions: str = PULL
    also: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """Return the scopes in the syntax of token servers."""
        others = [f"repository:{name}:{PULL}" for name in self.also]
        return [f"repository:{self.repository}:{self.actions}", *others]


# A request to a token server: URL, headers, and the form of a POST; returns the response's body.
TokenRequest = Callable[[str, Mapping[str, str], Mapping[str, str]], bytes]


class Authorization:
    """The Authorization headers for one registry, shared by all threads."""

    def __init__(self, registry: str, credentials: Credentials, ask: TokenRequest) -> None:
        self._registry, self._credentials, self._ask = registry, credentials, ask
        self._known: dict[Scope | str, str] = {}
        self._lock = threading.RLock()  # held while an authorization is requested

    def known(self, scope: Scope) -> str:
        """Return the header's value; empty until the registry has requested authorization."""
        with self._lock:
            return self._known.get(scope) or self._known.get(_BASIC_KEY, "")

    def answer(self, challenge: str, scope: Scope, *, stale: str) -> str:
        """Return the value for the challenge of a 401, or an empty text; `stale` was refused.

        Raises `Denied` if the token server returns no token.
        """
        if len(challenge) > LONGEST:
            problem = f"its authentication challenge is too long ({len(challenge)} characters)"
            raise Denied(f"{self._registry}: {problem}", hint=LOGIN_HINT)
        with self._lock:
            value = self._known.get(scope, "")
            if value and value != stale:
                return value  # another thread has requested it meanwhile
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
            parameters.setdefault(name.lower(), quoted or plain)  # another scheme may follow: Basic
        try:
            url = joined(parameters.get("realm", ""), "")
        except ValueError as error:
            problem = "the URL of its token server is invalid"
            raise Denied(f"{self._registry}: {problem}", hint=LOGIN_HINT) from error
        service, scopes = parameters.get("service", ""), scope.texts()
        headers, form = dict[str, str](), dict[str, str]()
        if login and login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "scope": " ".join(scopes),
                "client_id": "build-images",
                "refresh_token": login.identity_token,
            }
        else:
            headers = {"Authorization": login.basic} if login else {}
            query = {**({"service": service} if service else {}), "scope": scopes}
            url = f"{url}{'&' if '?' in url else '?'}{urlencode(query, doseq=True)}"
        answer = _json(self._ask(url, headers, form))
        token = part(answer, "token") or part(answer, "access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise Denied(f"{self._registry}: its token server returned no token", hint=LOGIN_HINT)
        return f"Bearer {token}"
