"""Components of a bill of materials: package URLs, licences by SPDX's identifiers, and packages.

Packages of dpkg and Python are read from the files that their installers leave, those of RPM from
its database, without RPM.

https://github.com/package-url/purl-spec/blob/main/PURL-SPECIFICATION.rst, https://spdx.org/licenses/,
https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/,
https://packaging.python.org/en/latest/specifications/core-metadata/
"""

from __future__ import annotations

import contextlib
import email.parser
import posixpath
import re
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from urllib.parse import quote

from builder.artifacts.flatten import TreeNode
from builder.model.digests import digest_of
from builder.system.files import table_beside

CHECKSUM, CHECKSUM_OF = "build-images:checksum", "build-images:checksum-of"
_LONGEST = 1000

_TABLES = table_beside(__file__, "licences.yaml")
_BY_NAME = {**{name.lower(): name for name in _TABLES["identifiers"]}, **_TABLES["other_names"]}
_GNU = re.compile(r"(a?gpl|lgpl|gfdl)-(\d)(?:\.(\d))?(\+)?", re.IGNORECASE)
_COMMON = re.compile(
    r"/usr/share/common-licenses/((?:A?GPL|LGPL|GFDL|Apache|BSD|Artistic|MPL|CC0)[\w.-]*)"
)
_FIELD = re.compile(r"^License:(.*)$", re.MULTILINE)
_ALTERNATIVES = re.compile(r"\s+(?:and|or|and/or)\s+|,\s*|\s*\|\s*", re.IGNORECASE)
_OPERATOR = re.compile(r"\s+(?:AND|OR|WITH)\s+")
_OPERAND = re.compile(r"\(*[\w.+:-]+\)*")
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
    return [unique[key] for key in sorted(unique)]


def of_copyright(text: str) -> list[dict[str, object]]:
    """Return the licences that a Debian copyright file names in its fields, else in its text."""
    names = [name.rstrip(".-") for name in _COMMON.findall(text)]  # they may end a sentence
    if text.startswith("Format:"):  # elsewhere, lines that begin with `License:` go on in prose
        fields = _FIELD.findall(text)
        names = [part for field in fields for part in _ALTERNATIVES.split(field.strip())] or names
    return licences(names)


def expression(text: str) -> list[dict[str, object]]:
    """Return the licence that an RPM or Python package states: one line, perhaps an expression.

    https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/: its operators are upper-case.
    """
    line = " ".join(text.split())
    if not line or line.upper() == "UNKNOWN":
        return []
    operands = _OPERATOR.split(line)
    is_expression = len(operands) > 1 and all(map(_OPERAND.fullmatch, operands))
    return [{"expression": line} if is_expression else licence(line)]


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
    name = str(headers.get("License") or "")
    short = name if len(name) <= _SHORT else ""
    for stated in (str(headers.get("License-Expression") or ""), short):
        if stated_licences := expression(stated):
            return stated_licences
    classifiers = [str(one) for one in headers.get_all("Classifier") or []]
    return licences(
        one.removeprefix(_CLASSIFIER) for one in classifiers if one.startswith(_CLASSIFIER)
    )


# ---- RPM ----

# The database is SQLite (RHEL 9) or Berkeley DB's hash format (RHEL 7 and 8). Both hold a header
# for each package: https://rpm-software-management.github.io/rpm/manual/format_header.html. The
# pages of Berkeley DB: https://github.com/berkeleydb/libdb/blob/v5.3.28/src/dbinc/db_page.h;
# numbers are in the byte order of the machine that wrote them, which is little-endian on all that
# images are for.
_FOLDERS = ("var/lib/rpm/", "usr/lib/sysimage/rpm/")
_SQLITE, _BERKELEY, _OTHER = "rpmdb.sqlite", "Packages", "Packages.db"
_NAME, _VERSION, _RELEASE, _EPOCH = 1000, 1001, 1002, 1003
_VENDOR, _LICENSE, _ARCH, _SHA256 = 1011, 1014, 1022, 273
_INT32, _TEXTS = 4, frozenset([6, 8, 9])  # a string, strings, translated strings
_MOST_ENTRIES = 1 << 16  # as RPM itself limits them
_KEY = "gpg-pubkey"  # a signing key, which RPM keeps as if it were a package
# Of Berkeley DB: the magic number, kinds of pages and of items, and sizes in bytes
_MAGIC = 0x061561
_HASH_PAGES, _OVERFLOW_PAGE = frozenset([2, 13]), 7  # unsorted, and sorted
_ON_PAGE, _OFF_PAGE = 1, 3
_PAGE_HEADER = 26
_LEAST_PAGE, _LARGEST_PAGE = 512, 65536
_LEAST_ITEM = 17  # the first value counts the packages, in 4 bytes; headers are longer


def rpm_packages(nodes: Mapping[str, TreeNode], release: str) -> Iterator[dict[str, object]]:
    """Yield the packages of the database; `release` is such as `rhel-9.4`.

    Raises `ValueError` for a database that cannot be read.
    """
    for header in _headers(nodes):
        tags = _tags(header)
        if tags.get(_NAME) != _KEY:
            yield _package(tags, release)


def _headers(nodes: Mapping[str, TreeNode]) -> list[bytes]:
    for folder in _FOLDERS:
        if (data := data_of(nodes, folder + _SQLITE)) is not None:
            return _of_sqlite(data, data_of(nodes, f"{folder}{_SQLITE}-wal"))
        if (data := data_of(nodes, folder + _BERKELEY)) is not None:
            return berkeley_values(data)
    if any(folder + name in nodes for folder in _FOLDERS for name in (_SQLITE, _BERKELEY, _OTHER)):
        raise ValueError("an RPM database in an unsupported format")
    return []


def _of_sqlite(data: bytes, log: bytes | None) -> list[bytes]:
    """Return the headers in a database, with those that are only in its write-ahead log."""
    with tempfile.TemporaryDirectory(prefix="build-images-rpm.") as folder:
        copy = Path(folder, _SQLITE)
        copy.write_bytes(data)
        if log is not None:
            copy.with_name(f"{_SQLITE}-wal").write_bytes(log)
        try:
            with contextlib.closing(sqlite3.connect(copy)) as database:
                rows = database.execute("SELECT blob FROM Packages ORDER BY hnum").fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"RPM database: {error}") from error
    return [bytes(blob) for (blob,) in rows]


def berkeley_values(data: bytes) -> list[bytes]:
    """Return the values in a Berkeley DB file of hash format, in the order of its pages.

    Raises `ValueError` for a file that is not complete, or of another format.
    """
    values = []
    try:
        magic, size = struct.unpack_from("<I4xI", data, 12)
        if magic != _MAGIC or not _LEAST_PAGE <= size <= _LARGEST_PAGE:
            raise ValueError("not a Berkeley DB file of hash format")
        pages = [data[start : start + size] for start in range(0, len(data) - size + 1, size)]
        for page in pages[1:]:
            for item in _items(page) if page[25] in _HASH_PAGES else []:
                if item[0] == _OFF_PAGE:
                    values.append(_chained(pages, item))
                elif item[0] == _ON_PAGE and len(item) > _LEAST_ITEM:
                    values.append(item[1:])
    except (struct.error, IndexError) as error:
        raise ValueError("a truncated Berkeley DB file") from error
    return values


def _items(page: bytes) -> list[bytes]:
    """Return every second item of a page, a value; the first item lies at the page's end."""
    (count,) = struct.unpack_from("<H", page, 20)
    starts = struct.unpack_from(f"<{count}H", page, _PAGE_HEADER)
    return [page[starts[number] : starts[number - 1]] for number in range(1, count, 2)]


def _chained(pages: list[bytes], item: bytes) -> bytes:
    """Return a value that is longer than a page, from its chain of pages."""
    number, length = struct.unpack_from("<II", item, 4)
    if length > len(pages) * len(pages[0]):
        raise ValueError("a Berkeley DB file with a value that is longer than the file")
    value = b""
    while len(value) < length:
        page = pages[number]
        (used,) = struct.unpack_from("<H", page, 22)
        if page[25] != _OVERFLOW_PAGE or not used:
            raise ValueError("a Berkeley DB file with inconsistent pages")
        value += page[_PAGE_HEADER : _PAGE_HEADER + used]
        (number,) = struct.unpack_from("<I", page, 16)
    return value[:length]


def _tags(header: bytes) -> dict[int, object]:
    """Return the tags of a header that are texts or numbers: the first value of each."""
    try:
        count, length = struct.unpack_from(">II", header)
        if count > _MOST_ENTRIES or 8 + 16 * count + length > len(header):
            raise ValueError("a truncated header in the RPM database")
        store = memoryview(header)[8 + 16 * count :]
        tags: dict[int, object] = {}
        for start in range(8, 8 + 16 * count, 16):
            tag, kind, offset, _ = struct.unpack_from(">IIII", header, start)
            if kind in _TEXTS:
                text = bytes(store[offset : offset + (1 << 16)])
                tags[tag] = text.partition(b"\0")[0].decode(errors="replace")
            elif kind == _INT32:
                tags[tag] = struct.unpack_from(">I", store, offset)[0]
    except struct.error as error:
        raise ValueError("a truncated header in the RPM database") from error
    return tags


def _package(tags: Mapping[int, object], release: str) -> dict[str, object]:
    texts = {tag: str(value) for tag, value in tags.items()}
    name, version = texts.get(_NAME), f"{texts.get(_VERSION, '')}-{texts.get(_RELEASE, '')}"
    if not name:
        raise ValueError("a package without a name in the RPM database")
    epoch, checksum, vendor = (texts.get(tag, "") for tag in (_EPOCH, _SHA256, _VENDOR))
    qualifiers = {"arch": texts.get(_ARCH, ""), "epoch": epoch, "distro": release}
    return component(
        name,
        f"{epoch}:{version}" if epoch else version,
        purl("rpm", name, version, namespace=release.partition("-")[0], qualifiers=qualifiers),
        licences=expression(texts.get(_LICENSE, "")),
        checksum=f"sha256:{checksum}" if checksum else "",
        checksum_of="the package's header",
        supplier={"name": vendor} if vendor else {},
    )
