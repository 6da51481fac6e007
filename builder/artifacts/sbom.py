"""The bill of materials: what an image holds, read from its files without starting it.

CycloneDX 1.5 JSON, https://cyclonedx.org/docs/1.5/json/
"""

from __future__ import annotations

import email.parser
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from builder.artifacts.flatten import Node

_DPKG_STATUS = "var/lib/dpkg/status"
_DPKG_FOLDER = "var/lib/dpkg/status.d/"
_PYTHON_METADATA = re.compile(r"(?:^|/)[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)$")


def bill_of_materials(
    nodes: Mapping[str, Node], *, identifier: str, version: str, distribution: str, digest: str
) -> dict[str, Any]:
    """The packages of dpkg and of Python in a flattened image, as a CycloneDX document."""
    components = [*_dpkg(nodes, distribution), *_python(nodes)]
    unique = {one["bom-ref"]: one for one in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "name": identifier,
                "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest.partition(":")[2]}],
            }
        },
        "components": [unique[ref] for ref in sorted(unique)],
    }


def _dpkg(nodes: Mapping[str, Node], distribution: str) -> Iterator[dict[str, Any]]:
    for path in [_DPKG_STATUS, *(name for name in nodes if name.startswith(_DPKG_FOLDER))]:
        node = nodes.get(path)
        if node is None or node.source is None:
            continue
        for paragraph in node.read().decode(errors="replace").split("\n\n"):
            fields = dict(_fields(paragraph))
            if "Package" in fields and fields.get("Status", "installed").split()[-1:] == [
                "installed"
            ]:
                yield _debian_package(fields, distribution)


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    for line in paragraph.splitlines():
        if line[:1] not in {" ", "\t"}:
            name, _, value = line.partition(":")
            yield name, value.strip()


def _debian_package(fields: Mapping[str, str], distribution: str) -> dict[str, Any]:
    name, version, arch = (
        fields["Package"],
        fields.get("Version", ""),
        fields.get("Architecture", ""),
    )
    purl = f"pkg:deb/{distribution}/{name}@{_escaped(version)}?arch={arch}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _python(nodes: Mapping[str, Node]) -> Iterator[dict[str, Any]]:
    for path, node in nodes.items():
        if node.source is None or not _PYTHON_METADATA.search(path):
            continue
        headers = email.parser.BytesHeaderParser().parsebytes(node.read())
        name, version = headers.get("Name"), headers.get("Version")
        if not name or not version:
            continue
        folder = posixpath.dirname(path)
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{_escaped(version)}"
        yield {
            "type": "library",
            "bom-ref": f"{purl}#{folder}",
            "name": name,
            "version": version,
            "purl": purl,
        }


def _escaped(version: str) -> str:
    return version.replace("+", "%2B").replace(":", "%3A")
