"""What a registry's answers mean, or that there is none: failures that name the thing asked for."""

from __future__ import annotations

import json
import re
import socket
import ssl

import requests
import urllib3.exceptions

from builder.registry.credentials import LOGIN_HINT
from builder.registry.failures import Denied, NotThere, Passing, RegistryFailed, Unreachable
from builder.registry.web import (
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
_LONGEST_ERROR = 1 << 16
_LONGEST_CODE = 80
_NUMBER = re.compile(r"[0-9]{1,18}")


def lost(error: Exception, at: str) -> Exception:
    """The failure for a connection that gave no answer; `at` is what was asked for, and where."""
    cause, reason = cause_of(error), innermost(error)
    tls = isinstance(error, requests.exceptions.SSLError) and not _went_away(cause)
    if tls or isinstance(cause, ssl.SSLCertVerificationError):
        return Unreachable(f"{at}: TLS fails: {reason}", reason=reason, hint=TLS_HINT)
    if isinstance(error, requests.exceptions.InvalidHeader):
        return RegistryFailed(f"{at}: the answer's headers contradict each other: {reason}")
    if isinstance(error, ValueError):  # requests' errors for URLs that are none
        return RegistryFailed(f"{at}: the registry names an address that is none")
    hint = TLS_HINT if _went_away(cause) else ""
    failed = Unreachable(f"{at}: no answer: {reason}", reason=reason, hint=hint)
    if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
        return failed  # that name does not come to exist by waiting
    return Passing(failed)


def _went_away(cause: BaseException) -> bool:
    """Whether TLS ended because who is there was gone; urllib3 only names that error in its own."""
    ends = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    return any(isinstance(one, ends) for one in (cause, *cause.args))


def broken(error: Exception, at: str) -> Passing:
    """The failure for an answer whose body broke off."""
    reason = innermost(error)
    return Passing(Unreachable(f"{at}: broke off: {reason}", reason=reason))


def failure(answer: requests.Response, at: str) -> RegistryFailed | Passing:
    """What a status means; the registry's own words are in it."""
    code, said = _said(answer)
    text = f"{at}: {server_of(answer.url)} answers {answer.status_code}"
    text += f" {printable(answer.reason or '')}"
    found = _by_status(answer, f"{text.rstrip()}: {said}" if said else text.rstrip())
    (found.failure if isinstance(found, Passing) else found).code = code
    return found


def no_token(answer: requests.Response, at: str) -> Denied | Passing:
    """The failure for a server of tokens that gives none: never `NotThere`, which is of images."""
    found = failure(answer, at)
    return found if isinstance(found, Passing) else Denied(str(found.args[0]), hint=LOGIN_HINT)


def length_of(answer: requests.Response) -> int:
    """How many bytes an answer is said to have, -1 if it does not say; `ValueError` for rubbish."""
    stated = answer.headers.get("Content-Length", "-1")[:_LONGEST_CODE]
    length, *others = {one.strip() for one in stated.split(",")}  # the same one twice is one
    if others or (length != "-1" and not _NUMBER.fullmatch(length)):
        raise ValueError("a length that is no number, or several")
    return int(length)


def whole(answer: requests.Response, limit: int) -> bytes:
    """The body of an answer, and at most one byte more than `limit`.

    Raises urllib3's errors, and `ConnectionError` when it is shorter than it was said to be.
    """
    content: bytes = answer.raw.read(limit + 1, decode_content=False)
    if len(content) < min(length_of(answer), limit):
        raise ConnectionError(f"{len(content)} of {length_of(answer)} bytes came")
    return content


def _by_status(answer: requests.Response, text: str) -> RegistryFailed | Passing:
    status = answer.status_code
    if status == requests.codes.unauthorized:
        lacks = "insufficient_scope" in answer.headers.get("WWW-Authenticate", "")  # RFC 6750, 3.1
        return Denied(text, hint=f"{_RIGHTS_HINT}; {LOGIN_HINT}" if lacks else LOGIN_HINT)
    if status == requests.codes.forbidden:
        return Denied(text, hint=_RIGHTS_HINT)
    if status == requests.codes.not_found:
        return NotThere(text)
    if status in TRANSIENT:
        return Passing(RegistryFailed(text), wait_s=retry_after(answer.headers))
    return RegistryFailed(text)


def _said(answer: requests.Response) -> tuple[str, str]:
    """The registry's code and words, in one line: `errors: [{code, message}]` if it says so."""
    try:
        content = answer.raw.read(_LONGEST_ERROR, decode_content=False)
        found = json.loads(content)["errors"][0]
        code = str(found.get("code", ""))[:_LONGEST_CODE]
        text = f"{code}: {found.get('message', '')}".strip(": ")
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        return "", ""
    except urllib3.exceptions.HTTPError:
        return "", ""
    return code, printable(without_users(" ".join(text.split())))
