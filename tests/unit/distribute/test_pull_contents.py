"""Lists of the members of layers: they come to the same tree, and refuse the same layers."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pull_unpacking import GOOD, HOSTILE, M, layer

from builder.distribute.pull.cache import PullCache, listed, pull_cache, write_list
from builder.distribute.pull.layers import read, unpack
from builder.model.errors import Interrupted, Refused

MEMBERS = [M("a", b"1"), M("b", b"22", mode=0o755)]


def ignore() -> None:
    """Nothing ends the reading of a layer."""


@pytest.fixture(name="cache")
def cache_of_a_command(tmp_path: Path) -> Iterator[PullCache]:
    with pull_cache(tmp_path / "pulls", "oci") as cache:
        yield cache
    assert list((tmp_path / "pulls/layers").iterdir()) == []


@pytest.mark.parametrize("name", GOOD)
def test_lists_come_to_the_same_tree(name: str, tmp_path: Path, cache: PullCache) -> None:
    layers = [layer(tmp_path, members) for members in GOOD[name]]
    from_lists = [
        (digest, listed(cache.list_members(blob, digest, ignore))) for blob, digest in layers
    ]
    from_blobs = [(digest, read(blob, digest)) for blob, digest in layers]
    assert unpack(from_lists, None) == unpack(from_blobs, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused_is_refused_by_its_list_too(
    name: str, tmp_path: Path, cache: PullCache
) -> None:
    members, reason = HOSTILE[name]
    blob, digest = layer(tmp_path, members)
    with pytest.raises(Refused, match=reason):
        unpack([(digest, listed(cache.list_members(blob, digest, ignore)))], None)


@pytest.mark.parametrize("packed", [True, False])
def test_plain_bytes_are_those_that_the_configuration_names(
    packed: bool, tmp_path: Path, cache: PullCache
) -> None:
    """Podman and Skopeo compare them when they take an image."""
    blob, digest = layer(tmp_path, MEMBERS, packed=packed)
    data = gzip.decompress(blob.read_bytes()) if packed else blob.read_bytes()
    good, wrong = f"sha256:{hashlib.sha256(data).hexdigest()}", "sha256:" + "00" * 32
    paths = [path for _, path, _ in read(blob, digest, good)]
    assert paths == [
        path for _, path, _ in listed(cache.list_members(blob, digest, ignore, diff_id=good))
    ]
    with pytest.raises(Refused, match="but the configuration has sha256:0000"):
        list(read(blob, digest, wrong))
    with pytest.raises(Refused, match="but the configuration has sha256:0000"):
        cache.list_members(blob, digest, ignore, diff_id=wrong)


def test_a_reader_that_was_left_writes_into_no_list_that_is_read(
    tmp_path: Path, cache: PullCache
) -> None:
    blob, digest = layer(tmp_path, MEMBERS)
    lists = [cache.list_members(blob, digest, ignore) for _ in range(2)]
    assert not lists[0].samefile(lists[1])
    assert lists[0].read_bytes() == lists[1].read_bytes()


def test_reading_a_layer_is_interrupted(tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted("interrupted")

    blob, digest = layer(tmp_path, MEMBERS)
    with pytest.raises(Interrupted):
        write_list([str(blob), digest, "", str(tmp_path / "list")], stop)
