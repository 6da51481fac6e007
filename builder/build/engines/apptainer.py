"""Apptainer: packing an OCI layout as a SIF, reading a SIF's tree, and building definitions.

Everything here runs as an ordinary user: as root, Apptainer asks for capabilities that machines
and containers often withhold.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

from builder.artifacts.oci import Layer, blob_path, finish_layout, read_layout, start_layout
from builder.artifacts.sif import root_file_system
from builder.build.engines import sif_environment
from builder.build.engines.protocol import Tools
from builder.model.architectures import ARCHITECTURES
from builder.model.exact_json import part

Seen = Callable[[bytes], object]


def pack(
    layout: Path, target: Path, sections: list[str], *, arch: str, tools: Tools, log: Path
) -> None:
    """Pack an OCI layout as a SIF with the definition sections that OCI cannot carry.

    `target`'s folder must be writable for the ordinary user, and `layout` readable. Its layers are
    plain tars. The definition stays in the SIF, so it names the layout from that folder: nobody
    reads whose home it was in.
    """
    own = sif_environment.spoiled(read_layout(layout).environment)
    with _without(layout, own, target.with_suffix(".pack.oci")) as source:
        parts = [f"Bootstrap: oci\nFrom: {os.path.relpath(source, target.parent)}", *sections]
        parts += [sif_environment.section(own)] if own else []
        definition = target.with_suffix(".pack.def")
        definition.write_text("\n\n".join(parts) + "\n")
        build(definition, target, arch=arch, tools=tools, log=log, cwd=target.parent)
        definition.unlink()


@contextlib.contextmanager
def _without(layout: Path, variables: Collection[str], place: Path) -> Iterator[Path]:
    """A layout without some variables: itself, if there are none, else one that is gone then."""
    if not variables:
        yield layout
        return
    whole = read_layout(layout)
    start_layout(place)
    layers = []
    for blob, diff_id in zip(whole.layers, whole.diff_ids, strict=True):
        blob_path(place, diff_id).hardlink_to(blob)
        layers.append(Layer(diff_id=diff_id, digest=diff_id, size=blob.stat().st_size))
    settings = part(whole.config, "config")
    kept = [one for one in settings["Env"] if one.partition("=")[0] not in variables]
    finish_layout(place, {**whole.config, "config": {**settings, "Env": kept}}, layers)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def build(
    definition: Path,
    target: Path,
    *,
    arch: str,
    tools: Tools,
    log: Path,
    cwd: Path,
    options: tuple[str, ...] = (),
) -> None:
    """Run `apptainer build` on a definition; its %test is left to the verification."""
    tools.logged(
        [
            tools.program("apptainer"),
            "build",
            "--force",
            "--notest",
            f"--arch={ARCHITECTURES[arch].oci}",
            *options,
            str(target),
            str(definition),
        ],
        log=log,
        what="apptainer build",
        cwd=cwd,
        env=environment(cwd),
        user=tools.ordinary_user,
    )


def environment(scratch: Path) -> dict[str, str]:
    """Apptainer's folders for temporary files and its cache, below `scratch`.

    Level 5 of gzip makes a SIF that is 1.3 % larger than mksquashfs's level 9 does, in a fifth
    of the processor time (docs/performance.md); gzip is what every Singularity since 2.x can mount.
    """
    return {
        "APPTAINER_MKSQUASHFS_ARGS": "-Xcompression-level 5",
        "APPTAINER_TMPDIR": str(scratch),
        "APPTAINER_CACHEDIR": str(scratch / "apptainer-cache"),
        "TMPDIR": str(scratch),
    }


@contextlib.contextmanager
def tree_of(
    sif: Path, *, scratch: Path, tools: Tools, seen: Seen | None = None
) -> Iterator[IO[bytes]]:
    """The root file system of a SIF as a tar stream; works as any user, without mounting.

    `seen` is given the whole file piece by piece, as it is read for that.
    """
    squashfs = scratch / f"{sif.stem}.squashfs"
    try:
        _copy_squashfs(sif, squashfs, seen)
        with tools.processes.reading_from([tools.program("sqfs2tar"), str(squashfs)]) as stream:
            yield stream
    finally:
        squashfs.unlink(missing_ok=True)


def _copy_squashfs(sif: Path, target: Path, seen: Seen | None) -> None:
    """Copy the root file system of a SIF, by its descriptor; `seen` is given all of the file."""
    part = root_file_system(sif)
    remaining = part.size
    with sif.open("rb") as source, target.open("wb") as sink:
        head = source.read(part.offset)
        if seen:
            seen(head)
        while piece := source.read(1 << 20):
            sink.write(piece[:remaining])
            remaining -= len(piece[:remaining])
            if seen:
                seen(piece)
