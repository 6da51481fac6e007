"""Components of a bill of materials: package URLs, licences by SPDX's identifiers, and packages.

Packages of dpkg and Python are read from the files that their installers leave.

https://github.com/package-url/purl-spec/blob/main/PURL-SPECIFICATION.rst, https://spdx.org/licenses/,
https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/,
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

from __future__ import annotations

import email.parser
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.message import Message
from urllib.parse import quote

from builder.artifacts.flatten import TreeNode
from builder.model.digests import digest_of
from builder.system.files import table_beside

CHECKSUM, CHECKSUM_OF = "build-images:checksum", "build-images:checksum-of"
_MOST = 40  # licences of one component: some of Debian's packages name hundreds of variants
_LONGEST = 200

_TABLES = table_beside(__file__, "licences.yaml")
_BY_NAME = {**{name.lower(): name for name in _TABLES["identifiers"]}, **_TABLES["other_names"]}
_GNU = re.compile(r"(a?gpl|lgpl|gfdl)-(\d)(?:\.(\d))?(\+)?", re.IGNORECASE)
_COMMON = re.compile(
    r"/usr/share/common-licenses/((?:A?GPL|LGPL|GFDL|Apache|BSD|Artistic|MPL|CC0)[\w.-]*)"
)
_FIELD = re.compile(r"^License:(.*)$", re.MULTILINE)
_ALTERNATIVES = re.compile(r"\s+(?:and|or|and/or)\s+|,\s*|\s*\|\s*", re.IGNORECASE)
_STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info/"
_DOC = "usr/share/doc/"
_METADATA = re.compile(r"(?:^|/)[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)$")
_CLASSIFIER = "License :: OSI Approved :: "
_SHORT = 60  # characters; longer ones are the text of a licence, not its name


def purl(
    kind: str, name: str, version: str, *, namespace: str = "", qualifiers: Mapping[str, str]
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
    """Return a CycloneDX component of the type `library`; empty values are left out.

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
    """Return a licence by its SPDX identifier; by name if Debian's name for it has none."""
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
    """Return the licences that a Debian copyright file names in its fields, else in its text."""
    names = [name.rstrip(".-") for name in _COMMON.findall(text)]  # they may end a sentence
    if text.startswith("Format:"):  # elsewhere, lines that begin with `License:` go on in prose
        fields = _FIELD.findall(text)
        names = [part for field in fields for part in _ALTERNATIVES.split(field.strip())] or names
    return licences(names)


def expression(text: str) -> list[dict[str, object]]:
    """Return the licence that an RPM or Python package states: one line, perhaps an expression."""
    line = " ".join(text.split())
    return [licence(line)] if line and line.upper() != "UNKNOWN" else []


def data_of(nodes: Mapping[str, TreeNode], path: str) -> bytes | None:
    """Return the content of a regular file; None if there is none at the path."""
    node = nodes.get(path)
    return node.read() if node and node.source is not None else None


def text_of(nodes: Mapping[str, TreeNode], path: str) -> str:
    """Return the text of a regular file; empty if there is none at the path."""
    return (data_of(nodes, path) or b"").decode(errors="replace")


def debian_packages(
    nodes: Mapping[str, TreeNode], distribution: str, release: str
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
    nodes: Mapping[str, TreeNode], fields: Mapping[str, str], distribution: str, release: str
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


def _copyright(nodes: Mapping[str, TreeNode], name: str) -> str:
    """Return a package's copyright file; its folder may be a link to that of another package."""
    folder = f"{_DOC}{name}"
    node = nodes.get(folder)
    if node and node.member.issym():
        folder = posixpath.normpath(posixpath.join(_DOC, node.member.linkname)).lstrip("/")
    return text_of(nodes, f"{folder}/copyright")


def python_packages(nodes: Mapping[str, TreeNode]) -> Iterator[dict[str, object]]:
    """Yield Python packages that have metadata, those of the distribution included."""
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
