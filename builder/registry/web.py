"""What all requests to servers have in common: which failures pass, and how they are worded."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from builder.system import terminal

# Those that may pass by themselves; every other status is the server's last word.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHOWN = 200  # letters
_DATE = 64  # letters, at most, of a time as headers write it
_DIGITS = 9  # of a number of seconds; what has more is longer than anybody waits
_USER = re.compile(r"://[^/?#\s]*@")


def server_of(url: str) -> str:
    """Host and port, without a user name and a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def without_users(text: str) -> str:
    """A text for people and logs: its URLs without user names and passwords."""
    return _USER.sub("://", text)


def printable(text: str) -> str:
    """A text of somebody else's for people and logs: what would steer a terminal is spelt out."""
    return terminal.printable(text, most=_SHOWN)


def innermost(error: BaseException) -> str:
    """The innermost reason: what wraps it repeats host, port and URL."""
    inner = cause_of(error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return printable(str(inner).splitlines()[0][:120]) if str(inner) else type(inner).__name__


def cause_of(error: BaseException) -> BaseException:
    """The first of a chain of errors."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a server asks to be left alone, 0 if it does not say (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text) if len(text) <= _DIGITS else math.inf
    if len(text) > _DATE:
        return 0.0
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
