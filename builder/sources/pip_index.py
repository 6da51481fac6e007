"""pip's packages through the cache: an index on loopback in front of the real one.

Package indices are served over HTTPS, and what is encrypted cannot be kept by a proxy. So build
steps find a configuration of pip at `/.packages` that names an index on the cache's own address,
`http://127.0.0.1:PORT/via/https/HOST/simple`. It passes the index's pages on as they come, with
links that lead through it too. pip compares each file with the checksum in the page as always
(https://peps.python.org/pep-0503/). Which index that is, this machine's own pip says.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from builder.system.process import Processes

_VIA = "/via/"
_TARGET = re.compile(rf"{_VIA}(?P<scheme>https?)/(?P<host>[^/]+)(?P<path>/.*)")
# No < in a tag: a page of anchors without an end is read once, and PEP 503 writes &lt; there.
_ABSOLUTE = re.compile(rb"""(?P<start><a\s[^<>]*?href\s*=\s*["'])(?P<scheme>https?)://""", re.I)
_ROOTED = re.compile(rb"""(?P<start><a\s[^<>]*?href\s*=\s*["'])/(?!/|via/)""", re.I)


def target(url: str, address: str) -> str:
    """Return the real URL of one on the cache's own address, or of its path; else empty."""
    match = _TARGET.fullmatch(url.removeprefix(address))
    return f"{match['scheme']}://{unquote(match['host'])}{match['path']}" if match else ""


def via(url: str, address: str) -> str:
    """Return the URL on the cache's address that stands for another, without its login."""
    parts = urlsplit(url)
    return f"{address}{_VIA}{parts.scheme}/{parts.netloc.rpartition('@')[2]}{parts.path}"


def rewrite_links(page: bytes, url: str) -> bytes:
    """Let the links of an index's page lead through the cache. `url` is the page's own."""
    parts = urlsplit(url)
    here = f"{_VIA}{parts.scheme}/{parts.netloc}/".encode()
    page = _ABSOLUTE.sub(rb"\g<start>" + _VIA.encode() + rb"\g<scheme>/", page)
    return _ROOTED.sub(rb"\g<start>" + here.replace(b"\\", b"\\\\"), page)


def own_index(processes: Processes) -> str:
    """Return the index of this machine's pip: a configured one, else its default; or nothing."""
    for arguments, pattern in (
        (("config", "list"), r"^(?::env:|install|global|site|user)\.index-url='([^']+)'"),
        (("install", "--help"), r"\(default\s+(https?://[^\s)]+)\)"),
    ):
        argv = [sys.executable, "-m", "pip", *arguments]
        done = processes.capture(argv, check=False, timeout_s=60)
        if match := re.search(pattern, done.stdout, re.MULTILINE):
            return match[1]
    return ""
