"""Both ways to inflate give the same bytes, and find what damage a checksum tells."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest

from builder.system import compression

PLAIN = bytes(range(256)) * 1000
PACKED = gzip.compress(PLAIN)


@pytest.fixture(autouse=True, params=["isal", "zlib"])
def _one_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "zlib":
        monkeypatch.setattr(compression, "gzip_library", zlib)
    elif compression.gzip_library is zlib:
        pytest.skip("this machine has no isal")


def pieces(data: bytes, most: int) -> Iterator[bytes]:
    """A gzip file of any number of members, inflated in pieces of at most so many bytes."""
    one = compression.inflater(data)
    while data:
        if one.eof:
            one = compression.inflater(data)
        piece = one.decompress(data, most)
        assert len(piece) <= most
        yield piece
        data = one.unconsumed_tail or one.unused_data
    assert one.eof


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("most", [1000, 1 << 20])
def test_all_members_are_inflated(members: int, most: int) -> None:
    assert b"".join(pieces(PACKED * members, most)) == PLAIN * members


@pytest.mark.parametrize("place", [0, 20, -6, -2])
def test_damage_is_found(place: int) -> None:
    """In the header, the data, the checksum and the size."""
    data = bytearray(PACKED)
    data[place] ^= 0xFF
    with pytest.raises(compression.DAMAGED):
        list(pieces(bytes(data), 1 << 20))


@pytest.mark.parametrize("flags", range(0, 32, 2))
@pytest.mark.parametrize("cut", [1, 5, 15, 30, 50])
def test_a_header_with_any_parts_comes_in_pieces(flags: int, cut: int) -> None:
    """Extra field, name, comment and the header's checksum, wherever a read ends."""
    header = bytearray(PACKED[:10])
    header[3] = flags
    header += b"\x05\x00extra" if flags & 4 else b""
    header += b"a-long-name\0" if flags & 8 else b""
    header += b"a-longer-comment\0" if flags & 16 else b""
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    whole = bytes(header) + PACKED[10:]
    one = compression.inflater(whole[:cut])
    assert one.decompress(whole[:cut]) + one.decompress(whole[cut:]) == PLAIN
