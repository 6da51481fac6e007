"""Components of a bill of materials: package URLs, and licences by SPDX's identifiers.

https://github.com/package-url/purl-spec/blob/main/PURL-SPECIFICATION.rst, https://spdx.org/licenses/,
https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

CHECKSUM, CHECKSUM_OF = "build-images:checksum", "build-images:checksum-of"
_MOST = 40  # licences of one component: some of Debian's packages name hundreds of variants
_LONGEST = 200

# Debian's short names (copyright format 1.0, section 7.1) whose SPDX identifier is another one.
_OTHER_IDENTIFIERS = {
    "expat": "MIT",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0",
    "zlib/libpng": "zlib-acknowledgement",
    "psf-2": "PSF-2.0",
    "cc0": "CC0-1.0",
    "boost-1.0": "BSL-1.0",
    "unicode": "Unicode-DFS-2016",
}
_IDENTIFIERS = (
    *("MIT", "BSD-2-Clause", "BSD-3-Clause", "BSD-4-Clause", "Apache-2.0", "Artistic-2.0", "Zlib"),
    *("ISC", "Python-2.0", "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0"),
    *("MPL-1.1", "MPL-2.0", "OpenSSL", "Unlicense", "curl", "BSL-1.0", "FSFAP", "FSFUL"),
    *("FSFULLR", "OFL-1.1", "X11", "NTP", "0BSD", "Vim"),
)
_BY_NAME = {**{name.lower(): name for name in _IDENTIFIERS}, **_OTHER_IDENTIFIERS}
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


def purl(
    kind: str,
    name: str,
    version: str,
    *,
    namespace: str = "",
    qualifiers: Mapping[str, str],
) -> str:
    """Return a package URL; empty qualifiers are left out, the others are sorted by name."""
    path = "/".join(_escaped(part) for part in (kind, namespace, name) if part)
    pairs = sorted((key, value) for key, value in qualifiers.items() if value)
    query = "&".join(f"{key}={_escaped(value)}" for key, value in pairs)
    at, mark = "@" if version else "", "?" if query else ""
    return f"pkg:{path}{at}{_escaped(version)}{mark}{query}"


def _escaped(text: str) -> str:
    return quote(text, safe="-._~")


def component(
    name: str,
    version: str,
    where: str,
    *,
    reference: str = "",
    licences: Sequence[Mapping[str, object]] = (),
    checksum: str = "",
    checksum_of: str = "",
    **more: object,
) -> dict[str, object]:
    """Return a library as CycloneDX has it; empty values are left out.

    `where` is its package URL, `reference` another unique name. `checksum` is `sha256:…` of
    `checksum_of`: distributions ship no checksum of the package file with its content.
    """
    properties = [
        {"name": CHECKSUM, "value": checksum},
        {"name": CHECKSUM_OF, "value": checksum_of},
    ]
    if checksum:
        more = {"properties": properties, **more}
    known = {
        "type": "library",
        "bom-ref": reference or where,
        "name": name,
        "version": version,
        "purl": where,
    }
    extra = {"licenses": list(licences), **more}
    return {**known, **{key: value for key, value in extra.items() if value}}


def licence(name: str) -> dict[str, object]:
    """Return one licence: by its SPDX identifier if the name, as Debian writes it, has one."""
    identifier = _BY_NAME.get(name.lower(), "")
    if gnu := _GNU.fullmatch(name):
        kind, version = gnu[1].upper(), f"{gnu[2]}.{gnu[3] or '0'}"
        if version in _GNU_VERSIONS[kind]:
            identifier = f"{kind}-{version}-{'or-later' if gnu[4] else 'only'}"
    return {"license": {"id": identifier} if identifier else {"name": name[:_LONGEST]}}


def licences(names: Iterable[str]) -> list[dict[str, object]]:
    """Return licences in order, each once."""
    unique = {str(one): one for name in names if name.strip() and (one := licence(name.strip()))}
    return [unique[key] for key in sorted(unique)][:_MOST]


def of_copyright(text: str) -> list[dict[str, object]]:
    """Return the licences that a Debian copyright file names in fields, or else in its text."""
    names = [name.rstrip(".-") for name in _COMMON.findall(text)]  # they may end a sentence
    if text.startswith("Format:"):  # elsewhere, lines that begin with `License:` go on in prose
        fields = _FIELD.findall(text)
        names = [part for field in fields for part in _ALTERNATIVES.split(field.strip())] or names
    return licences(names)


def expression(text: str) -> list[dict[str, object]]:
    """Return a licence as RPM and Python packages state it: in one line, perhaps an expression."""
    line = " ".join(text.split())
    return [licence(line)] if line and line.upper() != "UNKNOWN" else []
