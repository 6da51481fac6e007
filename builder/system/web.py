"""Helpers for all HTTP requests: transient status, the text of errors, URLs and headers."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from urllib3.util import parse_url

from builder.system import terminal

# Failures that may pass by themselves; any other status is final.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHOWN = 200  # letters
_DATE = 64  # letters, at most, of a time as headers write it
_DIGITS = 9  # of a number of seconds; what has more is longer than anybody waits
_USER = re.compile(r"://[^/?#\s]*@")


def server_of(url: str) -> str:
    """Return host and port, without a user name and a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def without_users(text: str) -> str:
    """Return a text for people and logs: its URLs without user names and passwords."""
    return _USER.sub("://", text)


def printable(text: str) -> str:
    """Return an untrusted text for people and logs: control characters are escaped."""
    return terminal.printable(text, most=_SHOWN)


def innermost(error: BaseException) -> str:
    """Return the innermost reason: the errors around it repeat host, port and URL."""
    inner = cause_of(error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return printable(str(inner).splitlines()[0][:120]) if str(inner) else type(inner).__name__


def cause_of(error: BaseException) -> BaseException:
    """Return the first of a chain of errors."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of Retry-After, 0 without one (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text) if len(text) <= _DIGITS else math.inf
    if len(text) > _DATE:
        return 0.0
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0


LONGEST = 8 << 10  # characters of an address, and of a header that is taken apart
_PORTS = {"http": 80, "https": 443}
_ODD = re.compile(r"[\\\x00-\x1f]")
# A link and its parameters (RFC 8288). No part of it can be passed over by another one, so that
# searching a header takes a time in proportion to its length.
_LINK = re.compile(r"<([^<>]*)>([^<>,]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*"?next"?\s*(?:;|$)', re.IGNORECASE)


def joined(base: str, address: str) -> str:
    """Return an absolute URL of a registry's address: an upload's, a next page's, a redirect's.

    Raises `ValueError` for an invalid one, or one that is longer than `LONGEST`, names no host or a
    user, or holds a backslash: parsers disagree about the host of `https://a\\@b/`, and secrets go
    by the host.
    """
    if len(address) > LONGEST:
        raise ValueError(f"an address of {len(address)} characters")
    if _ODD.search(address):
        raise ValueError("a backslash or a control character in an address")
    url = urljoin(base, address)
    parts = urlsplit(url)
    if "@" in parts.netloc or origin(url)[1].strip("[]") != (parts.hostname or ""):
        raise ValueError("an address whose host is not plain")
    return url


def next_page(link: str) -> str:
    """Return the address of a list's next page from a `Link` header; empty for the last page.

    Raises `ValueError` for a header that is longer than `LONGEST`.
    """
    if len(link) > LONGEST:
        raise ValueError(f"a Link header of {len(link)} characters")
    addresses = (address for address, more in _LINK.findall(link) if _NEXT.search(more))
    return next(addresses, "")


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port: the credentials for a registry go to its origin alone.

    Raises `ValueError` for a text that is no URL.
    """
    parts = parse_url(url)
    scheme = (parts.scheme or "").lower()
    if not parts.host or parts.auth or scheme not in _PORTS:
        raise ValueError("an address without a host, or with a user")
    return scheme, parts.host.lower(), parts.port or _PORTS[scheme]
