"""Helpers for all HTTP requests: temporary failures, error texts, URLs and headers."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from builder.system import terminal

# The status of failures that may be temporary; any other status is final.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHOWN = 200  # characters
_DATE = 64  # characters of the longest accepted date in a header
_DIGITS = 9  # digits of the longest accepted number of seconds
_USER = re.compile(r"://[^/?#\s]*@")


def server_of(url: str) -> str:
    """Return host and port of a URL, without user name and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def without_users(text: str) -> str:
    """Return a text for messages and logs, without user names and passwords in its URLs."""
    return _USER.sub("://", text)


def printable(text: str) -> str:
    """Return untrusted text for messages and logs: control characters are escaped."""
    return terminal.printable(text, most=_SHOWN)


def innermost(error: BaseException) -> str:
    """Return the innermost reason: the outer errors repeat host, port and URL."""
    inner = cause_of(error)
    if isinstance(inner, LocationParseError):  # its text may hold the password of a proxy
        return "the URL, or the proxy's in the environment ($https_proxy), is invalid"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return printable(str(inner).splitlines()[0][:120]) if str(inner) else type(inner).__name__


def cause_of(error: BaseException) -> BaseException:
    """Return the original error of a chain."""
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


LONGEST = 8 << 10  # characters of a URL, and of a header that is parsed
_PORTS = {"http": 80, "https": 443}
_ODD = re.compile(r"[\\\x00-\x1f]")
# A link and its parameters (RFC 8288). Its parts cannot match the same text, so the time of a
# search is proportional to the length of the header.
_LINK = re.compile(r"<([^<>]*)>([^<>,]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*"?next"?\s*(?:;|$)', re.IGNORECASE)


def joined(base: str, address: str) -> str:
    """Return the absolute URL of an address that a registry sent: upload, next page or redirect.

    Raises `ValueError` for a URL that is invalid, longer than `LONGEST`, has no host or has a user,
    or contains a backslash: parsers disagree about the host of `https://a\\@b/`, and the host
    decides which secrets are sent.
    """
    if len(address) > LONGEST:
        raise ValueError(f"a URL of {len(address)} characters")
    if _ODD.search(address):
        raise ValueError("a backslash or a control character in a URL")
    url = urljoin(base, address)
    parts = urlsplit(url)
    if "@" in parts.netloc or origin(url)[1].strip("[]") != (parts.hostname or ""):
        raise ValueError("a URL with an invalid host")
    return url


def next_page(link: str) -> str:
    """Return the URL of a list's next page from a `Link` header; empty for the last page.

    Raises `ValueError` for a header longer than `LONGEST`.
    """
    if len(link) > LONGEST:
        raise ValueError(f"a Link header of {len(link)} characters")
    addresses = (address for address, more in _LINK.findall(link) if _NEXT.search(more))
    return next(addresses, "")


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port: a registry's credentials are sent only to its origin.

    Raises `ValueError` for an invalid URL.
    """
    parts = parse_url(url)
    scheme = (parts.scheme or "").lower()
    if not parts.host or parts.auth or scheme not in _PORTS:
        raise ValueError("a URL without a host or with a user name")
    return scheme, parts.host.lower(), parts.port or _PORTS[scheme]
