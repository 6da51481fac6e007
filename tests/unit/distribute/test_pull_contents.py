"""Lists of the members of layers: they come to the same tree, and refuse the same layers."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pull_unpacking import GOOD, HOSTILE, M, layer

from builder.artifacts.oci import LAYER
from builder.distribute.pull.cache import PullCache, listed, pull_cache, write_list
from builder.distribute.pull.layers import read, unpack
from builder.distribute.pull.members import members
from builder.distribute.pull.streams import PARTIAL, GrowingFile, opened
from builder.model.errors import Interrupted, Refused
from builder.registry import Descriptor
from builder.system.threads import AT_ONCE

MEMBERS = [M("a", b"1"), M("b", b"22", mode=0o755)]


def ignore() -> None:
    """Nothing ends the reading of a layer."""


@pytest.fixture(name="cache")
def cache_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PullCache]:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests leave threads
    with pull_cache(tmp_path / "pulls", "oci") as cache:
        yield cache
    assert list((tmp_path / "pulls/layers").iterdir()) == []


def listed_members(cache: PullCache, blob: Path, digest: str, diff_id: str = "") -> Path:
    """The list of a layer that is in the store already."""
    file, descriptor = arriving(cache, blob, digest)
    shutil.copy(blob, file)
    with cache.listing(descriptor, ignore, diff_id=diff_id) as members:
        return members()


def arriving(cache: PullCache, blob: Path, digest: str) -> tuple[Path, Descriptor]:
    """The path in the store under which a layer's bytes arrive, and the layer's descriptor."""
    cache.store.folder.mkdir(parents=True, exist_ok=True)
    descriptor = Descriptor(media_type=LAYER, digest=digest, size=blob.stat().st_size)
    return cache.store.folder / digest.partition(":")[2], descriptor


def empty(folder: Path) -> Path:
    (file := folder / "list").touch()
    return file


@pytest.mark.parametrize("name", GOOD)
def test_lists_come_to_the_same_tree(name: str, tmp_path: Path, cache: PullCache) -> None:
    layers = [layer(tmp_path, members) for members in GOOD[name]]
    from_lists = [(digest, listed(listed_members(cache, blob, digest))) for blob, digest in layers]
    from_blobs = [(digest, read(blob, digest)) for blob, digest in layers]
    assert unpack(from_lists, None) == unpack(from_blobs, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused_is_refused_by_its_list_too(
    name: str, tmp_path: Path, cache: PullCache
) -> None:
    blob, digest = layer(tmp_path, HOSTILE[name])
    with pytest.raises(Refused) as by_blob:
        unpack([(digest, read(blob, digest))], None)
    with pytest.raises(Refused) as by_list:
        unpack([(digest, listed(listed_members(cache, blob, digest)))], None)
    assert str(by_list.value) == str(by_blob.value)


@pytest.mark.parametrize("packed", [True, False])
def test_plain_bytes_are_those_that_the_configuration_names(
    packed: bool, tmp_path: Path, cache: PullCache
) -> None:
    """Podman and Skopeo compare them when they take an image."""
    blob, digest = layer(tmp_path, MEMBERS, packed=packed)
    data = gzip.decompress(blob.read_bytes()) if packed else blob.read_bytes()
    good, wrong = f"sha256:{hashlib.sha256(data).hexdigest()}", "sha256:" + "00" * 32
    paths = [path for _, path, _ in read(blob, digest, good)]
    assert paths == [path for _, path, _ in listed(listed_members(cache, blob, digest, good))]
    with pytest.raises(Refused, match="but the configuration has sha256:0000"):
        list(read(blob, digest, wrong))
    with pytest.raises(Refused, match="but the configuration has sha256:0000"):
        listed_members(cache, blob, digest, wrong)


def test_a_reader_that_was_left_writes_into_no_list_that_is_read(
    tmp_path: Path, cache: PullCache
) -> None:
    blob, digest = layer(tmp_path, MEMBERS)
    lists = [listed_members(cache, blob, digest) for _ in range(2)]
    assert not lists[0].samefile(lists[1])
    assert lists[0].read_bytes() == lists[1].read_bytes()


def test_reading_a_layer_is_interrupted(tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("interrupted")

    blob, digest = layer(tmp_path, MEMBERS)
    with pytest.raises(Interrupted):
        write_list([str(blob), digest, "", str(empty(tmp_path)), "0"], stop)


def test_a_layer_is_listed_while_it_arrives(
    tmp_path: Path, cache: PullCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, digest = layer(tmp_path, MEMBERS)
    expected, data = listed_members(cache, blob, digest).read_bytes(), blob.read_bytes()
    file, descriptor = arriving(cache, blob, digest)
    partial = file.with_name(f"{file.name}{PARTIAL}")
    monkeypatch.setattr("builder.distribute.pull.cache._READING", None)  # this process reads none
    with cache.listing(descriptor, ignore) as members:
        with partial.open("wb", buffering=0) as growing:
            for first, end in itertools.pairwise((0, 1, *range(40, len(data), 40), len(data))):
                growing.write(data[first:end])
                time.sleep(0.01)
        partial.rename(file)
        assert members().read_bytes() == expected


def test_a_layer_is_read_as_it_grows(tmp_path: Path) -> None:
    """All in this process: whenever the reader waits, there is a little more."""
    blob, digest = layer(tmp_path, MEMBERS)
    data, file = blob.read_bytes(), tmp_path / "arriving"
    partial = tmp_path / f"arriving{PARTIAL}"

    def arrival() -> Iterator[None]:
        for end in (*range(0, len(data), 40), len(data)):
            partial.write_bytes(data[:end])
            yield
        partial.rename(file)

    arriving = arrival()
    with opened(file, digest, size=len(data), check=lambda: next(arriving, None)) as stream:
        assert [path for _, path, _ in members(stream)] == ["a", "b"]
    with GrowingFile(file, len(data), ignore) as reader:
        assert (reader.read(), reader.read()) == (data, b"")


def test_a_blob_that_another_file_took_the_place_of_is_not_the_one(tmp_path: Path) -> None:
    blob, partial = tmp_path / "blob", tmp_path / f"blob{PARTIAL}"
    partial.write_bytes(b"be")
    with GrowingFile(blob, 5, ignore) as reader:
        assert (reader.read(1), reader.read(9)) == (b"b", b"e")
        blob.write_bytes(b"begin")
        with pytest.raises(OSError, match=f"{blob}: "):
            reader.read()
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        GrowingFile(blob, 5, ignore)


@pytest.mark.parametrize("begin", [b"", b"\x1f\x8b", b"what another layer begins with" * 99])
def test_a_layer_that_arrives_in_another_file_is_read_when_complete(
    begin: bytes, tmp_path: Path, cache: PullCache
) -> None:
    blob, digest = layer(tmp_path, MEMBERS)
    file, descriptor = arriving(cache, blob, digest)
    partial = file.with_name(f"{file.name}{PARTIAL}")
    partial.write_bytes(begin)
    with cache.listing(descriptor, ignore) as members:
        time.sleep(0.1)  # the reader has opened the first file
        partial.unlink()
        blob.rename(file)
        assert [path for _, path, _ in listed(members())] == ["a", "b"]


def test_a_layer_that_does_not_arrive_occupies_no_reader(tmp_path: Path, cache: PullCache) -> None:
    blob, digest = layer(tmp_path, MEMBERS)
    _, descriptor = arriving(cache, blob, digest)
    for _ in range(AT_ONCE + 1):
        with pytest.raises(ConnectionError), cache.listing(descriptor, ignore):
            raise ConnectionError
    assert cache.readers
    request = [str(blob), digest, "", str(empty(tmp_path)), "0"]
    work = cache.readers.begin(request)
    assert work
    assert work.result(timeout=20)
