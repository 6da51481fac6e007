"""Licences as CycloneDX takes them: SPDX's identifiers where the name is one of theirs.

https://spdx.org/licenses/, https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_MOST = 40  # of one component: some of Debian's packages name hundreds of variants
_LONGEST = 200

# Debian's short names (copyright format 1.0, section 7.1) whose SPDX identifier is another one.
_DEBIAN = {
    "expat": "MIT",
    "mit": "MIT",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-4-clause": "BSD-4-Clause",
    "apache-2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0",
    "artistic-2.0": "Artistic-2.0",
    "zlib": "Zlib",
    "zlib/libpng": "zlib-acknowledgement",
    "isc": "ISC",
    "python-2.0": "Python-2.0",
    "psf-2": "PSF-2.0",
    "cc0": "CC0-1.0",
    "cc0-1.0": "CC0-1.0",
    "cc-by-3.0": "CC-BY-3.0",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-sa-3.0": "CC-BY-SA-3.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0",
    "mpl-1.1": "MPL-1.1",
    "mpl-2.0": "MPL-2.0",
    "openssl": "OpenSSL",
    "unlicense": "Unlicense",
    "curl": "curl",
    "bsl-1.0": "BSL-1.0",
    "boost-1.0": "BSL-1.0",
    "fsfap": "FSFAP",
    "fsful": "FSFUL",
    "fsfullr": "FSFULLR",
    "ofl-1.1": "OFL-1.1",
    "x11": "X11",
    "ntp": "NTP",
    "0bsd": "0BSD",
    "vim": "Vim",
    "unicode": "Unicode-DFS-2016",
}
_GNU = re.compile(r"(a?gpl|lgpl|gfdl)-(\d)(?:\.(\d))?(\+)?", re.IGNORECASE)
_GNU_VERSIONS = {
    "GPL": {"1.0", "2.0", "3.0"},
    "LGPL": {"2.0", "2.1", "3.0"},
    "AGPL": {"1.0", "3.0"},
    "GFDL": {"1.1", "1.2", "1.3"},
}
_COMMON = re.compile(
    r"/usr/share/common-licenses/((?:A?GPL|LGPL|GFDL|Apache|BSD|Artistic|MPL|CC0)[\w.-]*)"
)
_FIELD = re.compile(r"^License:(.*)$", re.MULTILINE)
_ALTERNATIVES = re.compile(r"\s+(?:and|or|and/or)\s+|,\s*|\s*\|\s*", re.IGNORECASE)


def licence(name: str) -> dict[str, object]:
    """One licence: by its SPDX identifier if the name, as Debian writes it, has one."""
    known = _spdx(name)
    return {"license": {"id": known} if known else {"name": name[:_LONGEST]}}


def licences(names: Iterable[str]) -> list[dict[str, object]]:
    """Licences in order, each once."""
    found = {str(one): one for name in names if name.strip() and (one := licence(name.strip()))}
    return [found[key] for key in sorted(found)][:_MOST]


def _spdx(name: str) -> str:
    plain = name.lower()
    if plain in _DEBIAN:
        return _DEBIAN[plain]
    gnu = _GNU.fullmatch(name)
    if gnu is None:
        return ""
    kind, version = gnu[1].upper(), f"{gnu[2]}.{gnu[3] or '0'}"
    if version not in _GNU_VERSIONS[kind]:
        return ""
    return f"{kind}-{version}-{'or-later' if gnu[4] else 'only'}"


def of_copyright(text: str) -> list[dict[str, object]]:
    """What a Debian copyright file names: its `License` fields, or else the common licences."""
    names: list[str] = []
    if text.startswith("Format:"):  # elsewhere, lines that begin so go on in prose
        fields = _FIELD.findall(text)
        names = [part for field in fields for part in _ALTERNATIVES.split(field.strip())]
    return licences(names or _without_dots(_COMMON.findall(text)))


def _without_dots(names: Sequence[str]) -> Iterator[str]:
    """Names at the end of a sentence."""
    return (name.rstrip(".-") for name in names)


def expression(text: str) -> list[dict[str, object]]:
    """A licence as RPM and Python packages state it: in one line, which may be an expression."""
    words = " ".join(text.split())
    if not words or words.upper() == "UNKNOWN":
        return []
    return [licence(words)]
