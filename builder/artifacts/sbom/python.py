"""Packages of Python, out of the metadata that installers leave.

https://packaging.python.org/en/latest/specifications/core-metadata/
"""

from __future__ import annotations

import email.parser
import posixpath
import re
from collections.abc import Iterator, Mapping
from email.message import Message

from builder.artifacts.flatten import Node
from builder.artifacts.sbom.components import component, purl
from builder.artifacts.sbom.licences import expression, licences
from builder.model.digests import digest_of

_METADATA = re.compile(r"(?:^|/)[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)$")
_CLASSIFIER = "License :: OSI Approved :: "
_SHORT = 60  # characters; longer ones are the text of a licence, not its name


def packages(nodes: Mapping[str, Node]) -> Iterator[dict[str, object]]:
    """The packages that have metadata, those of the distribution too."""
    for path, node in nodes.items():
        if node.source is None or not _METADATA.search(path):
            continue
        headers = email.parser.BytesHeaderParser().parsebytes(node.read())
        name, version = str(headers.get("Name") or ""), str(headers.get("Version") or "")
        if name and version:
            yield _package(nodes, path, headers, name, version)


def _package(
    nodes: Mapping[str, Node], path: str, headers: Message, name: str, version: str
) -> dict[str, object]:
    where = purl("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)
    record = nodes.get(posixpath.join(posixpath.dirname(path), "RECORD"))
    listed = record if record and record.source is not None else None
    return component(
        name,
        version,
        where,
        reference=f"{where}#{posixpath.dirname(path)}",
        licences=_licences(headers),
        checksum=digest_of(listed.read()) if listed else "",
        checksum_of=f"/{listed.path}" if listed else "",
    )


def _licences(headers: Message) -> list[dict[str, object]]:
    """The newest field that is there: the expression, then the name, then the classifiers."""
    for field in ("License-Expression", "License"):
        stated = str(headers.get(field) or "")
        if stated and len(stated) <= _SHORT and (found := expression(stated)):
            return found
    classifiers = [str(one) for one in headers.get_all("Classifier") or []]
    return licences(
        one.removeprefix(_CLASSIFIER) for one in classifiers if one.startswith(_CLASSIFIER)
    )
