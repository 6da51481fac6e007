"""SIF files: their objects, read without any program.

Header and descriptors: https://github.com/apptainer/sif/tree/main/pkg/sif (sif.go).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.model.errors import StepFailed

_MAGIC_AT, _MAGIC = 32, b"SIF_MAGIC"
# launch script, magic, version, architecture, id, times, then six numbers
_HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
# kind, used, id, group, link, offset, size, size with padding, times, owner, group, name, extra
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
# of a partition, in the last field: kind of file system, kind of partition, architecture
_PARTITION = struct.Struct("<ii3s")
PARTITION, JSON = 0x4004, 0x4006
_SQUASHFS, _PRIMARY = 1, 2
_ARCHITECTURES = {b"02": "x86_64", b"04": "aarch64", b"06": "ppc64le"}
_KINDS = {1: "system", _PRIMARY: "primary", 3: "data", 4: "overlay"}
LAUNCH = "#!/usr/bin/env run-singularity"  # the first line: starts a SIF that is executed
_MOST = 10_000  # descriptors: Apptainer makes 48
_LARGEST = 1 << 22  # bytes of an object that is read whole


@dataclass(frozen=True, kw_only=True, slots=True)
class SifObject:
    """One object of a SIF: `kind` is PARTITION, JSON or another of SIF's data types.

    `extra` is the part of its descriptor for that kind alone.
    """

    kind: int
    name: str
    offset: int
    size: int
    extra: bytes = b""


def is_sif(path: Path) -> bool:
    """Return whether a file begins as SIF files do."""
    with path.open("rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def json_objects(path: Path) -> dict[str, bytes]:
    """Return the JSON objects by name: `oci-config.json`, `inspect-metadata.json` have labels."""
    contents = {}
    with path.open("rb") as file:
        for entry in _objects(file, path):
            if entry.kind == JSON and entry.size <= _LARGEST:
                file.seek(entry.offset)
                contents[entry.name] = file.read(entry.size)
    return contents


def objects(path: Path) -> tuple[SifObject, ...]:
    """Return all objects; raises `StepFailed` unless the file is a complete SIF."""
    with path.open("rb") as file:
        return tuple(_objects(file, path))


def root_file_system(path: Path) -> SifObject:
    """Return the root partition of a SIF, which must be its only one: primary, in SquashFS.

    Raises `StepFailed` for a SIF with other partitions: Apptainer would lay an overlay above the
    tree that is read here, or start from another partition than the first.
    """
    partitions = [one for one in objects(path) if one.kind == PARTITION]
    kinds = [_PARTITION.unpack_from(one.extra) for one in partitions]
    if [kind[:2] for kind in kinds] != [(_SQUASHFS, _PRIMARY)]:
        names = ", ".join(_KINDS.get(kind[1], "unknown") for kind in kinds) or "none"
        raise StepFailed(
            f"{path}: expected one primary SquashFS partition in this SIF; found: {names}"
        )
    [root] = partitions
    if root.offset < _HEADER.size or root.size < 1 or root.offset + root.size > path.stat().st_size:
        raise StepFailed(f"{path}: damaged SIF: it ends within its file system")
    return root


def architecture_of(path: Path) -> str:
    """Return the architecture of a SIF's root file system; SIF's number if it is unknown here."""
    return _architecture(_PARTITION.unpack_from(root_file_system(path).extra)[2])


def launch_and_architecture(path: Path) -> tuple[str, str]:
    """Return the first line of a SIF, and the architecture in its header."""
    with path.open("rb") as file:
        fields = _header(file, path)
    return fields[0].rstrip(b"\0").decode(errors="replace").strip(), _architecture(fields[3])


def _architecture(field: bytes) -> str:
    code = field.rstrip(b"\0")
    return _ARCHITECTURES.get(code, f"SIF's number {code.decode(errors='replace')}")


def _header(file: IO[bytes], path: Path) -> tuple[Any, ...]:
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or not data[_MAGIC_AT:].startswith(_MAGIC):
        raise StepFailed(f"{path}: not a SIF")
    return _HEADER.unpack(data)


def _objects(file: IO[bytes], path: Path) -> Iterator[SifObject]:
    number, start = _header(file, path)[8:10]
    if not 0 < number <= _MOST or start < _HEADER.size:
        raise StepFailed(f"{path}: damaged SIF: its header declares {number} objects")
    file.seek(start)
    table = file.read(number * _DESCRIPTOR.size)
    if len(table) < number * _DESCRIPTOR.size:
        raise StepFailed(f"{path}: damaged SIF: it ends within its table of objects")
    for row in _DESCRIPTOR.iter_unpack(table):
        if row[1]:
            name = row[12].rstrip(b"\0").decode(errors="replace")
            yield SifObject(kind=row[0], name=name, offset=row[5], size=row[6], extra=row[13])
