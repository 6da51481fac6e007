"""Components of a bill of materials: package URLs, and licences by SPDX's identifiers.

https://github.com/package-url/purl-spec/blob/main/PURL-SPECIFICATION.rst, https://spdx.org/licenses/,
https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import yaml

CHECKSUM, CHECKSUM_OF = "build-images:checksum", "build-images:checksum-of"
_MOST = 40  # licences of one component: some of Debian's packages name hundreds of variants
_LONGEST = 200

_TABLES = yaml.safe_load(Path(__file__).with_name("licences.yaml").read_text(encoding="utf-8"))
_BY_NAME = {**{name.lower(): name for name in _TABLES["identifiers"]}, **_TABLES["other_names"]}
_GNU = re.compile(r"(a?gpl|lgpl|gfdl)-(\d)(?:\.(\d))?(\+)?", re.IGNORECASE)
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
        if version in _TABLES["gnu_versions"][kind]:
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
