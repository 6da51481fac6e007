"""Apptainer: packing an OCI layout as a SIF, reading a SIF's tree, and building definitions.

Everything here runs as an ordinary user: as root, Apptainer asks for capabilities that machines
and containers often withhold.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from builder.artifacts.oci import blob_path, finish_layout, plain_layers, read_layout, start_layout
from builder.artifacts.sif import root_file_system
from builder.build.engines.protocol import Tools
from builder.model.architectures import ARCHITECTURES
from builder.model.exact_json import part

# Apptainer 1.4 writes an image's variables into `10-docker2singularity.sh`, with a backslash too
# many before quotes and backticks: with one such value, no program in the SIF has any of them.
ENVIRONMENT_SCRIPT = ".singularity.d/env/90-environment.sh"  # of the section %environment
_SPOILED = re.compile(r"[\"`\\\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Seen = Callable[[bytes], object]


def pack(
    layout: Path, target: Path, sections: list[str], *, arch: str, tools: Tools, log: Path
) -> None:
    """Pack an OCI layout as a SIF with the definition sections that OCI cannot carry.

    `target`'s folder must be writable for the ordinary user, and `layout` readable. Its layers are
    plain tars. The definition stays in the SIF, so it names the layout from that folder: nobody
    reads whose home it was in.
    """
    own = spoiled(read_layout(layout).environment)
    with _without(layout, own, target.with_suffix(".pack.oci")) as source:
        parts = [f"Bootstrap: oci\nFrom: {os.path.relpath(source, target.parent)}", *sections]
        parts += [environment_section(own)] if own else []
        definition = target.with_suffix(".pack.def")
        definition.write_text("\n\n".join(parts) + "\n")
        build(definition, target, arch=arch, tools=tools, log=log, cwd=target.parent)
        definition.unlink()


@contextlib.contextmanager
def _without(layout: Path, variables: Collection[str], copy: Path) -> Iterator[Path]:
    """A layout without some variables: itself, if there are none, else a copy that is gone then."""
    if not variables:
        yield layout
        return
    full = read_layout(layout)
    start_layout(copy)
    for blob, diff_id in zip(full.layers, full.diff_ids, strict=True):
        blob_path(copy, diff_id).hardlink_to(blob)
    layers = plain_layers(copy, full.diff_ids)
    settings = part(full.config, "config")
    others = [text for text in settings["Env"] if text.partition("=")[0] not in variables]
    finish_layout(copy, {**full.config, "config": {**settings, "Env": others}}, layers)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


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
    place = root_file_system(sif)
    remaining = place.size
    with sif.open("rb") as source, target.open("wb") as sink:
        head = source.read(place.offset)
        if seen:
            seen(head)
        while chunk := source.read(1 << 20):
            sink.write(chunk[:remaining])
            remaining -= len(chunk[:remaining])
            if seen:
                seen(chunk)


def spoiled(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values Apptainer's script does not hand on as they are.

    It leaves out those whose names are none of a shell.
    """
    return {
        name: value
        for name, value in environment.items()
        if _SPOILED.search(value) and _NAME.fullmatch(name)
    }


def variable_commands(variables: Mapping[str, str]) -> list[str]:
    """Shell commands that set variables as Apptainer's do: a value of the caller's wins."""
    return [
        line
        for name, value in variables.items()
        for line in (
            f'[ -n "${{{name}:-}}" ] || {name}={_quoted(value)}',
            f"export {name}",
        )
    ]


def environment_section(variables: Mapping[str, str]) -> str:
    """Return the definition's section that sets them."""
    return "\n".join(["%environment", *(f"    {line}" for line in variable_commands(variables))])


def environment_script(environment: Mapping[str, str]) -> list[str]:
    """Return the lines of Apptainer's script for an image's variables, without comments.

    `environment` has none that are spoiled.
    """
    return [
        f'export PATH="{value}"' if name == "PATH" else f'export {name}="${{{name}:-"{value}"}}"'
        for name, value in environment.items()
        if _NAME.fullmatch(name)
    ]


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
