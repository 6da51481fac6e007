"""The bill of materials: what an image holds, read from its files without starting it.

CycloneDX 1.5 JSON, https://cyclonedx.org/docs/1.5/json/. The same image gives the same bytes.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from builder import __version__
from builder.artifacts.flatten import Node
from builder.artifacts.sbom import debian, python, rpm, sources
from builder.model import LockedSource

__all__ = ["bill_of_materials"]

_RELEASES = ("etc/os-release", "usr/lib/os-release")


def bill_of_materials(
    nodes: Mapping[str, Node],
    *,
    identifier: str,
    version: str,
    distribution: str,
    digest: str,
    built_from: Sequence[LockedSource] = (),
) -> dict[str, Any]:
    """The packages of dpkg, RPM and Python in a flattened image, and what was built from source.

    `built_from` are the locked files that its recipes build. Where a package database cannot be
    read, the document says that it is incomplete.
    """
    system = _os_release(nodes)
    release = (
        f"{system.get('ID', distribution)}-{system['VERSION_ID']}"
        if system.get("VERSION_ID")
        else ""
    )
    components = [
        *debian.packages(nodes, distribution, release),
        *python.packages(nodes),
        *sources.packages(built_from),
    ]
    whole = True
    try:
        components += list(rpm.packages(nodes, release or distribution))
    except ValueError:
        whole = False
    unique = {str(one["bom-ref"]): one for one in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, digest).urn,
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": "build-images", "version": __version__}
                ]
            },
            "component": {
                "type": "container",
                "bom-ref": identifier,
                "name": identifier,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest.partition(":")[2]}],
            },
        },
        "components": [*_system(system), *(unique[ref] for ref in sorted(unique))],
        "compositions": [
            {"aggregate": "unknown" if whole else "incomplete", "assemblies": [identifier]}
        ],
    }


def _os_release(nodes: Mapping[str, Node]) -> dict[str, str]:
    """https://www.freedesktop.org/software/systemd/man/latest/os-release.html"""
    for path in _RELEASES:
        if text := debian.text_of(nodes, path):
            return dict(_assignments(text))
    return {}


def _assignments(text: str) -> list[tuple[str, str]]:
    found = []
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name.isidentifier():
            try:
                found.append((name, "".join(shlex.split(value)[:1])))
            except ValueError:  # a quotation that does not end
                continue
    return found


def _system(release: Mapping[str, str]) -> list[dict[str, object]]:
    if not release.get("ID"):
        return []
    return [
        {
            "type": "operating-system",
            "bom-ref": f"os:{release['ID']}-{release.get('VERSION_ID', '')}",
            "name": release["ID"],
            "version": release.get("VERSION_ID", ""),
        }
    ]
