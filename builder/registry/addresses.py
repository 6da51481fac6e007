"""URLs that a registry gives: those that two readers would send to different hosts are none."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from urllib3.util import parse_url

LONGEST = 8 << 10  # characters of an address, and of a header that is taken apart
_PORTS = {"http": 80, "https": 443}
_ODD = re.compile(r"[\\\x00-\x1f]")
# A link and its parameters (RFC 8288). No part of it can be passed over by another one, so that
# searching a header takes a time in proportion to its length.
_LINK = re.compile(r"<([^<>]*)>([^<>,]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*"?next"?\s*(?:;|$)', re.IGNORECASE)


def joined(base: str, given: str) -> str:
    """An absolute URL of what a registry wrote: an upload's, the next page's, a redirect's.

    Raises `ValueError` for what is none, is longer than `LONGEST`, names no host or a user, or
    holds a backslash: of `https://a\\@b/` one reader takes the host to be a, another b, and secrets
    go by the host.
    """
    if len(given) > LONGEST:
        raise ValueError(f"an address of {len(given)} characters")
    if _ODD.search(given):
        raise ValueError("a backslash or a control character in an address")
    url = urljoin(base, given)
    seen = urlsplit(url)
    if "@" in seen.netloc or origin(url)[1].strip("[]") != (seen.hostname or ""):
        raise ValueError("an address whose host is not plain")
    return url


def next_page(link: str) -> str:
    """The address of a list's next page out of a `Link` header; empty for the last page.

    Raises `ValueError` for a header that is longer than `LONGEST`.
    """
    if len(link) > LONGEST:
        raise ValueError(f"a Link header of {len(link)} characters")
    addresses = (address for address, more in _LINK.findall(link) if _NEXT.search(more))
    return next(addresses, "")


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port, as they are asked: what may see the credentials for a registry.

    Raises `ValueError` for what is no URL.
    """
    parts = parse_url(url)
    scheme = (parts.scheme or "").lower()
    if not parts.host or parts.auth or scheme not in _PORTS:
        raise ValueError("an address without a host, or with a user")
    return scheme, parts.host.lower(), parts.port or _PORTS[scheme]
