"""Failures for a registry's responses, and for missing ones; each names what was requested."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus

import urllib3.exceptions
from urllib3 import HTTPResponse

from builder.registry.credentials import LOGIN_HINT
from builder.registry.failures import Denied, NotThere, RegistryFailed, Transient, Unreachable
from builder.system.web import (
    TRANSIENT,
    cause_of,
    innermost,
    printable,
    retry_after,
    server_of,
    without_users,
)

TLS_HINT = (
    "a site's own authority is named by SSL_CERT_FILE or REQUESTS_CA_BUNDLE; "
    "a registry without TLS by --plain-http HOST"
)
_RIGHTS_HINT = "this login may not do that: ask for the right, or use another login"
_KINDS: Mapping[int, type[RegistryFailed]] = {401: Denied, 403: Denied, 404: NotThere}
_LONGEST_ERROR = 1 << 16
_LONGEST_CODE = 80
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError)
_NUMBER = re.compile(r"[0-9]{1,18}")


def no_response(error: Exception, at: str) -> Exception:
    """Return the failure for a connection without a response; `at` names server and resource."""
    cause, reason = cause_of(error), innermost(error)
    tls = isinstance(error, urllib3.exceptions.SSLError) and not _went_away(cause)
    if tls or isinstance(cause, ssl.SSLCertVerificationError):
        return Unreachable(f"{at}: TLS fails: {reason}", reason=reason, hint=TLS_HINT)
    if isinstance(error, urllib3.exceptions.InvalidHeader):
        return RegistryFailed(f"{at}: the response's headers contradict each other: {reason}")
    if isinstance(error, ValueError):  # an invalid URL
        return RegistryFailed(f"{at}: the registry names an invalid address")
    hint = TLS_HINT if _went_away(cause) else ""
    failed = Unreachable(f"{at}: no answer: {reason}", reason=reason, hint=hint)
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        return failed  # that name does not come to exist by waiting
    return Transient(failed)


def _went_away(cause: BaseException) -> bool:
    """Return whether the server closed the connection during TLS; urllib3 wraps that error."""
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
    """Return the failure for a missing token: never `NotThere`, which is for images."""
    error = failure(response, at)
    return error if isinstance(error, Transient) else Denied(str(error.args[0]), hint=LOGIN_HINT)


def length_of(response: HTTPResponse) -> int:
    """Return Content-Length in bytes, -1 without one; raises `ValueError` for an invalid one."""
    stated = response.headers.get("Content-Length", "-1")[:_LONGEST_CODE]
    length, *others = {part.strip() for part in stated.split(",")}  # the same one twice is one
    if others or (length != "-1" and not _NUMBER.fullmatch(length)):
        raise ValueError("a length that is no number, or several")
    return int(length)


def _error_of(response: HTTPResponse) -> tuple[str, str]:
    """Return code and message, in one line, of the first of a body's `errors`; empty without."""
    try:
        content = response.read(_LONGEST_ERROR, decode_content=False)
        error = json.loads(content)["errors"][0]
        code = str(error.get("code", ""))[:_LONGEST_CODE]
        text = f"{code}: {error.get('message', '')}".strip(": ")
    except (*_UNREADABLE, urllib3.exceptions.HTTPError):
        return "", ""
    return code, printable(without_users(" ".join(text.split())))
