"""The bill of materials: an image's packages and sources, read from its files, without a container.

CycloneDX 1.5 JSON, https://cyclonedx.org/docs/1.5/json/. The same image gives the same bytes.
"""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from builder import __version__
from builder.artifacts.flatten import TreeNode
from builder.artifacts.sbom.packages import (
    component,
    debian_packages,
    purl,
    python_packages,
    rpm_packages,
    text_of,
)
from builder.model import LockedSource
from builder.model.inputs import LOCAL_SOURCE, LOOKED_UP, public_url

__all__ = ["bill_of_materials"]

_ENDINGS = re.compile(
    r"(?:\.orig)?\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz|zip|whl|run|sh|deb|rpm|gz|xz|bz2|py)$"
)
_NAMED = re.compile(r"(?P<name>.+?)[-_]v?(?P<version>\d[\w.+~-]*)")


def bill_of_materials(
    nodes: Mapping[str, TreeNode],
    *,
    identifier: str,
    version: str,
    distribution: str,
    digest: str,
    built_from: Sequence[LockedSource] = (),
) -> dict[str, object]:
    """Return the packages of dpkg, RPM and Python in a flattened image, and its source files.

    `built_from` are the locked files that its recipes build. The document says that it is
    incomplete if the RPM database cannot be read, or if neither dpkg nor RPM lists a package.
    """
    system = _os_release(nodes)
    name, system_version = system.get("ID", ""), system.get("VERSION_ID", "")
    release = f"{system.get('ID', distribution)}-{system_version}" if system_version else ""
    components = list(debian_packages(nodes, distribution, release))
    try:
        components += rpm_packages(nodes, release or distribution)
        aggregate = "unknown" if components else "incomplete"
    except ValueError:
        aggregate = "incomplete"
    components += [*python_packages(nodes), *source_components(built_from)]
    unique = {str(one["bom-ref"]): one for one in components}
    operating_system = {
        "type": "operating-system",
        "bom-ref": f"os:{name}-{system_version}",
        "name": name,
        "version": system_version,
    }
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
        "components": [
            *([operating_system] if name else []),
            *(unique[reference] for reference in sorted(unique)),
        ],
        "compositions": [{"aggregate": aggregate, "assemblies": [identifier]}],
    }


def _os_release(nodes: Mapping[str, TreeNode]) -> dict[str, str]:
    """Read os-release: https://www.freedesktop.org/software/systemd/man/latest/os-release.html."""
    values: dict[str, str] = {}
    text = text_of(nodes, "etc/os-release") or text_of(nodes, "usr/lib/os-release")
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name.isidentifier():
            try:
                values[name] = "".join(shlex.split(value)[:1])
            except ValueError:  # an unclosed quotation
                continue
    return values


def source_components(sources: Iterable[LockedSource]) -> Iterator[dict[str, object]]:
    """Yield a component for each source file that the image's steps use, in any stage."""
    for source in sources:
        match = _NAMED.fullmatch(stem := _ENDINGS.sub("", source.file))
        name, version = (match["name"], match["version"]) if match else (stem, "")
        if source.url.startswith(LOOKED_UP):
            name, version, *_ = source.url.partition(":")[2].split("/")
        url = public_url(source.url)
        # These are no URLs to fetch it by.
        is_local = source.url.startswith((LOCAL_SOURCE, *LOOKED_UP))
        where = purl(
            "generic",
            name,
            version,
            qualifiers={
                "checksum": f"sha256:{source.sha256}",
                "download_url": "" if is_local else url,
                "file_name": source.file,
            },
        )
        yield component(
            name,
            version,
            where,
            hashes=[{"alg": "SHA-256", "content": source.sha256}],
            externalReferences=[] if is_local else [{"type": "distribution", "url": url}],
            properties=[{"name": "build-images:built-from", "value": url}],
        )
