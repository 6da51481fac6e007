"""RPM packages in the database of an image, read without RPM.

The database is SQLite (RHEL 9) or Berkeley DB's hash format (RHEL 7 and 8). Both hold a header for
each package: https://rpm-software-management.github.io/rpm/manual/format_header.html. The pages of
Berkeley DB: https://github.com/berkeleydb/libdb/blob/v5.3.28/src/dbinc/db_page.h; numbers are in
the byte order of the machine that wrote them, which is little-endian on all that images are for.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.artifacts.flatten import TreeNode
from builder.artifacts.sbom.packages import component, data_of, expression, purl

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
