"""One component of a bill of materials, and the package URL that names it.

https://github.com/package-url/purl-spec/blob/main/PURL-SPECIFICATION.rst
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

CHECKSUM, CHECKSUM_OF = "build-images:checksum", "build-images:checksum-of"


def purl(
    kind: str,
    name: str,
    version: str,
    *,
    namespace: str = "",
    qualifiers: Mapping[str, str] | None = None,
) -> str:
    """A package URL; empty qualifiers are left out, the others are sorted by name."""
    path = "/".join(_escaped(part) for part in (kind, namespace, name) if part)
    given = sorted((key, value) for key, value in (qualifiers or {}).items() if value)
    query = "&".join(f"{key}={_escaped(value)}" for key, value in given)
    return (
        f"pkg:{path}"
        + (f"@{_escaped(version)}" if version else "")
        + (f"?{query}" if query else "")
    )


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
    """A library in CycloneDX. `where` is its package URL, `reference` what else tells it apart.

    `checksum` is `sha256:…` of what `checksum_of` says: distributions do not ship a checksum of the
    package file with what they install.
    """
    found: dict[str, object] = {
        "type": "library",
        "bom-ref": reference or where,
        "name": name,
        "version": version,
        "purl": where,
    }
    if licences:
        found["licenses"] = list(licences)
    if checksum:
        found["properties"] = [
            {"name": CHECKSUM, "value": checksum},
            {"name": CHECKSUM_OF, "value": checksum_of},
        ]
    return {**found, **{key: value for key, value in more.items() if value}}
