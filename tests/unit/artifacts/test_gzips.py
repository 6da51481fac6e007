"""Gzip in parts: the same bytes whatever the number of threads, and parts used again."""

from __future__ import annotations

import gzip
import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.artifacts.tars import PART, Gzip


def text(size: int, seed: int = 0) -> bytes:
    """Bytes that compress to about half."""
    return bytes(random.Random(seed).choices(range(16), k=size))


LONG = text(PART) + text(PART, 1)[:-3]


def written(path: Path, *pieces: bytes, workers: int = 2) -> Gzip:
    with ThreadPoolExecutor(workers) as pool, path.open("wb") as sink:
        made = Gzip(sink, pool)
        for piece in pieces:
            made.write(piece)
        made.close()
    return made


@pytest.mark.parametrize("data", [b"", b"x", LONG], ids=["nothing", "a byte", "two parts"])
def test_what_is_written_is_read(data: bytes, tmp_path: Path) -> None:
    made = written(tmp_path / "x.gz", data)
    found = (tmp_path / "x.gz").read_bytes()
    assert gzip.decompress(found) == data
    assert (made.size, made.digest) == (len(found), hashlib.sha256(found).hexdigest())


def test_neither_threads_nor_writes_nor_the_day_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = written(tmp_path / "one", LONG, workers=1)
    monkeypatch.setattr("time.time", lambda: 1e9)
    cut = [LONG[at : at + 99_999] for at in range(0, len(LONG), 99_999)]
    assert written(tmp_path / "two", *cut, workers=7).digest == one.digest


def test_parts_are_used_again(tmp_path: Path) -> None:
    first, second = tmp_path / "one.gz", tmp_path / "two.gz"
    with ThreadPoolExecutor(2) as pool, first.open("wb") as sink:
        made = Gzip(sink, pool)
        made.write(b"before")
        made.write_apart(LONG[:PART], 6)
        made.write_apart(LONG[PART:], 6)
        made.write(b"after")
        made.close()
    assert gzip.decompress(first.read_bytes()) == b"before" + LONG + b"after"
    with ThreadPoolExecutor(2) as pool, second.open("wb") as sink, first.open("rb") as file:
        again = Gzip(sink, pool)
        again.write(b"elsewhere")
        for part, place in zip([LONG[:PART], LONG[PART:]] * 2, made.places[6] * 2, strict=True):
            again.write_again(part, place, file)
        again.close()
    assert gzip.decompress(second.read_bytes()) == b"elsewhere" + LONG + LONG
