"""Apptainer: packing an OCI layout as a SIF, reading a SIF's tree, and building definitions.

Everything here runs as an ordinary user: as root, Apptainer asks for capabilities that machines
and containers often withhold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from builder import facts
from builder.engines.protocol import Tools
from builder.errors import StepFailed

# SquashFS images begin with this, https://dr-emann.github.io/squashfs/#superblock
_SQUASHFS_MAGIC = b"hsqs"
_SIF_MAGIC = b"SIF_MAGIC"
_SIF_MAGIC_AT = 32
_SEARCH_STEP = 4096  # a SIF aligns its partitions to pages

Seen = Callable[[bytes], object]


def pack(
    layout: Path, target: Path, sections: list[str], *, arch: str, tools: Tools, log: Path
) -> None:
    """Pack an OCI layout as a SIF with the definition sections that OCI cannot carry.

    `target`'s folder must be writable for the ordinary user, and `layout` readable.
    """
    definition = target.with_suffix(".pack.def")
    definition.write_text("\n\n".join([f"Bootstrap: oci\nFrom: {layout}", *sections]) + "\n")
    build(definition, target, arch=arch, tools=tools, log=log, cwd=target.parent)
    definition.unlink()


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
            f"--arch={facts.ARCHITECTURES[arch].oci}",
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
    with sif.open("rb") as source:
        source.seek(_SIF_MAGIC_AT)
        if source.read(len(_SIF_MAGIC)) != _SIF_MAGIC:
            raise StepFailed(f"{sif}: not a SIF")
        offset = _squashfs_offset(source, sif)
        source.seek(0)
        head = source.read(offset)
        if seen:
            seen(head)
        with target.open("wb") as sink:
            while piece := source.read(1 << 20):
                sink.write(piece)
                if seen:
                    seen(piece)


def _squashfs_offset(source: IO[bytes], sif: Path) -> int:
    offset = _SEARCH_STEP
    while True:
        source.seek(offset)
        magic = source.read(len(_SQUASHFS_MAGIC))
        if magic == _SQUASHFS_MAGIC:
            return offset
        if not magic:
            raise StepFailed(f"{sif}: no SquashFS partition in this SIF")
        offset += _SEARCH_STEP
