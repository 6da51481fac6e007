"""The tree of a SIF is read where Apptainer starts it, or not at all."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from builder.artifacts.sif import PARTITION, root_file_system
from builder.engines.apptainer import _copy_squashfs
from builder.errors import StepFailed

SQUASHFS, EXT3 = 1, 2
SYSTEM, PRIMARY, DATA, OVERLAY = 1, 2, 3, 4
TREE = b"hsqs and the rest"


def sif(file: Path, *parts: tuple[int, int, bytes], cut: int = 0) -> Path:
    """A SIF with partitions: (kind of file system, kind of partition, content)."""
    table, start = b"", 4096
    body = b""
    for number, (kind, role, content) in enumerate(parts, start=1):
        numbers = (start + len(body), len(content), len(content), 0, 0, 0, 0)
        extra = struct.pack("<ii3s", kind, role, b"02")
        fixed = (PARTITION, True, number, 1, 0, *numbers, b"", extra)
        table += struct.pack("<i?IIIqqqqqqq128s384s", *fixed)
        body += content.ljust(4096, b"\0")
    head = struct.pack(
        "<32s10s3s3s16sqqqqqqqq",
        *(b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"\0" * 16),
        *(0, 0, 0, len(parts) or 1, 128, len(table), start, len(body)),
    )
    data = (head + table).ljust(start, b"\0") + body
    file.write_bytes(data[: len(data) - cut])
    return file


def test_the_one_primary_partition_is_read_by_its_descriptor(tmp_path: Path) -> None:
    image = sif(tmp_path / "image.sif", (SQUASHFS, PRIMARY, TREE))
    assert (root_file_system(image).offset, root_file_system(image).size) == (4096, len(TREE))
    pieces: list[bytes] = []
    _copy_squashfs(image, tmp_path / "squashfs", pieces.append)
    assert (tmp_path / "squashfs").read_bytes() == TREE
    assert b"".join(pieces) == image.read_bytes()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([(SQUASHFS, DATA, TREE), (SQUASHFS, PRIMARY, b"hsqs other")], "data, primary"),
        ([(SQUASHFS, PRIMARY, TREE), (EXT3, OVERLAY, b"above")], "primary, overlay"),
        ([(SQUASHFS, PRIMARY, TREE), (SQUASHFS, PRIMARY, TREE)], "primary, primary"),
        ([(SQUASHFS, SYSTEM, TREE)], "system"),
        ([(EXT3, PRIMARY, TREE)], "primary"),
        ([], "none"),
    ],
)
def test_any_other_partitions_are_refused(
    parts: list[tuple[int, int, bytes]], names: str, tmp_path: Path
) -> None:
    image = sif(tmp_path / "image.sif", *parts)
    with pytest.raises(StepFailed, match=f"there are: {names}$"):
        root_file_system(image)
    with pytest.raises(StepFailed):
        _copy_squashfs(image, tmp_path / "squashfs", None)


def test_a_file_system_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    image = sif(tmp_path / "image.sif", (SQUASHFS, PRIMARY, TREE * 200), cut=1000)
    with pytest.raises(StepFailed, match="it ends within its file system"):
        root_file_system(image)
