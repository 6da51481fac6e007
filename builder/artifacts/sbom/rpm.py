"""Packages of RPM, out of its database, read without RPM.

The database is SQLite (RHEL 9) or Berkeley DB's hash format (RHEL 7 and 8). Both hold a header for
each package: https://rpm-software-management.github.io/rpm/manual/format_header.html
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.artifacts.flatten import Node
from builder.artifacts.sbom import berkeley
from builder.artifacts.sbom.components import component, purl
from builder.artifacts.sbom.licences import expression

FOLDERS = ("var/lib/rpm/", "usr/lib/sysimage/rpm/")
_SQLITE, _BERKELEY = "rpmdb.sqlite", "Packages"
_NAME, _VERSION, _RELEASE, _EPOCH = 1000, 1001, 1002, 1003
_VENDOR, _LICENSE, _ARCH, _SHA256 = 1011, 1014, 1022, 273
_INT32, _TEXTS = 4, frozenset([6, 8, 9])  # a string, strings, translated strings
_MOST_ENTRIES = 1 << 16  # as RPM itself limits them
_KEY = "gpg-pubkey"  # a signing key, which RPM keeps as if it were a package


def is_there(nodes: Mapping[str, Node]) -> bool:
    """Return whether an image has a database of RPM, of whatever kind."""
    names = (_SQLITE, _BERKELEY, "Packages.db")
    return any(folder + name in nodes for folder in FOLDERS for name in names)


def packages(nodes: Mapping[str, Node], release: str) -> Iterator[dict[str, object]]:
    """The packages of the database; `release` is such as `rhel-9.4`.

    Raises `ValueError` where a database is there and cannot be read.
    """
    for blob in _headers(nodes):
        tags = _tags(blob)
        if tags.get(_NAME) != _KEY:
            yield _package(tags, release)


def _headers(nodes: Mapping[str, Node]) -> Iterator[bytes]:
    for folder in FOLDERS:
        node = nodes.get(folder + _SQLITE)
        if node and node.source is not None:
            yield from _of_sqlite(node, nodes.get(f"{folder}{_SQLITE}-wal"))
            return
        node = nodes.get(folder + _BERKELEY)
        if node and node.source is not None:
            yield from berkeley.values(node.read())
            return
    if is_there(nodes):
        raise ValueError("an RPM database of a kind that cannot be read here")


def _of_sqlite(node: Node, log: Node | None) -> Iterator[bytes]:
    """The headers in a copy of the database, with what its log has and itself has not yet."""
    with tempfile.TemporaryDirectory(prefix="build-images-rpm.") as folder:
        copy = Path(folder, _SQLITE)
        copy.write_bytes(node.read())
        if log and log.source is not None:
            copy.with_name(f"{_SQLITE}-wal").write_bytes(log.read())
        try:
            with contextlib.closing(sqlite3.connect(copy)) as database:
                rows = database.execute("SELECT blob FROM Packages ORDER BY hnum").fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"RPM's database: {error}") from error
    for (blob,) in rows:
        yield bytes(blob)


def _tags(blob: bytes) -> dict[int, object]:
    """The tags of a header that are used here: the first string or number of each."""
    try:
        count, length = struct.unpack_from(">II", blob)
        if count > _MOST_ENTRIES or 8 + 16 * count + length > len(blob):
            raise ValueError("a header in RPM's database breaks off")
        store = memoryview(blob)[8 + 16 * count :]
        found: dict[int, object] = {}
        for at in range(count):
            tag, kind, offset, _ = struct.unpack_from(">IIII", blob, 8 + 16 * at)
            if kind in _TEXTS:
                text = bytes(store[offset : offset + (1 << 16)])
                found[tag] = text.partition(b"\0")[0].decode(errors="replace")
            elif kind == _INT32:
                found[tag] = struct.unpack_from(">I", store, offset)[0]
    except struct.error as error:
        raise ValueError("a header in RPM's database breaks off") from error
    return found


def _package(tags: Mapping[int, object], release: str) -> dict[str, object]:
    name, version = str(tags.get(_NAME, "")), f"{tags.get(_VERSION, '')}-{tags.get(_RELEASE, '')}"
    if not name:
        raise ValueError("a package without a name in RPM's database")
    epoch = str(tags[_EPOCH]) if _EPOCH in tags else ""
    where = purl(
        "rpm",
        name,
        version,
        namespace=release.partition("-")[0],
        qualifiers={"arch": str(tags.get(_ARCH, "")), "epoch": epoch, "distro": release},
    )
    header = str(tags.get(_SHA256, ""))
    return component(
        name,
        f"{epoch}:{version}" if epoch else version,
        where,
        licences=expression(str(tags.get(_LICENSE, ""))),
        checksum=f"sha256:{header}" if header else "",
        checksum_of="the package's header" if header else "",
        supplier={"name": str(tags[_VENDOR])} if tags.get(_VENDOR) else {},
    )
