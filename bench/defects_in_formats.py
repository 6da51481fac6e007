"""Defects in the formats of an image, one in one format: trees, layers, SIF, harness."""

from __future__ import annotations

import dataclasses
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import defects_in_metadata
from campaign import Case
from made_formats import (
    FILES,
    FOLDER,
    Node,
    SifPart,
    base_tree,
    edit_config,
    edit_manifest,
    harness_digests,
    sound,
)

from builder.model import FORMATS

TREE = base_tree()
SOUND = sound(TREE)
Change = Callable[[dict[str, Node]], object]
_KEEPING_OWNERS = ("oci", "charliecloud")
_EXT3, _SYSTEM, _DATA, _OVERLAY = 2, 1, 3, 4


def cases() -> list[Case]:
    """All defects of this kind."""
    return [
        *_in_trees(),
        *_in_layers(),
        *defects_in_metadata.cases(),
        *_in_sifs(),
        *_in_harnesses(),
    ]


# ---- Trees ----


def put(path: str, **changes: Any) -> Change:
    """Another file, or one whose fields are others."""
    return lambda tree: tree.update(
        {path: dataclasses.replace(tree.get(path, Node(data=b"more")), **changes)}
    )


def _rename(old: str, new: str) -> Change:
    return lambda tree: tree.update({new: tree.pop(old)})


_TREE_DEFECTS: dict[str, tuple[Change, str]] = {
    "a byte changed": (put("srv/data", data=b"1" + b"0123456789" * 20), r"/srv/data: "),
    "a bit changed": (
        put("srv/data", data=b"0123456789" * 19 + b"0123456788"),
        "different content",
    ),
    "a file missing": (lambda tree: tree.pop("srv/data"), r"/srv/data: only in"),
    "an empty file missing": (lambda tree: tree.pop("srv/none"), r"/srv/none: only in"),
    "an empty folder missing": (lambda tree: tree.pop("srv/empty"), r"/srv/empty: only in"),
    "a file more": (put("srv/more"), r"/srv/more: only in"),
    "a file more beside a folder that is left out": (put("dev.d"), r"/dev\.d: only in"),
    "a file emptied": (put("etc/passwd", data=b""), r"/etc/passwd: "),
    "executable": (put("srv/data", mode=0o744), r"/srv/data: mode"),
    "written by the group": (put("srv/data", mode=0o664), r"/srv/data: mode"),
    "written by others": (put("etc/passwd", mode=0o646), r"/etc/passwd: mode"),
    "setuid lost": (put("usr/bin/su", mode=0o755), r"/usr/bin/su: mode"),
    "setuid given": (put("usr/bin/ping", mode=0o4755), r"/usr/bin/ping: mode"),
    "setgid of a folder lost": (put("srv/shared", mode=0o775), r"/srv/shared: mode"),
    "a sticky bit lost": (put("srv/drop", mode=0o777), r"/srv/drop: mode"),
    "a link that leads elsewhere": (put("srv/link", target="none"), r"/srv/link: links to"),
    "a file in place of a link": (
        lambda tree: tree.update({"srv/link": tree["srv/data"]}),
        r"/srv/link: ",
    ),
    "a folder in place of a file": (
        lambda tree: tree.update({"srv/none": FOLDER}),
        r"/srv/none: ",
    ),
    "a file in place of a pipe": (put("srv/pipe", kind=tarfile.REGTYPE), r"/srv/pipe: "),
    "an attribute lost": (put("srv/noted", attributes={}), r"/srv/noted: "),
    "an attribute changed": (put("srv/noted", attributes={"user.note": "y"}), r"/srv/noted: "),
    "a name in capitals": (_rename("srv/data", "srv/DATA"), r"/srv/DATA: only in"),
    "a name with a newline": (put("srv/a\nb passed"), r"/srv/a.{1,4}b passed: only in"),
}
_OWNER_DEFECTS: dict[str, tuple[Change, str]] = {
    "a user": (put("etc/shadow", uid=1, gid=42), r"/etc/shadow: owner"),
    "a group": (put("etc/shadow", gid=0), r"/etc/shadow: owner"),
    "a capability lost": (put("usr/bin/ping", attributes={}), r"/usr/bin/ping: owner"),
}


def _in_trees() -> Iterator[Case]:
    for kinds, formats in ((_TREE_DEFECTS, FORMATS), (_OWNER_DEFECTS, _KEEPING_OWNERS)):
        for name, (change, named) in kinds.items():
            for where in formats:
                tree = dict(TREE)
                change(tree)
                spoiled = SOUND.in_format(where, tree)
                yield Case(
                    family="trees", name=f"{name}: {where}", faults=spoiled.faults, named=named
                )


# ---- Layers ----


def _layout(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / FILES["oci"])


def _largest(layout: Path) -> Path:
    return max((layout / "blobs/sha256").iterdir(), key=lambda one: one.stat().st_size)


def _with_blob(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Other bytes under the same name."""

    def spoil(layout: Path) -> None:
        blob = _largest(layout)
        blob.write_bytes(change(blob.read_bytes()))

    return spoil


def _in_manifest(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda layout: edit_manifest(layout, change)


def _in_config(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda layout: edit_config(layout, change)


def _in_index(change: Callable[[Any], object]) -> Callable[[Path], object]:
    def spoil(layout: Path) -> None:
        index = json.loads((layout / "index.json").read_text())
        change(index)
        (layout / "index.json").write_text(json.dumps(index))

    return spoil


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _without_layers(layout: Path) -> None:
    edit_manifest(layout, lambda manifest: manifest["layers"].clear())
    edit_config(layout, lambda config: config["rootfs"].update(diff_ids=[]))


_NO_DIGEST = "sha256:" + "0" * 64
_LAYER_DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit flipped": (_with_blob(_flipped), "oci: "),
    "cut off": (_with_blob(lambda data: data[: len(data) // 2]), "oci: "),
    "emptied": (_with_blob(lambda _: b""), "oci: "),
    "bytes after its end": (_with_blob(lambda data: data + b"more"), "oci: "),
    "missing": (lambda layout: _largest(layout).unlink(), "oci: "),
    "another diff_id": (
        _in_config(lambda config: config["rootfs"].update(diff_ids=[_NO_DIGEST])),
        "this layer differs from sha256:0000",
    ),
    "a diff_id more": (
        _in_config(lambda config: config["rootfs"]["diff_ids"].append(_NO_DIGEST)),
        "1 layers, but 2 diff_ids",
    ),
    "no diff_ids": (_in_config(lambda config: config.pop("rootfs")), "but 0 diff_ids"),
    "another size": (
        _in_manifest(lambda manifest: manifest["layers"][0].update(size=1)),
        "bytes, but its descriptor says 1",
    ),
    "another size of the configuration": (
        _in_manifest(lambda manifest: manifest["config"].update(size=1)),
        "bytes, but its descriptor says 1",
    ),
    "another size of the manifest": (
        _in_index(lambda index: index["manifests"][0].update(size=1)),
        "bytes, but its descriptor says 1",
    ),
    "said to be plain": (
        _in_manifest(
            lambda manifest: manifest["layers"][0].update(
                mediaType="application/vnd.oci.image.layer.v1.tar"
            )
        ),
        "but its descriptor says",
    ),
    "a configuration of another kind": (
        _in_manifest(lambda manifest: manifest["config"].update(mediaType="text/plain")),
        "its configuration is a text/plain",
    ),
    "dropped": (
        _without_layers,
        "only in",
    ),
    "two images": (
        _in_index(lambda index: index["manifests"].append(index["manifests"][0])),
        "2 images in the OCI layout",
    ),
    "no image": (_in_index(lambda index: index["manifests"].clear()), "0 images in the OCI"),
    "for arm64": (
        _in_config(lambda config: config.update(architecture="arm64")),
        "for the architecture arm64",
    ),
    "for a variant": (_in_config(lambda config: config.update(variant="v9")), "the variant v9 of"),
    "without its file oci-layout": (
        lambda layout: (layout / "oci-layout").unlink(),
        "oci-layout says version None",
    ),
    "of another version": (
        lambda layout: (layout / "oci-layout").write_text('{"imageLayoutVersion": "9"}'),
        "oci-layout says version 9",
    ),
    "for Windows": (_in_config(lambda config: config.update(os="windows")), "the os windows"),
    "said to be for ppc64le": (
        _in_index(
            lambda index: index["manifests"][0].update(
                platform={"architecture": "ppc64le", "os": "linux"}
            )
        ),
        "its index is for the architecture ppc64le",
    ),
    "an annotation that is not the label": (
        _in_manifest(lambda manifest: manifest.update(annotations={"title": "another"})),
        "the annotation title is 'another'",
    ),
}


def _in_layers() -> Iterator[Case]:
    for name, (change, named) in _LAYER_DEFECTS.items():
        spoiled = dataclasses.replace(SOUND, after=_layout(change))
        yield Case(family="layers", name=name, faults=spoiled.faults, named=named)
    above = {"srv/.wh.data": Node(), "srv/noted": TREE["srv/noted"]}
    opaque = {"srv/.wh..wh..opq": Node()}
    older = {**TREE, "srv/data": Node(data=b"older")}
    for name, layers, named in (
        ("a whiteout more", (TREE, above), "/srv/data: only in"),
        ("an opaque folder more", (TREE, opaque), "/srv/data: only in"),
        ("in another order", (TREE, {"srv/data": older["srv/data"]}), "/srv/data: "),
        ("a whiteout lost", ({**TREE, "srv/gone": Node(data=b"x")}, {}), "/srv/gone: only in"),
    ):
        spoiled = dataclasses.replace(SOUND, layers=layers)
        yield Case(family="layers", name=name, faults=spoiled.faults, named=named)


# ---- The SIF ----


def _in_sifs() -> Iterator[Case]:
    whole, other = SifPart(), SifPart(content=b"hsqs other")
    expected = "expected one primary SquashFS partition in this SIF"
    parts: dict[str, tuple[tuple[SifPart, ...], str]] = {
        "two file systems": ((whole, other), expected),
        "data before the file system": ((dataclasses.replace(other, role=_DATA), whole), expected),
        "an overlay": (
            (whole, SifPart(content=b"x", system=_EXT3, role=_OVERLAY)),
            expected,
        ),
        "a system partition": ((SifPart(role=_SYSTEM),), expected),
        "no file system": ((), expected),
        "ext3": ((SifPart(system=_EXT3),), expected),
        "for ppc64le": ((SifPart(arch=b"06"),), "for ppc64le, expected x86_64"),
        "for a number that is not known": ((SifPart(arch=b"99"),), "SIF's number 99"),
        "a file system beyond its end": ((SifPart(past_end=1 << 30),), "it ends within its file"),
        "no SquashFS": ((SifPart(content=b"no file system"),), "sif: "),
    }
    for name, (partitions, named) in parts.items():
        image = dataclasses.replace(SOUND, parts=partitions)
        yield Case(family="SIF", name=name, faults=image.faults, named=named)
    files: dict[str, tuple[Callable[[bytes], bytes], str]] = {
        "another first line": (
            lambda data: b"#!/bin/evil\n".ljust(32, b"\0") + data[32:],
            "its first line is '#!/bin/evil'",
        ),
        "a header for ppc64le": (
            lambda data: data[:45] + b"06" + data[47:],
            "its header is for ppc64le, but its file system is for x86_64",
        ),
        "no magic": (lambda data: data[:32] + b"X" + data[33:], "not a SIF"),
        "cut off": (lambda data: data[: 65536 + 200], "sif: "),
        "cut off in its header": (lambda data: data[:100], "not a SIF"),
        "a bit flipped": (
            lambda data: data[:65836] + _flipped(data[65836:66100]) + data[66100:],
            "sif: ",
        ),
    }
    for name, (change, named) in files.items():
        image = dataclasses.replace(SOUND, after=_file("sif", change))
        yield Case(family="SIF", name=name, faults=image.faults, named=named)
    for name, change in {
        "cut off": lambda data: data[: len(data) // 2],
        "emptied": lambda _: b"",
        "a bit flipped": _flipped,
        "no gzip": lambda data: b"x" + data,
    }.items():
        image = dataclasses.replace(SOUND, after=_file("charliecloud", change))
        yield Case(family="tarball", name=name, faults=image.faults, named="charliecloud: ")


def _file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        path = folder / FILES[name]
        path.write_bytes(change(path.read_bytes()))

    return spoil


# ---- The harness ----


def _in_harnesses() -> Iterator[Case]:
    """Files of the harness in all formats alike, so that the trees are equal."""
    expected = harness_digests(TREE)
    for number, path in enumerate(sorted(expected)):
        changed = dataclasses.replace(TREE[path], data=TREE[path].data + b"\n: \n")
        without = {one: node for one, node in TREE.items() if one != path}
        for name, tree, named in (
            ("changed", {**TREE, path: changed}, "differs from the builder's"),
            ("missing", without, "is missing"),
            ("a link", {**TREE, path: Node(kind=tarfile.SYMTYPE, target="/srv/data")}, "builder's"),
        ):
            image = dataclasses.replace(SOUND.everywhere(tree), harness=expected)
            pattern = rf"/{re.escape(path)} .*{named}|contract"
            yield Case(family="harness", name=f"{name}: {path}", faults=image.faults, named=pattern)
        if number < len(("checks", "bin")):
            more = f"opt/build-images/{('checks', 'bin')[number]}/more"
            image = dataclasses.replace(
                SOUND.everywhere({**TREE, more: Node(data=b"x", mode=0o755)}), harness=expected
            )
            yield Case(
                family="harness", name=f"more: {more}", faults=image.faults, named="builder's"
            )
