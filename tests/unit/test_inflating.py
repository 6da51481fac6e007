"""Both ways to inflate give the same bytes, and find the same damage."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest

from builder import inflating

PLAIN = bytes(range(256)) * 1000
PACKED = gzip.compress(PLAIN)


@pytest.fixture(autouse=True, params=["isal", "zlib"])
def _one_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "zlib":
        monkeypatch.setattr(inflating, "way", zlib)
    elif inflating.way is zlib:
        pytest.skip("this machine has no isal")


def pieces(data: bytes, most: int) -> Iterator[bytes]:
    """A gzip file of any number of members, inflated in pieces of at most so many bytes."""
    one = inflating.inflater()
    while data:
        if one.eof:
            one = inflating.inflater()
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
    with pytest.raises(inflating.DAMAGED):
        list(pieces(bytes(data), 1 << 20))
