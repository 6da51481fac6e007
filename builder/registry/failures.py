"""Failures of registries, from their responses: each names the request, the server and a remedy."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import urllib3.exceptions
from urllib3 import HTTPResponse

from builder.model.errors import BuildImagesError, Interrupted
from builder.system.web import (
    TRANSIENT,
    cause_of,
    innermost,
    printable,
    retry_after,
    server_of,
    without_users,
)

USER, PASSWORD = "BUILD_IMAGES_REGISTRY_USER", "BUILD_IMAGES_REGISTRY_PASSWORD"
LOGIN_HINT = (
    "log in with podman login or docker login, name the file with REGISTRY_AUTH_FILE or "
    f"DOCKER_CONFIG, or set {USER} and {PASSWORD}"
)
TLS_HINT = (
    "for a site's own certificate authority, set SSL_CERT_FILE or REQUESTS_CA_BUNDLE; "
    "for a registry without TLS, use --plain-http HOST"
)
_RIGHTS_HINT = "this login lacks the permission: request it, or use another login"
_LONGEST_ERROR = 1 << 16
_LONGEST_CODE = 80
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError)
_NUMBER = re.compile(r"[0-9]{1,18}")


class RegistryFailed(BuildImagesError):
    """A registry refused a request; repeating it does not help.

    `code` is the registry's error code (`DENIED`) or empty; `status` is the HTTP status or 0. The
    last of several attempts failed if it `is_temporary`.
    """

    code, status, is_temporary = "", 0, False


class NotFound(RegistryFailed):
    """The registry has no such manifest, blob or repository (404)."""


class Denied(RegistryFailed):
    """The registry denies access: missing or wrong credentials (401), or no permission (403)."""

    exit_code = 4


class Unreachable(RegistryFailed):
    """A registry does not answer, or its TLS certificate cannot be verified."""

    exit_code = 4

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WrongContent(RegistryFailed):
    """The registry's content does not match its digest, size or kind."""

    exit_code = 5


class Transient(Exception):
    """A failure that may be temporary; `wait_s` is the pause that the server asks for."""

    def __init__(self, failure: RegistryFailed, *, wait_s: float = 0.0) -> None:
        super().__init__(str(failure))
        self.failure = failure
        failure.is_temporary = True
        self.wait_s = wait_s


ATTEMPTS = 5  # in a row without progress
LEAST_GAIN = 64 << 10  # bytes; an interrupted attempt with fewer counts as no progress
_FIRST_S, _LONGEST_S = 0.5, 120.0
_MOST = 40  # attempts at one transfer, with progress or without


class Retries:
    """Attempts at one transfer: their number is limited, and the delays between them grow.

    `wait` sleeps for a number of seconds; `tell` receives a line for each wait. There is no further
    attempt if the server asks for a pause of more than two minutes.
    """

    def __init__(
        self,
        wait: Callable[[float], object] = time.sleep,
        tell: Callable[[str], object] = lambda _: None,
        attempts: int | None = None,
    ) -> None:
        self._wait, self._tell, self._attempts = wait, tell, attempts or ATTEMPTS
        self._futile = self._total = 0

    def wait(self, transient: Transient, *, gained: int = 0) -> None:
        """Wait until the next attempt; raise the failure after the last one.

        The count starts again at one if the last attempt `gained` enough bytes.
        """
        self._futile = 1 if gained >= LEAST_GAIN else self._futile + 1
        self._total += 1
        is_last = (
            self._futile >= self._attempts or self._total >= _MOST or transient.wait_s > _LONGEST_S
        )
        if is_last:
            raise transient.failure from transient.__cause__
        wait_s = max(_FIRST_S * 2 ** (self._futile - 1), transient.wait_s)
        again = f"attempt {self._futile + 1} of {self._attempts} in {wait_s:g} s"
        self._tell(f"{transient.failure.args[0]}; {again}")
        self._wait(wait_s)


class Sleep:
    """Sleeps that `stop` ends; they and `check` raise `Interrupted` then."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def __call__(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self.check()

    @property
    def is_ended(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self.is_ended:
            raise Interrupted("interrupted")

    def stop(self) -> None:
        """End all sleeps, and the transfers of other threads at their next chunk."""
        self._stopping.set()


_KINDS: Mapping[int, type[RegistryFailed]] = {401: Denied, 403: Denied, 404: NotFound}


def no_response(error: Exception, at: str) -> Exception:
    """Return the failure for a connection without a response; `at` names server and resource."""
    cause, reason = cause_of(error), innermost(error)
    tls = isinstance(error, urllib3.exceptions.SSLError) and not _went_away(cause)
    if tls or isinstance(cause, ssl.SSLCertVerificationError):
        return Unreachable(f"{at}: TLS fails: {reason}", reason=reason, hint=TLS_HINT)
    if isinstance(error, urllib3.exceptions.InvalidHeader):
        return RegistryFailed(f"{at}: the response's headers contradict each other: {reason}")
    if isinstance(error, ValueError):  # an invalid URL
        return RegistryFailed(f"{at}: the registry returned an invalid URL")
    hint = TLS_HINT if _went_away(cause) else ""
    failed = Unreachable(f"{at}: no response: {reason}", reason=reason, hint=hint)
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        return failed  # waiting does not help: the host name does not exist
    return Transient(failed)


def _went_away(cause: BaseException) -> bool:
    """Return whether the server closed the connection during TLS; urllib3 wraps this error."""
    ends = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    return any(isinstance(link, ends) for link in (cause, *cause.args))


def failure(response: HTTPResponse, at: str) -> RegistryFailed | Transient:
    """Return the failure for a status; its message holds the registry's own error text."""
    status = response.status
    code, text = _error_of(response)
    server, reason = server_of(response.url or ""), printable(response.reason or "")
    message = f"{at}: {server} answers {status} {reason}".rstrip()
    kind = _KINDS.get(status, RegistryFailed)
    error = kind(f"{message}: {text}" if text else message, hint=_hint(response))
    error.code, error.status = code, status
    if status in TRANSIENT:
        return Transient(error, wait_s=retry_after(response.headers))
    return error


def _hint(response: HTTPResponse) -> str:
    if response.status == HTTPStatus.FORBIDDEN:
        return _RIGHTS_HINT
    if response.status != HTTPStatus.UNAUTHORIZED:
        return ""
    challenge = response.headers.get("WWW-Authenticate", "")
    if "insufficient_scope" in challenge:  # RFC 6750, 3.1
        return f"{_RIGHTS_HINT}; {LOGIN_HINT}"
    return LOGIN_HINT


def no_token(response: HTTPResponse, at: str) -> Denied | Transient:
    """Return the failure for a missing token; never `NotFound`, which concerns images."""
    error = failure(response, at)
    return error if isinstance(error, Transient) else Denied(str(error.args[0]), hint=LOGIN_HINT)


def length_of(response: HTTPResponse) -> int:
    """Return Content-Length in bytes, -1 without one; raises `ValueError` for an invalid one."""
    stated = response.headers.get("Content-Length", "-1")[:_LONGEST_CODE]
    length, *others = {part.strip() for part in stated.split(",")}  # equal values may be repeated
    if others or (length != "-1" and not _NUMBER.fullmatch(length)):
        raise ValueError("invalid Content-Length")
    return int(length)


def _error_of(response: HTTPResponse) -> tuple[str, str]:
    """Return code and one-line message of the first of a body's `errors`; empty if it has none."""
    try:
        content = response.read(_LONGEST_ERROR, decode_content=False)
        error = json.loads(content)["errors"][0]
        code = str(error.get("code", ""))[:_LONGEST_CODE]
        text = f"{code}: {error.get('message', '')}".strip(": ")
    except (*_UNREADABLE, urllib3.exceptions.HTTPError):
        return "", ""
    return code, printable(without_users(" ".join(text.split())))
