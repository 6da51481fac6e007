"""Unpacking by our own code: the same tree as builder.artifacts.flatten, and nothing hostile."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import random
import re
import stat
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from samples import compare_with_golden

from builder.artifacts import flatten
from builder.artifacts.oci import Layout
from builder.artifacts.tree import comparable, tree_digest
from builder.distribute.pull import layers as laying
from builder.distribute.pull import members, streams
from builder.distribute.pull.artifacts import tree_on_disk
from builder.distribute.pull.folders import Root, kept_mode
from builder.distribute.pull.layers import Unpacked, read
from builder.distribute.pull.receipts import Changes
from builder.distribute.pull.streams import LIMITS
from builder.model.errors import Refused
from builder.system.home import failure_of

DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@dataclass(frozen=True)
class M:
    """A member of a layer."""

    name: str
    data: bytes = b""
    type: bytes = tarfile.REGTYPE
    to: str = ""
    mode: int = 0o644
    note: str = ""

    def info(self) -> tarfile.TarInfo:
        made = tarfile.TarInfo(self.name)
        made.type, made.linkname, made.mode, made.size = self.type, self.to, self.mode, 0
        if self.type == tarfile.REGTYPE:
            made.size = len(self.data)
        made.mtime = 1_000_000_000
        names = ("note", "second note") if self.note else ()
        made.pax_headers = {f"SCHILY.xattr.user.{name}": self.note for name in names}
        return made


def d(name: str, mode: int = 0o755) -> M:
    return M(name, type=DIR, mode=mode)


def layer(folder: Path, members: Sequence[M], *, packed: bool = True) -> tuple[Path, str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for one in members:
            archive.addfile(one.info(), io.BytesIO(one.data))
    return blob(folder, gzip.compress(buffer.getvalue(), 1) if packed else buffer.getvalue())


def blob(folder: Path, data: bytes) -> tuple[Path, str]:
    name = hashlib.sha256(data).hexdigest()
    (folder / name).write_bytes(data)
    return folder / name, f"sha256:{name}"


def unpack(layers: Sequence[tuple[Path, str]], target: Path | None) -> Unpacked:
    return laying.unpack([(digest, read(file, digest)) for file, digest in layers], target)


def refused(words: str, *layers: tuple[Path, str], target: Path | None = None) -> str:
    """Why layers are refused: in these words."""
    with pytest.raises(Refused, match=words or None) as caught:
        unpack(layers, target)
    return str(caught.value)


def by_flatten(layers: Sequence[tuple[Path, str]]) -> str:
    diff_ids = []
    for path, _ in layers:
        data = path.read_bytes()
        tar = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        diff_ids.append(f"sha256:{hashlib.sha256(tar).hexdigest()}")
    config = {"rootfs": {"diff_ids": diff_ids}}
    layout = Layout(path=Path(), digest="", config=config, layers=tuple(one for one, _ in layers))
    return tree_digest(comparable(flatten.entries_of_layout(layout)))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture(name="blobs")
def folder_of_blobs(tmp_path: Path) -> Path:
    made = tmp_path / "blobs"
    made.mkdir()
    return made


def snapshot(folder: Path) -> list[str]:
    """Everything beside the target."""
    return sorted(str(one) for one in folder.parent.rglob("*") if folder not in one.parents)


GOOD: dict[str, list[list[M]]] = {
    "a file, a folder, a link, a hard link": [
        [d("a"), M("a/f", b"x"), M("l", type=LINK, to="/a/f"), M("a/h", type=HARD, to="a/f")]
    ],
    "replaced": [[d("a"), M("a/f", b"1")], [M("a/f", b"22", mode=0o755)]],
    "a folder instead of a file": [[M("a", b"1")], [d("a"), M("a/f", b"2")]],
    "a file instead of a folder": [[d("a"), M("a/f", b"1"), d("a/b"), M("a/b/c")], [M("a", b"2")]],
    "a folder instead of a link": [[d("x"), M("a", type=LINK, to="x")], [d("a"), M("a/f")]],
    "a link instead of a folder": [[d("a"), M("a/f")], [M("a", type=LINK, to="/nowhere")]],
    "a whiteout": [[d("a"), M("a/f"), M("a/g")], [M("a/.wh.f")]],
    "a whiteout of a folder": [[d("a"), d("a/b"), M("a/b/c"), M("a/g")], [M("a/.wh.b")]],
    "a whiteout without a name": [[d("a")], [M("a/.wh.b"), M(".wh.c")]],
    "an opaque folder": [[d("a"), M("a/f"), M("a/g")], [d("a"), M("a/.wh..wh..opq"), M("a/h")]],
    "an opaque folder that is not named": [[d("a", 0o700), M("a/f")], [M("a/.wh..wh..opq")]],
    "opaque after its content": [
        [d("a"), M("a/f"), d("a/b"), M("a/b/c")],
        [d("a"), M("a/f", b"new"), d("a/b"), M("a/b/d"), M("a/.wh..wh..opq")],
    ],
    "a whiteout after what replaces it": [
        [M("f", b"1"), d("a"), M("a/b")],
        [M("f", b"2"), M(".wh.f"), d("a"), M("a/c"), M(".wh.a")],
    ],
    "a whiteout of a folder that gets something new": [
        [d("a", 0o700), M("a/b")],
        [M("a/c"), M(".wh.a")],
    ],
    "a hard link to a lower layer": [[M("f", b"1")], [M("g", type=HARD, to="f"), M(".wh.f")]],
    "a hard link to what is replaced": [
        [M("f", b"1")],
        [M("g", type=HARD, to="./f"), M("f", b"2")],
    ],
    "a hard link instead of a folder": [
        [M("f", b"1"), d("a"), M("a/b")],
        [M("a", type=HARD, to="f")],
    ],
    "folders that nobody declares": [[M("a/b/c/f", b"1")], [M("a/b/.wh.c")]],
    "odd names": [[M("./-n", b"1"), M("a b", b"2"), M("é\udcff", b"3"), M("y/" + "x" * 255)]],
    "the deepest path": [[M("/".join("x" * 200))]],
    "a setuid program": [[d("bin"), M("bin/su", b"#!", mode=0o4755), M("w", mode=0o2755)]],
    "closed to its owner": [[d("a", 0o000), M("a/f", mode=0o000)]],
    "a pipe": [[M("p", type=tarfile.FIFOTYPE, mode=0o600)]],
    "a device in /dev": [[d("dev"), M("dev/null", type=tarfile.CHRTYPE)], [M("dev/.wh.null")]],
    "attributes": [[M("a", b"1", note="x=y")], [d("b"), M("b/c", note="z")]],
    "nothing": [[]],
    "links all over": [
        [M("a", type=LINK, to="b"), M("b", type=LINK, to="a"), M("c", type=LINK, to="../..")]
    ],
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("packed", [True, False])
def test_the_tree_is_that_of_flatten(name: str, packed: bool, blobs: Path, target: Path) -> None:
    layers = [layer(blobs, members, packed=packed) for members in GOOD[name]]
    before = snapshot(target)
    found = unpack(layers, target)
    assert found.tree == by_flatten(layers) == unpack(layers, None).tree
    assert found.on_disk == tree_on_disk(target)
    assert snapshot(target) == before


def random_layers(rng: random.Random) -> Iterator[list[M]]:
    """Layers that change each other: names meet often, folders come before what is in them."""
    for _ in range(rng.randint(1, 4)):
        members: list[M] = []
        files: set[str] = set()
        folders = [""]
        for _ in range(rng.randint(0, 12)):
            folder = rng.choice(folders)
            name = f"{folder}/{rng.choice('abc')}" if folder else rng.choice("abc")
            hidden = f"{folder}/" if folder else ""
            kind = rng.choice(["file", "folder", "link", "whiteout", "opaque"])
            if kind == "whiteout":
                members.append(M(f"{hidden}.wh.{rng.choice('abc')}"))
            elif kind == "opaque" and folder:
                members.append(M(f"{hidden}.wh..wh..opq"))
            elif name in files or name in folders:
                continue
            elif kind == "folder":
                members.append(d(name, rng.choice([0o755, 0o700, 0o2775])))
                folders.append(name)
            else:
                files.add(name)
                made = M(name, rng.randbytes(rng.randint(0, 9)), mode=rng.choice([0o644, 0o4755]))
                members.append(replace(made, type=LINK, to="a/b") if kind == "link" else made)
        yield members


@pytest.mark.parametrize("seed", range(150))
def test_random_layers_come_to_the_tree_of_flatten(seed: int, blobs: Path, target: Path) -> None:
    layers = [layer(blobs, one) for one in random_layers(random.Random(seed))]
    found = unpack(layers, target)
    assert found.tree == by_flatten(layers) == unpack(layers, None).tree
    assert found.on_disk == tree_on_disk(target)


HOSTILE: dict[str, list[M]] = {
    "a path that goes up": [M("../x", b"1")],
    "a path that goes up within": [d("a"), M("a/../../x", b"1")],
    "an absolute path": [M("/etc/x", b"1")],
    "through an absolute link": [M("a", type=LINK, to="/"), M("a/x", b"1")],
    "through a link that goes up": [M("a", type=LINK, to=".."), M("a/x", b"1")],
    "through a link below": [d("b"), M("a", type=LINK, to="b"), M("a/x", b"1")],
    "a folder through a link": [M("a", type=LINK, to="/tmp"), d("a/b")],
    "a whiteout that goes up": [M(".wh...", b"")],
    "a whiteout of itself": [M("a/.wh..", b"")],
    "a whiteout without a name": [M(".wh.", b"")],
    "a hard link that goes up": [M("a", type=HARD, to="../x")],
    "an absolute hard link": [M("a", type=HARD, to="/etc/passwd")],
    "a hard link to nothing": [M("a", type=HARD, to="b")],
    "a hard link to itself": [M("a"), M("a", type=HARD, to="a")],
    "a hard link to a folder": [d("b"), M("a", type=HARD, to="b")],
    "a hard link through a link": [
        M("l", type=LINK, to="/etc"),
        M("a", type=HARD, to="l/passwd"),
    ],
    "a device": [d("etc"), M("etc/x", type=tarfile.BLKTYPE)],
    "a device at the top": [M("dev", type=tarfile.CHRTYPE)],
    "below a file": [M("a", b"1"), M("a/x", b"1")],
    "a file in the place of a folder with content": [d("a"), M("a/f"), M("a")],
    "a long name": [M("x" * 256)],
    "a long path": [M("/".join(["x" * 200] * 20 + ["x" * 76]))],
    "a deep path": [M("/".join("x" * 201))],
    "a null byte": [M("é\0b", b"1")],
    "an unknown kind": [M("a", type=b"D")],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("writes", [True, False])
def test_a_hostile_layer_is_refused(name: str, writes: bool, blobs: Path, target: Path) -> None:
    made = layer(blobs, HOSTILE[name])
    before = snapshot(target)
    assert made[1][:19] in refused("", made, target=target if writes else None)
    assert snapshot(target) == before


def test_a_link_of_a_lower_layer_is_not_gone_through(blobs: Path, target: Path) -> None:
    layers = [layer(blobs, [M("a", type=LINK, to="..")]), layer(blobs, [M("a/x", b"1")])]
    refused("is a link", *layers, target=target)


def test_what_is_on_disk_is_said(blobs: Path, target: Path) -> None:
    members = [d("b", 0o2755), M("b/su", b"1", mode=0o6755), M("shadow", mode=0o000)]
    devices = [d("dev"), M("dev/null", type=tarfile.CHRTYPE), M("dev/a/b", type=tarfile.BLKTYPE)]
    layers = [[M("dev/null", b"1")], [*members, *devices, M("more/a", note="x")]]
    assert unpack([layer(blobs, one) for one in layers], target).changes == {
        "setuid and setgid bits that were dropped": Changes(count=2, paths=("/b", "/b/su")),
        "paths that were made readable for their owner": Changes(count=1, paths=("/shadow",)),
        "devices that were left out, which runtimes make": Changes(
            count=2, paths=("/dev/null", "/dev/a/b")
        ),
        "extended attributes that were left out": Changes(count=1, paths=("/more/a",)),
    }
    undeclared = (target / "more").stat()
    assert (stat.S_IMODE(undeclared.st_mode), undeclared.st_mtime) == (0o755, 0)
    assert stat.S_IMODE((target / "b/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "b").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "shadow").stat().st_mode) == 0o400
    assert list((target / "dev").iterdir()) == []
    assert (target / "b/su").stat().st_mtime == (target / "b").stat().st_mtime == 1_000_000_000


def test_of_many_changes_twenty_are_named_and_folders_of_no_layer_are_usual(
    blobs: Path, target: Path
) -> None:
    many = [M(f"a/{number:02}", mode=0o4755) for number in range(21)]
    link = M("l", type=LINK, to="a", mode=0o6000)  # whose mode is none
    [change] = unpack([layer(blobs, [*many, link])], target).changes.values()
    assert change == Changes(count=21, paths=tuple(f"/a/{number:02}" for number in range(20)))
    status = (target / "a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o755, 0)


def test_attributes_are_in_the_tree_and_not_on_disk(target: Path) -> None:
    info = M("a").info()
    info.pax_headers = {"SCHILY.xattr.user.x": "y"}
    found = laying.unpack([("sha256:0", [(info, "a", [])])], target)
    left_out = {"extended attributes that were left out": Changes(count=1, paths=("/a",))}
    assert found.changes == left_out
    assert found.on_disk == tree_on_disk(target) != found.tree


def test_names_that_would_steer_a_terminal_are_shown_harmless(blobs: Path, target: Path) -> None:
    odd = [M("a\x1b[2J\n\udcff", mode=0o4755)]
    found = unpack([layer(blobs, odd)], target)
    assert list(found.changes.values()) == [Changes(count=1, paths=("/a\\x1b[2J\\n\\udcff",))]
    for hostile in ([M("\x1b[2J/../x")], [d("\x1b[2J"), M("\x1b[2J/x", type=tarfile.BLKTYPE)]):
        said = refused("", layer(blobs, hostile))
        assert "\x1b" not in said
        assert "\\x1b[2J" in said


def test_another_digest_is_refused(blobs: Path, target: Path) -> None:
    made, digest = layer(blobs, [M("a", b"1")])
    data = bytearray(made.read_bytes())
    data[9] ^= 1  # the system in the header: it unpacks as before
    made.write_bytes(data)
    refused("the blob has the digest sha256:", (made, digest), target=target)


@pytest.mark.parametrize("packed", [True, False])
def test_plain_bytes_are_those_that_the_configuration_names(packed: bool, tmp_path: Path) -> None:
    """Podman and Skopeo compare them when they take an image."""
    file, digest = layer(tmp_path, [M("a", b"1"), M("b", b"22", mode=0o755)], packed=packed)
    data = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
    good, wrong = f"sha256:{hashlib.sha256(data).hexdigest()}", "sha256:" + "00" * 32
    assert [path for _, path, _ in read(file, digest, good)] == ["a", "b"]
    with pytest.raises(Refused, match="but the configuration has sha256:0000"):
        list(read(file, digest, wrong))


def test_every_byte_of_a_small_layer_counts(blobs: Path) -> None:
    made, digest = layer(blobs, [d("a"), M("a/f", b"some text")])
    whole = made.read_bytes()
    for at in range(len(whole)):
        for spoilt in (whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :], whole[:at]):
            made.write_bytes(spoilt)
            refused("", (made, digest))


PLAIN_TAR = tarfile.TarInfo("f").tobuf(tarfile.PAX_FORMAT) + bytes(1024)
PACKED = gzip.compress(PLAIN_TAR, 1, mtime=0)


SPARSE = M("x", type=tarfile.GNUTYPE_SPARSE).info().tobuf(tarfile.GNU_FORMAT)
UNREAD = {
    "no checksum": PACKED[:-8],
    "half a checksum": PACKED[:-3],
    "another checksum": PACKED[:-8] + b"1234" + PACKED[-4:],
    "another length": PACKED[:-4] + b"1234",
    "bytes after it": PACKED + b"rest",
    "zeros after it": PACKED + bytes(512),
    "the beginning of a member": PACKED + PACKED[:10],
    "a second tar": PACKED + gzip.compress(PLAIN_TAR),
    "zstd": b"\x28\xb5\x2f\xfd" + PACKED,
    "xz": b"\xfd7zXZ\0" + PACKED,
    "bzip2": b"BZh9" + PACKED,
    "no tar": b"x" * 600,
    "half a tar": bytes(511),
    "a sparse file": SPARSE + bytes(1024),
}


def test_all_that_is_told_of_layers_that_are_refused(blobs: Path) -> None:
    """Also of those that other readers refuse."""
    assert unpack([blob(blobs, PACKED)], None).paths == 1
    for one in (PACKED + gzip.compress(bytes(512)), PACKED + gzip.compress(b"")):
        assert unpack([blob(blobs, one)], None).paths == 1
    layers = {name: layer(blobs, members) for name, members in HOSTILE.items()}
    layers |= {name: blob(blobs, data) for name, data in UNREAD.items()}
    lines = [f"== {name}\n{refused('', made)}\n" for name, made in layers.items()]
    told = re.sub(r"sha256:[0-9a-f]+", "DIGEST", "".join(lines))
    told = re.sub(r"damaged \(.*\)", "damaged (WHY)", told)  # in the words of zlib or isal
    compare_with_golden(told.replace("x" * 100, "..."), "refused-layers.txt")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"small": 1 << 20}, "bomb: .* bytes expand to more than"),
        ({"plain": 1 << 20}, "bomb"),
        ({"entries": 49}, "more than 49 entries"),
        ({"entries": 100}, "more than 100 entries"),
    ],
)
def test_bombs_are_refused(
    limit: dict[str, int], reason: str, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = layer(blobs, [M("zeros", bytes(3 << 20))])
    many = layer(blobs, [M(f"f{n}") for n in range(50)])
    whiteouts = layer(blobs, [M(f".wh.f{n}") for n in range(50)])
    assert unpack([zeros, many, whiteouts], None).paths == 1
    for module in (streams, members, laying):
        monkeypatch.setattr(module, "LIMITS", replace(LIMITS, **limit))
    refused(reason, zeros, many, whiteouts)


def test_what_is_as_large_as_allowed_is_no_bomb(
    blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes of a layer, to those of its file, and of all files of an image."""
    made = layer(blobs, [M("a", random.Random(1).randbytes(5000))])
    size = len(gzip.decompress(made[0].read_bytes()))
    for limit, is_allowed in (
        ({"ratio": 0, "small": size}, True),
        ({"ratio": 0, "small": size - 1}, False),
        ({"plain": size}, True),
        ({"plain": size - 1}, False),
        ({"small": 0, "ratio": 20}, True),
        ({"small": 0, "ratio": 1}, False),
    ):
        monkeypatch.setattr(streams, "LIMITS", replace(LIMITS, **limit))
        monkeypatch.setattr(members, "LIMITS", replace(LIMITS, entries=1))
        if is_allowed:
            assert unpack([made], None).paths == 1
        else:
            refused("possible decompression bomb", made)
    monkeypatch.setattr(laying, "LIMITS", replace(LIMITS, plain=15, entries=2))
    for size, is_allowed in ((10, True), (11, False)):
        lists = [
            (f"sha256:{name}", [(M(name, bytes(number)).info(), name, [bytes(number)])])
            for name, number in (("a", 5), ("b", size))
        ]
        if is_allowed:
            assert laying.unpack(lists, None).paths == 2
        else:
            with pytest.raises(Refused, match="possible decompression bomb: more than 15 bytes"):
                laying.unpack(lists, None)


def test_a_whiteout_bomb_takes_no_longer_than_it_has_entries(blobs: Path) -> None:
    """Each whiteout would look at every path, were they not kept by folder."""
    number = 8_000
    some = layer(blobs, [d("a"), *(M(f"a/f{n}") for n in range(number))])
    gone = layer(blobs, [M(f"a/.wh.f{n}") for n in range(number)])
    opaque = layer(blobs, [M("a/.wh..wh..opq") for _ in range(number)])
    assert unpack([some, gone, opaque], None).paths == 1


@pytest.mark.parametrize("whiteout", ["a/.wh..wh..opq", ".wh.a"])
def test_whiteouts_of_what_their_own_layer_has_take_no_longer(blobs: Path, whiteout: str) -> None:
    """Each would look at every path of the layer once more, and hide none."""
    number = 10_000
    files = [M(f"a/f{n}") for n in range(number)]
    start = time.process_time()
    made = layer(blobs, [*files, *(M(whiteout) for _ in range(number))])
    assert unpack([made], None).paths == number
    assert time.process_time() - start < 10


def test_an_extended_header_of_a_gigabyte_is_refused(blobs: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        header = M("x", type=kind).info()
        header.size = 1 << 30
        made = blob(blobs, gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 16)))
        refused("extended tar header", made)


def test_a_sparse_file_is_refused(blobs: Path) -> None:
    pax = M("x", b"1\n0\n1\n").info()
    pax.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}
    refused("sparse", blob(blobs, pax.tobuf(tarfile.PAX_FORMAT) + bytes(1024)))


@pytest.mark.parametrize("data", [b"", b"no tar", b"\x1f\x8b", b"x" * 600, bytes(511)])
def test_rubbish_is_refused_or_empty(data: bytes, blobs: Path) -> None:
    made = blob(blobs, data)
    try:
        found = unpack([made], None)
    except Refused:
        return
    assert found == Unpacked(tree=tree_digest({}), paths=0)
    assert data == b""


def test_a_file_that_breaks_off_is_refused(blobs: Path, target: Path) -> None:
    header = M("x", b"12345").info().tobuf()
    for rest in (b"", b"123"):
        refused("", blob(blobs, header + rest), target=target)
        (target / "x").unlink(missing_ok=True)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a full disk: the error of `write` has no path."""

    def content() -> Iterator[bytes]:
        yield b"text"
        raise OSError(errno.ENOSPC, "No space left on device")

    root = Root(tmp_path)
    with pytest.raises(OSError, match="No space left") as caught:
        root.file("file", content(), 0o644, 0)
    root.close()
    assert str(failure_of(caught.value)).startswith(f"{tmp_path}/file: No space left on device\n")


def test_nothing_leads_out_of_a_root_whatever_lies_in_it(tmp_path: Path, target: Path) -> None:
    """Also if a link were there that no layer has made: no component is ever followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (target / "link").symlink_to(outside)
    (target / "file-link").symlink_to(outside / "kept")
    root = Root(target)
    try:
        for work in (
            lambda: root.file("link/x", [b"1"], 0o644, 0),
            lambda: root.file("file-link", [b"1"], 0o644, 0),
            lambda: root.folder("link/x"),
            lambda: root.link("link/x", "y", 0),
            lambda: root.pipe("link/x", 0o600),
            lambda: root.same("x", "link/kept"),
            lambda: root.same("link/x", "file-link"),
            lambda: root.remove("link/kept", folder=False),
            lambda: root.settle("link", 0o777, 0),
        ):
            with pytest.raises((Refused, OSError)):
                work()
    finally:
        root.close()
    assert [one.name for one in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert stat.S_IMODE(outside.stat().st_mode) != 0o777


# What is written on a disk.


@pytest.mark.parametrize(
    ("mtime", "on_disk"),
    [(-5.0, 0), (0, 0), (1.9, 1), (2**31 - 1, 2**31 - 1), (2**31, 2**31 - 1), (2**40, 2**31 - 1)],
)
def test_times_are_those_that_every_file_system_holds(
    mtime: float, on_disk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real_open = list[str](), os.open

    def noting(path: str, *words: Any, **options: Any) -> int:
        opened.append(str(path))
        return real_open(path, *words, **options)

    monkeypatch.setattr(os, "open", noting)
    before = sorted(Path("/proc/self/fd").iterdir())
    root = Root(tmp_path)
    root.folder("d")

    def content() -> Iterator[bytes]:
        assert [stat.S_IMODE((tmp_path / one).stat().st_mode) for one in ("d", "d/f")] == [
            *(0o700, 0o600),  # nobody else reads what is not whole
        ]
        yield b"text"

    root.file("d/f", content(), 0o640, mtime)
    root.link("d/l", "f", mtime)
    root.same("d/same", "d/l")
    root.settle("d", 0o750, mtime)
    root.close()
    assert opened == [str(tmp_path), "d", "f"]  # a folder is opened once for all that is in it
    assert (tmp_path / "d/same").readlink() == Path("f")  # the link itself has two names
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    for name, mode in [("d", 0o750), ("d/f", 0o640), ("d/l", 0o777)]:
        status = (tmp_path / name).lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (mode, on_disk)


@pytest.mark.parametrize(
    ("mode", "folder", "kept"),
    [
        (0o6755, False, 0o755),
        (0o000, False, 0o400),
        (0o000, True, 0o700),
        (0o1777, True, 0o1777),
        (0o2755, True, 0o755),
    ],
)
def test_modes_that_are_kept(mode: int, folder: bool, kept: int) -> None:
    assert kept_mode(mode, folder=folder) == kept
