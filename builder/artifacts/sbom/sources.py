"""What an image's recipes built from source: the locked files, by URL and checksum."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit, urlunsplit

from builder.artifacts.sbom.components import component, purl
from builder.model import LockedSource
from builder.model.inputs import DEBIAN_SOURCE, LOCAL_SOURCE

_ENDINGS = re.compile(
    r"(?:\.orig)?\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz|zip|whl|run|sh|deb|rpm|gz|xz|bz2|py)$"
)
_NAMED = re.compile(r"(?P<name>.+?)[-_]v?(?P<version>\d[\w.+~-]*)")


def packages(sources: Iterable[LockedSource]) -> Iterator[dict[str, object]]:
    """A component for each file that the image's steps are given, in whichever stage."""
    for source in sources:
        name, version = _named(source)
        url = _public(source.url)
        nowhere = source.url.startswith((DEBIAN_SOURCE, LOCAL_SOURCE))  # no URL to fetch it by
        links = [] if nowhere else [{"type": "distribution", "url": url}]
        where = purl(
            "generic",
            name,
            version,
            qualifiers={
                "checksum": f"sha256:{source.sha256}",
                "download_url": url if links else "",
                "file_name": source.file,
            },
        )
        yield component(
            name,
            version,
            where,
            hashes=[{"alg": "SHA-256", "content": source.sha256}],
            externalReferences=links,
            properties=[{"name": "build-images:built-from", "value": url}],
        )


def _named(source: LockedSource) -> tuple[str, str]:
    """Name and version, as Debian's archive or the file's name has them."""
    if source.url.startswith(DEBIAN_SOURCE):
        name, _, version = source.url.removeprefix(DEBIAN_SOURCE).partition("/")
        return name, version
    stem = _ENDINGS.sub("", source.file)
    found = _NAMED.fullmatch(stem)
    return (found["name"], found["version"]) if found else (stem, "")


def _public(url: str) -> str:
    """A URL without a user, a password or a query: those may be secrets."""
    parts = urlsplit(url)
    if not parts.netloc:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
