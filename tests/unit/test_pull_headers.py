"""Headers of tars: what is read the fast way is what `tarfile` makes of them, to the last field."""

from __future__ import annotations

import random
import tarfile
from typing import Literal

import pytest

from builder.pull.members import _Member

FIELDS = ("name", "mode", "uid", "gid", "size", "mtime", "type", "linkname")
ENCODING = ("utf-8", "surrogateescape")
Header = dict[str, object]


def by_tarfile(header: bytes) -> Header | str:
    try:
        made = tarfile.TarInfo.frombuf(header, *ENCODING)
    except tarfile.TarError as error:
        return type(error).__name__
    return {name: getattr(made, name) for name in FIELDS}


def by_ours(header: bytes) -> Header | str:
    try:
        made = _Member.frombuf(header, *ENCODING)
    except tarfile.TarError as error:
        return type(error).__name__
    return {name: getattr(made, name) for name in FIELDS}


def header_of(archive_format: Literal[0, 1, 2] = tarfile.GNU_FORMAT, **more: object) -> bytes:
    made = tarfile.TarInfo("usr/bin/tool")
    made.size, made.mtime, made.uid, made.gid = 12345, 1_000_000_000, 1000, 100
    for name, value in more.items():
        setattr(made, name, value)
    return made.tobuf(archive_format)[:512]


SOUND = [
    header_of(),
    header_of(tarfile.USTAR_FORMAT),
    header_of(tarfile.PAX_FORMAT),
    header_of(type=tarfile.DIRTYPE, name="usr/bin/", size=0),
    header_of(type=tarfile.SYMTYPE, linkname="../lib/tool", size=0),
    header_of(type=tarfile.LNKTYPE, linkname="usr/lib/tool", size=0),
    header_of(type=tarfile.CHRTYPE, devmajor=1, devminor=3, size=0),
    header_of(type=tarfile.AREGTYPE, name="old/"),
    header_of(size=1 << 40),
    header_of(mode=0o4755, name="ä" * 40),
    header_of(tarfile.USTAR_FORMAT, name="long/" * 30 + "name"),
    header_of(tarfile.USTAR_FORMAT, name="n" * 100),
]


def with_checksum(header: bytes) -> bytes:
    number = 256 + sum(header[:148]) + sum(header[156:])
    return header[:148] + b"%06o\0 " % number + header[156:]


@pytest.mark.parametrize("header", SOUND)
def test_sound_headers(header: bytes) -> None:
    assert by_ours(header) == by_tarfile(header)
    assert isinstance(by_ours(header), dict)


def test_damaged_headers_with_a_good_checksum_and_without() -> None:
    rng = random.Random(20)
    fields = (0, 100, 107, 108, 116, 124, 135, 136, 147, 148, 156, 157, 257, 329, 337, 345)
    seen = set()
    for _ in range(20_000):
        header = bytearray(rng.choice(SOUND))
        for _ in range(rng.randint(1, 3)):
            place = (
                rng.choice(fields) + rng.randrange(3) if rng.random() < 0.7 else rng.randrange(512)
            )
            header[place] = rng.choice(b"\0 0178/-_xo\x80\xff")
        damaged = bytes(header)
        for one in (damaged, with_checksum(damaged)):
            assert by_ours(one) == by_tarfile(one), one
            seen.add(str(by_tarfile(one))[:12])
    assert len(seen) > 2


@pytest.mark.parametrize("header", [b"", b"x", bytes(511), bytes(512), b"\xff" * 512])
def test_what_is_no_header(header: bytes) -> None:
    assert by_ours(header) == by_tarfile(header)
    assert isinstance(by_ours(header), str)
