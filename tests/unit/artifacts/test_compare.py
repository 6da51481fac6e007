"""What is said of two builds that differ."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import a_file, a_folder, a_hard_link, a_link, blob, tar_bytes

from builder.artifacts.compare import Difference, layout_differences, tarball_difference
from builder.artifacts.oci import Layout

Layer = Sequence[tuple[tarfile.TarInfo, bytes]]


def layout(folder: Path, *layers: Layer, level: int = 9, **config: Any) -> Layout:
    folder.mkdir(exist_ok=True)
    blobs = tuple(blob(folder, gzip.compress(tar_bytes(*one), level, mtime=0)) for one in layers)
    return Layout(path=folder, digest="", config=config, layers=blobs)


def differences(folder: Path, before: Layer, after: Layer) -> list[Difference]:
    return layout_differences(layout(folder / "1", before), layout(folder / "2", after))


def changed(**values: object) -> tuple[tarfile.TarInfo, bytes]:
    member, data = a_file("usr/a", "text")
    for name, value in values.items():
        setattr(member, name, value)
    return member, data


@pytest.mark.parametrize(
    ("after", "what", "text"),
    [
        (changed(mode=0o755), "mode", "mode 0755, not 0644"),
        (changed(mtime=7), "mtime", "mtime 7, not 0"),
        (changed(uid=3), "owner", "owner 3:0, not 0:0"),
        (a_file("usr/a", "other"), "content", "different content (5 bytes, not 4)"),
        (a_file("usr/a", "TEXT"), "content", "different content (4 bytes, not 4)"),
        (a_link("usr/a", "b"), "type", "link, not file"),
        (a_hard_link("usr/a", "usr"), "type", "hard link, not file"),
        (changed(pax_headers={"SCHILY.xattr.user.a": "b"}), "attributes", "different extended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_named(
    after: tuple[tarfile.TarInfo, bytes], what: str, text: str, tmp_path: Path
) -> None:
    [found] = differences(tmp_path, [a_folder("usr"), changed()], [a_folder("usr"), after])
    assert (found.where, found.path, found.what) == ("layer 1", "/usr/a", what)
    assert found.text.startswith(text)


def test_the_first_path_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    before = [a_file("b", "1"), a_file("c"), a_file("d", "1"), a_link("e", "x")]
    after = [a_file("b", "2"), a_file("c"), a_file("d", "2"), a_link("e", "y")]
    [found] = differences(tmp_path, before, after)
    assert str(found) == "layer 1: /b: different content (1 bytes, not 1), and 2 more"


@pytest.mark.parametrize(("first", "text"), [(True, "is missing"), (False, "is new")])
def test_what_is_in_one_alone(first: bool, text: str, tmp_path: Path) -> None:
    pair = [[a_file("a"), a_file("b")], [a_file("b")]]
    [found] = differences(tmp_path, *(pair if first else pair[::-1]))
    assert (found.path, found.what, found.text) == ("/a", "missing", text)


def test_each_layer_that_differs_is_named(tmp_path: Path) -> None:
    one, other, third = [a_file("a", "1")], [a_file("a", "2")], [a_file("c")]
    before, after = (layout(tmp_path / "1", one, third, one), layout(tmp_path / "2", other, third))
    found = layout_differences(before, after)
    assert [(one.where, one.what) for one in found] == [("image", "layers"), ("layer 1", "content")]
    assert found[0].text == "2 layers, not 3"


def test_the_same_layer_compressed_otherwise_or_in_another_order(tmp_path: Path) -> None:
    files = [a_file("a", "text" * 999), a_file("b")]
    before = layout(tmp_path / "1", files)
    [packed] = layout_differences(before, layout(tmp_path / "2", files, level=1))
    assert packed.what == "compression"
    assert packed.text.startswith("the same bytes in a different compression")
    [moved] = layout_differences(before, layout(tmp_path / "3", files[::-1]))
    assert (moved.what, moved.text) == ("order", "the same files in another order")


def test_configs_are_compared_but_for_the_layers_in_them(tmp_path: Path) -> None:
    before = layout(tmp_path / "1", config={"Env": ["A=b"], "User": "x"}, rootfs=1, created="then")
    after = layout(tmp_path / "2", config={"Env": ["A=c"], "User": "x"}, rootfs=2, created="then")
    [found] = layout_differences(before, after)
    assert str(found) == "config: config.Env is ['A=c'], not ['A=b']"


def test_tarballs() -> None:
    one, other = (io.BytesIO(tar_bytes(a_file("ch/environment", text))) for text in ("A=b", "A=c"))
    found = tarball_difference(one, other)
    assert (found.where, found.path) == ("tarball", "/ch/environment")
