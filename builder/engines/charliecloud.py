"""Charliecloud: the flattened tarball, and running what is in it as an ordinary user."""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from builder.artifacts.flatten import Node
from builder.engines.protocol import Tools

ENVIRONMENT = "ch/environment"
# Mount points that ch-run binds over, and that a read-only image must therefore have.
_MOUNT_POINTS = ("ch", "dev", "proc", "run", "sys", "tmp")


def pack(
    nodes: Mapping[str, Node], environment: Mapping[str, str], target: Path, *, tools: Tools
) -> None:
    """Write the tree as a gzipped tarball that `ch-convert` or `tar` unpacks.

    Sorted, without time stamps of its own, hard links kept: the same tree gives the same bytes.
    /dev is left empty, so that an ordinary user can unpack it. The image's variables go to
    /ch/environment, where `ch-run --set-env` looks for them.
    """
    with (
        tools.processes.writing_to([tools.program("pigz"), "-n", "-6"], target) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in _MOUNT_POINTS:
            if name not in nodes:
                archive.addfile(_directory(name))
        _add_text(archive, ENVIRONMENT, _environment_text(environment))
        _add_nodes(archive, nodes)


def _add_nodes(archive: tarfile.TarFile, nodes: Mapping[str, Node]) -> None:
    first_names: dict[tuple[Path, int], str] = {}
    for path, node in nodes.items():
        if path.startswith("dev/") or path == ENVIRONMENT:
            continue
        member = copy.copy(node.member)
        member.name = path
        member.pax_headers = {}
        if node.source is None:
            archive.addfile(member)
        elif node.size and (first := first_names.get((node.source, node.offset))):
            member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
            archive.addfile(member)
        else:
            first_names[(node.source, node.offset)] = path
            member.type, member.linkname, member.size = tarfile.REGTYPE, "", node.size
            with node.open() as data:
                archive.addfile(member, data)


def _environment_text(environment: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in environment.items())


def _directory(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data: IO[bytes] = io.BytesIO(text.encode())
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text.encode()), 0o644
    archive.addfile(member, data)
