"""Layers laid over each other, as the OCI image specification says; and the Charliecloud pack."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from samples import a_file, a_folder, a_hard_link, a_link, blob, member, tar_bytes

from builder.artifacts.flatten import (
    TreeNode,
    entries,
    entries_of_layout,
    entries_of_tar,
    flattened,
)
from builder.artifacts.oci import Layout
from builder.artifacts.repack import PlainLayout
from builder.artifacts.tree import comparable, tree_digest
from builder.build.engines import charliecloud
from builder.model.errors import StepFailed
from builder.system.compression import DAMAGED

Member = tuple[tarfile.TarInfo, bytes]
Layer = Sequence[Member]


def layout(folder: Path, *layers: Layer, compressed: bool = False) -> Layout:
    paths = []
    folder.mkdir(exist_ok=True)
    for layer in layers:
        data = tar_bytes(*layer)
        paths.append(blob(folder, gzip.compress(data) if compressed else data))
    config = configured(*(tar_bytes(*layer) for layer in layers))
    return Layout(path=folder, digest="sha256:0", config=config, layers=tuple(paths))


def configured(*tars: bytes) -> dict[str, Any]:
    """The configuration of an image with these layers."""
    diff_ids = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in tars]
    return {"rootfs": {"type": "layers", "diff_ids": diff_ids}}


@contextlib.contextmanager
def laid(folder: Path, *layers: Layer) -> Iterator[Mapping[str, TreeNode]]:
    """The nodes of layers; what is streamed from compressed ones is the same tree."""
    nodes = flattened(layout(folder / "in", *layers))
    packed = layout(folder / "packed", *layers, compressed=True)
    assert comparable(entries_of_layout(packed)) == comparable(entries(nodes))
    yield nodes


def shown(folder: Path, *layers: Layer) -> dict[str, str]:
    """The tree as text: a file's content, `/` for a folder, `-> target` for a link."""
    with laid(folder, *layers) as nodes:
        return {path: _shown(node) for path, node in nodes.items()}


def _shown(node: TreeNode) -> str:
    if node.source is not None:
        return node.read().decode()
    return f"-> {node.member.linkname}" if node.member.issym() else "/"


LOWER = [a_folder("d"), a_file("d/one", "1"), a_file("d/two", "2"), a_file("top", "t")]


def test_nodes_are_sorted(tmp_path: Path) -> None:
    with laid(tmp_path, LOWER, [a_file("d/one", "new")]) as nodes:
        assert nodes["d/one"].read() == b"new"
        assert list(nodes) == sorted(nodes)


DATA = tar_bytes(*LOWER)
SKIPPED = b"\x50\x2a\x4d\x18\x03\x00\x00\x00toc"  # as zstd:chunked layers have: RFC 8878, 3.1.2
PACKED = {
    "plain": DATA,
    "gzip": gzip.compress(DATA),
    "several members": gzip.compress(DATA[:700]) + gzip.compress(DATA[700:]),
    "zstd": zstandard.compress(DATA[:700]) + SKIPPED + zstandard.compress(DATA[700:]),
}


def of_blob(folder: Path, packed: bytes) -> Layout:
    """The layout of one layer, LOWER."""
    layers = (blob(folder, packed),)
    return Layout(path=folder, digest="", config=configured(DATA), layers=layers)


@pytest.mark.parametrize("how", PACKED)
def test_layers_are_streamed_however_they_are_packed(how: str, tmp_path: Path) -> None:
    found = {one.path: one.content for one in entries_of_layout(of_blob(tmp_path, PACKED[how]))}
    assert list(found) == ["d", "d/one", "d/two", "top"]
    assert found["d/one"] == hashlib.sha256(b"1").hexdigest()


@pytest.mark.parametrize(
    "packed", [PACKED["gzip"][:-9], PACKED["zstd"][:-9], zstandard.compress(DATA)[:40]]
)
def test_a_layer_that_breaks_off_is_refused(packed: bytes, tmp_path: Path) -> None:
    with pytest.raises((EOFError, tarfile.ReadError, *DAMAGED)):
        list(entries_of_layout(of_blob(tmp_path, packed)))


def test_a_layer_that_is_not_the_configurations_is_refused(tmp_path: Path) -> None:
    made = layout(tmp_path, LOWER, compressed=True)
    other = dataclasses.replace(made, config=configured(tar_bytes(*LOWER[:1])))
    with pytest.raises(StepFailed, match=r"this layer differs from sha256:\w+ in the config"):
        list(entries_of_layout(other))
    none = dataclasses.replace(made, config={})
    with pytest.raises(StepFailed, match="1 layers, but 0 diff_ids"):
        list(entries_of_layout(none))


def test_what_describes_an_image_is_kept(tmp_path: Path) -> None:
    lower = [a_file("opt/build-images/host-contract.json", "old"), a_file("ch/environment", "A=1")]
    kept: dict[str, bytes] = {}
    upper = [a_file("opt/build-images/host-contract.json", "new"), a_file("etc/passwd", "x")]
    upper += [a_folder(".singularity.d/env"), a_file(".singularity.d/large", "x" * (1 << 20) + "x")]
    list(entries_of_layout(layout(tmp_path, lower, upper), kept))
    assert kept == {
        "opt/build-images/host-contract.json": b"new",
        "ch/environment": b"A=1",
        ".singularity.d/large": b"\0",
    }


TOP, MORE = [a_file("top", "t")], [*LOWER, a_file("dd", "stays")]
OPAQUE = [a_file("d/.wh..wh..opq", ""), a_file("d/new", "n")]
AGAIN = [a_file(".wh.top", ""), a_file("top", "again")]
LINKED = [a_file("a", "old"), a_hard_link("b", "a")]
NEW = {"d": "/", "d/new": "n", "top": "t"}
# A layer, one over it, and the tree.
LAID: dict[str, tuple[Layer, Layer, dict[str, str]]] = {
    "whiteout": (LOWER, [a_file("d/.wh.one", "")], {"d": "/", "d/two": "2", "top": "t"}),
    "of a folder with all below": (MORE, [a_file(".wh.d", "")], {"dd": "stays", "top": "t"}),
    "opaque": (LOWER, OPAQUE, NEW),
    "opaque at the end": (LOWER, OPAQUE[::-1], NEW),
    "opaque root": (LOWER, [a_file(".wh..wh..opq", ""), a_file("x", "x")], {"x": "x"}),
    "removed and made again": (TOP, AGAIN, {"top": "again"}),
    "made again, removed at the end": (TOP, AGAIN[::-1], {"top": "again"}),
    "file for folder": (LOWER, [a_file("d", "file")], {"d": "file", "top": "t"}),
    "link for folder": (LOWER, [a_link("d", "usr/d")], {"d": "-> usr/d", "top": "t"}),
    "folder for file": (TOP, [a_folder("top"), a_file("top/i", "i")], {"top": "/", "top/i": "i"}),
    "hard link downwards": (TOP, [a_hard_link("b", "top")], {"b": "t", "top": "t"}),
    "target replaced": (LINKED, [a_file("a", "new")], {"a": "new", "b": "old"}),
    "target removed": (LINKED, [a_file(".wh.a", "")], {"b": "old"}),
    "new target": (LINKED[:1], [a_file("a", "n"), a_hard_link("b", "a")], {"a": "n", "b": "n"}),
    "links as they are": ([a_link("l", "u/l")], [a_link("x", "/y")], {"l": "-> u/l", "x": "-> /y"}),
}


@pytest.mark.parametrize("case", LAID)
def test_an_upper_layer_over_a_lower_one(case: str, tmp_path: Path) -> None:
    lower, upper, expected = LAID[case]
    assert shown(tmp_path, lower, upper) == expected


def test_a_folder_again_keeps_what_is_in_it(tmp_path: Path) -> None:
    with laid(tmp_path, LOWER, [a_folder("d", 0o700)]) as nodes:
        assert nodes["d"].member.mode == 0o700
        assert nodes["d/one"].read() == b"1"


def test_hard_links_share_their_place(tmp_path: Path) -> None:
    with laid(tmp_path, [a_file("a", "text"), a_hard_link("b", "./a")]) as nodes:
        assert nodes["b"].read() == b"text"
        assert (nodes["a"].source, nodes["a"].offset) == (nodes["b"].source, nodes["b"].offset)


def test_a_hard_link_to_nothing_is_a_failure(tmp_path: Path) -> None:
    with (
        pytest.raises(StepFailed, match="/b: a hard link to /a, which is missing"),
        laid(tmp_path, [a_hard_link("b", "a")]),
    ):
        pass


THROUGH_LINKS: dict[str, tuple[Layer, ...]] = {
    "in one layer": ([a_folder("usr"), a_link("tmp", "usr"), a_file("tmp/sh", "x")],),
    "of a lower layer": ([a_folder("usr"), a_link("tmp", "usr")], [a_file("tmp/deep/sh", "x")]),
    "through a file": ([a_file("tmp", ""), a_file("tmp/sh", "x")],),
    "the link at the end": ([a_file("opt/sh", "x"), a_link("opt", "usr")],),
    "replaced at the end": ([a_link("tmp", "usr"), a_file("tmp/sh", "x"), a_folder("tmp")],),
}


@pytest.mark.parametrize("case", THROUGH_LINKS)
def test_a_path_below_a_link_is_a_failure(case: str, tmp_path: Path) -> None:
    layers = THROUGH_LINKS[case]
    fault = r"/(tmp|opt)/(deep/)?sh: its parent /(tmp|opt) is not a folder"
    with pytest.raises(StepFailed, match=fault), laid(tmp_path, *layers) as nodes:
        list(entries(nodes))
    data = tar_bytes(*(member for layer in layers for member in layer))
    with pytest.raises(StepFailed, match=fault):
        list(entries_of_tar(io.BytesIO(data)))


def test_a_mount_point_is_a_folder() -> None:
    data = tar_bytes(a_folder("usr"), a_link("run", "usr"))
    with pytest.raises(StepFailed, match="/run is a link or a file"):
        list(entries_of_tar(io.BytesIO(data)))


def test_setuid_modes_are_kept(tmp_path: Path) -> None:
    layer = [a_file("su", "s", 0o4755), a_hard_link("su2", "su"), a_folder("tmp2", 0o1777)]
    with laid(tmp_path, layer) as nodes:
        modes = {one.path: one.mode for one in entries(nodes)}
    assert modes == {"su": 0o4755, "su2": 0o4755, "tmp2": 0o1777}


def test_content_is_read_in_parts(tmp_path: Path) -> None:
    with (
        laid(tmp_path, [a_file("a", "abcdef"), a_file("b", "other")]) as nodes,
        nodes["a"].open() as data,
    ):
        assert [data.read(4), data.read(4), data.read(4)] == [b"abcd", b"ef", b""]


def packed(folder: Path, environment: Mapping[str, str], *layers: Layer) -> bytes:
    target = folder / "image.tar.gz"
    given = layout(folder / "in", *layers)
    config = {"config": {"Env": [f"{key}={value}" for key, value in environment.items()]}}
    image = Layout(path=given.path, digest="", config=config, layers=given.layers)
    digest = charliecloud.pack(PlainLayout(layout=given), flattened(given), image, target)
    assert digest == f"sha256:{hashlib.sha256(target.read_bytes()).hexdigest()}"
    return target.read_bytes()


IMAGE = [
    a_folder("usr"),
    a_file("usr/sh", "shell", 0o4755),
    a_hard_link("usr/bash", "usr/sh"),
    a_link("bin", "usr"),
    a_hard_link("bin2", "bin"),
    a_file("usr/empty", ""),
    a_hard_link("usr/empty2", "usr/empty"),
    a_folder("dev"),
    (member("dev/null", tarfile.CHRTYPE, mode=0o666), b""),
    a_folder("proc"),
]


def test_a_packed_tarball_holds_the_same_tree(tmp_path: Path) -> None:
    data = gzip.decompress(packed(tmp_path, {}, IMAGE, [a_file("usr/new", "n")]))
    with laid(tmp_path, IMAGE, [a_file("usr/new", "n")]) as nodes:
        expected = comparable(entries(nodes))
    found = comparable(entries_of_tar(io.BytesIO(data)))
    assert found == expected


def test_a_tree_with_all_mount_points_is_equal_once_packed(tmp_path: Path) -> None:
    given = [*IMAGE, a_folder("home"), a_folder("mnt", 0o700)]
    found = comparable(entries_of_tar(io.BytesIO(gzip.decompress(packed(tmp_path, {}, given)))))
    with laid(tmp_path, given) as nodes:
        assert tree_digest(found) == tree_digest(comparable(entries(nodes)))


def test_what_an_ordinary_user_cannot_unpack_is_left_out(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path, {"A": "b", "C": "d e"}, IMAGE))) as tar:
        members = {one.name: one for one in tar}
        text = tar.extractfile("ch/environment")
        assert text is not None
        assert text.read() == b"A=b\nC=d e\n"
        assert "dev/null" not in members
        assert members["dev"].isdir()
        assert {"ch", "dev", "proc", "run", "sys", "tmp"} <= members.keys()
        assert sorted(one.name for one in members.values() if one.islnk()) == ["usr/sh"]
        assert members["usr/sh"].linkname == "usr/bash"


def test_the_same_tree_gives_the_same_tarball(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = packed(tmp_path / "a", {"A": "b"}, IMAGE)
    split = packed(tmp_path / "b", {"A": "b"}, IMAGE[:1], IMAGE[1:])
    assert hashlib.sha256(one).digest() == hashlib.sha256(split).digest()
