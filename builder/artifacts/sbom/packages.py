"""Packages of dpkg and Python, out of the files that their installers leave.

https://packaging.python.org/en/latest/specifications/core-metadata/
"""

from __future__ import annotations

import email.parser
import posixpath
import re
from collections.abc import Iterator, Mapping
from email.message import Message

from builder.artifacts.flatten import Node
from builder.artifacts.sbom.components import component, expression, licences, of_copyright, purl
from builder.model.digests import digest_of

_STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info/"
_DOC = "usr/share/doc/"
_METADATA = re.compile(r"(?:^|/)[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)$")
_CLASSIFIER = "License :: OSI Approved :: "
_SHORT = 60  # characters; longer ones are the text of a licence, not its name


def data_of(nodes: Mapping[str, Node], path: str) -> bytes | None:
    """Return the content of a regular file; None if there is none at the path."""
    node = nodes.get(path)
    return node.read() if node and node.source is not None else None


def text_of(nodes: Mapping[str, Node], path: str) -> str:
    """Return the text of a regular file; empty if there is none at the path."""
    return (data_of(nodes, path) or b"").decode(errors="replace")


def debian_packages(
    nodes: Mapping[str, Node], distribution: str, release: str
) -> Iterator[dict[str, object]]:
    """Yield the installed packages of dpkg. `release` is such as `debian-13`, or empty."""
    for path in [_STATUS, *(name for name in nodes if name.startswith(f"{_STATUS}.d/"))]:
        for paragraph in text_of(nodes, path).split("\n\n"):
            lines = [line for line in paragraph.splitlines() if line[:1] not in {" ", "\t"}]
            pairs = [line.partition(":")[::2] for line in lines]
            fields = {name: value.strip() for name, value in pairs}
            state = fields.get("Status", "installed").split()[-1:]
            if "Package" in fields and state == ["installed"]:
                yield _debian_package(nodes, fields, distribution, release)


def _debian_package(
    nodes: Mapping[str, Node], fields: Mapping[str, str], distribution: str, release: str
) -> dict[str, object]:
    name, version = fields["Package"], fields.get("Version", "")
    arch = fields.get("Architecture", "")
    qualifiers = {"arch": arch, "distro": release}
    # Packages ship a list of their files' checksums.
    lists = (f"{_INFO}{name}.md5sums", f"{_INFO}{name}:{arch}.md5sums")
    checksums = next((path for path in lists if data_of(nodes, path) is not None), "")
    maintainer = fields.get("Maintainer", "")
    return component(
        name,
        version,
        purl("deb", name, version, namespace=distribution, qualifiers=qualifiers),
        licences=of_copyright(_copyright(nodes, name)),
        checksum=digest_of(data_of(nodes, checksums) or b"") if checksums else "",
        checksum_of=f"/{checksums}",
        supplier={"name": maintainer.partition("<")[0].strip()} if maintainer else {},
    )


def _copyright(nodes: Mapping[str, Node], name: str) -> str:
    """Return a package's copyright file; its folder may be a link to that of another package."""
    folder = f"{_DOC}{name}"
    node = nodes.get(folder)
    if node and node.member.issym():
        folder = posixpath.normpath(posixpath.join(_DOC, node.member.linkname)).lstrip("/")
    return text_of(nodes, f"{folder}/copyright")


def python_packages(nodes: Mapping[str, Node]) -> Iterator[dict[str, object]]:
    """Yield the packages of Python that have metadata, those of the distribution too."""
    for path, node in nodes.items():
        if node.source is None or not _METADATA.search(path):
            continue
        headers = email.parser.BytesHeaderParser().parsebytes(node.read())
        name, version = str(headers.get("Name") or ""), str(headers.get("Version") or "")
        if name and version:
            folder = posixpath.dirname(path)
            where = purl("pypi", re.sub(r"[-_.]+", "-", name).lower(), version, qualifiers={})
            record = data_of(nodes, f"{folder}/RECORD")
            yield component(
                name,
                version,
                where,
                reference=f"{where}#{folder}",
                licences=_python_licences(headers),
                checksum="" if record is None else digest_of(record),
                checksum_of=f"/{folder}/RECORD",
            )


def _python_licences(headers: Message) -> list[dict[str, object]]:
    """Return the newest field that is set: the expression, then the name, then the classifiers."""
    for field in ("License-Expression", "License"):
        stated = str(headers.get(field) or "")
        if len(stated) <= _SHORT and (stated_licences := expression(stated)):
            return stated_licences
    classifiers = [str(one) for one in headers.get_all("Classifier") or []]
    return licences(
        one.removeprefix(_CLASSIFIER) for one in classifiers if one.startswith(_CLASSIFIER)
    )
