"""Charliecloud: packing the flattened tarball with the file of the image's variables in it."""

from __future__ import annotations

import contextlib
import copy
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from builder.artifacts.flatten import MOUNT_POINTS, TreeNode
from builder.artifacts.oci import Layout, blob_path
from builder.artifacts.repack import PlainLayout
from builder.artifacts.tars import Gzip, GzippedTar, as_headers, attributes_of, threads
from builder.model.planned import environment_text

ENVIRONMENT = "ch/environment"
# Mount points that ch-run binds over, and that a read-only image must therefore have.
FOLDERS = ("ch", *sorted(MOUNT_POINTS))


def pack(plain: PlainLayout, nodes: Mapping[str, TreeNode], packed: Layout, target: Path) -> str:
    """Write an image's tree as a gzipped tarball for `ch-convert` or `tar`; return its digest.

    Members are sorted and hard links kept: the same tree gives the same bytes. /dev is left empty,
    so that an ordinary user can unpack it. The image's variables go to /ch/environment, where
    `ch-run --set-env` looks for them. `nodes` are those of `plain`. Known gzipped parts of large
    files are copied from `packed`.
    """
    with threads() as pool, target.open("wb") as sink:
        gzip = Gzip(sink, pool)
        archive = GzippedTar(gzip)
        for name in FOLDERS:
            if name not in nodes:
                member = tarfile.TarInfo(name)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.add(member)
        variables = environment_text(packed.environment).encode()
        member = tarfile.TarInfo(ENVIRONMENT)
        member.size, member.mode = len(variables), 0o644
        archive.add(member, io.BytesIO(variables))
        with contextlib.ExitStack() as files:
            _add_nodes(archive, nodes, plain, packed, files)
            archive.close()
    return f"sha256:{gzip.digest}"


def _add_nodes(
    archive: GzippedTar,
    nodes: Mapping[str, TreeNode],
    plain: PlainLayout,
    packed: Layout,
    files: contextlib.ExitStack,
) -> None:
    first_names: dict[tuple[Path | None, int], str] = {}
    blobs: dict[str, IO[bytes]] = {}
    for path, node in nodes.items():
        if path.startswith("dev/") or path == ENVIRONMENT:
            continue
        member, place = copy.copy(node.member), (node.source, node.offset)
        member.name = path
        member.pax_headers = as_headers(attributes_of(member))
        if node.source is None:
            archive.add(member)
        elif node.size and (first := first_names.get(place)):
            member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
            archive.add(member)
        else:
            first_names[place] = path
            with node.open() as data:
                if parts := plain.parts.get((node.source, node.offset)):
                    digest, places = parts
                    if digest not in blobs:
                        blob = blob_path(packed.path, digest)
                        blobs[digest] = files.enter_context(blob.open("rb"))
                    archive.add_again(member, data, places, blobs[digest])
                else:
                    archive.add(member, data)
