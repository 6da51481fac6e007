"""Packages of dpkg, out of its status file, its lists of checksums and the copyright files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

from builder.artifacts.flatten import Node
from builder.artifacts.sbom.components import component, purl
from builder.artifacts.sbom.licences import of_copyright
from builder.model.digests import digest_of

_STATUS = "var/lib/dpkg/status"
_FOLDER = "var/lib/dpkg/status.d/"
_INFO = "var/lib/dpkg/info/"
_DOC = "usr/share/doc/"


def packages(
    nodes: Mapping[str, Node], distribution: str, release: str
) -> Iterator[dict[str, object]]:
    """The packages that are installed. `release` is such as `debian-13`, or empty."""
    for path in [_STATUS, *(name for name in nodes if name.startswith(_FOLDER))]:
        for paragraph in text_of(nodes, path).split("\n\n"):
            fields = dict(_fields(paragraph))
            state = fields.get("Status", "installed").split()[-1:]
            if "Package" in fields and state == ["installed"]:
                yield _package(nodes, fields, distribution, release)


def text_of(nodes: Mapping[str, Node], path: str) -> str:
    """The text of a regular file, whichever links lead to it; empty if there is none."""
    node = nodes.get(path)
    return node.read().decode(errors="replace") if node and node.source is not None else ""


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    for line in paragraph.splitlines():
        if line[:1] not in {" ", "\t"}:
            name, _, value = line.partition(":")
            yield name, value.strip()


def _package(
    nodes: Mapping[str, Node], fields: Mapping[str, str], distribution: str, release: str
) -> dict[str, object]:
    name, version = fields["Package"], fields.get("Version", "")
    arch = fields.get("Architecture", "")
    where = purl(
        "deb",
        name,
        version,
        namespace=distribution,
        qualifiers={"arch": arch, "distro": release},
    )
    checksum, of = _checksum(nodes, name, arch)
    return component(
        name,
        version,
        where,
        licences=of_copyright(_copyright(nodes, name)),
        checksum=checksum,
        checksum_of=of,
        supplier=_supplier(fields.get("Maintainer", "")),
    )


def _copyright(nodes: Mapping[str, Node], name: str) -> str:
    """A package's copyright file; its folder may be a link to that of another package."""
    folder = f"{_DOC}{name}"
    node = nodes.get(folder)
    if node and node.member.issym():
        folder = posixpath.normpath(posixpath.join(_DOC, node.member.linkname)).lstrip("/")
    return text_of(nodes, f"{folder}/copyright")


def _supplier(maintainer: str) -> dict[str, object]:
    return {"name": maintainer.partition("<")[0].strip()} if maintainer else {}


def _checksum(nodes: Mapping[str, Node], name: str, arch: str) -> tuple[str, str]:
    """The SHA-256 of the list of checksums that came with a package, and where that is."""
    for one in (f"{_INFO}{name}.md5sums", f"{_INFO}{name}:{arch}.md5sums"):
        node = nodes.get(one)
        if node and node.source is not None:
            return digest_of(node.read()), f"/{one}"
    return "", ""
