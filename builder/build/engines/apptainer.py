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

# Apptainer 1.4 writes an image's variables into `10-docker2singularity.sh`, with one backslash too
# many before quotes and backticks. A single such value hides all variables from programs.
ENVIRONMENT_SCRIPT = ".singularity.d/env/90-environment.sh"  # of the section %environment
_SPOILED = re.compile(r"[\"`\\\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_CACHE = "apptainer-cache"

Seen = Callable[[bytes], object]


def pack(
    layout: Path, target: Path, sections: list[str], *, arch: str, tools: Tools, log: Path
) -> None:
    """Pack an OCI layout as a SIF with the definition sections that OCI cannot carry.

    The ordinary user must be able to write to `target`'s folder and to read `layout`, whose layers
    are plain tars. The definition stays in the SIF, so it has a relative path to the layout, which
    does not show whose home it was in.
    """
    own = spoiled(read_layout(layout).environment)
    with _without(layout, own, target.with_suffix(".pack.oci")) as source:
        parts = [f"Bootstrap: oci\nFrom: {os.path.relpath(source, target.parent)}", *sections]
        if own:
            parts.append("\n    ".join(["%environment", *variable_commands(own)]))
        definition = target.with_suffix(".pack.def")
        definition.write_text("\n\n".join(parts) + "\n")
        build(definition, target, arch=arch, tools=tools, log=log)
        definition.unlink()


@contextlib.contextmanager
def _without(layout: Path, variables: Collection[str], copy: Path) -> Iterator[Path]:
    """Yield a temporary copy of a layout without some variables; the layout itself for none."""
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
        cwd=target.parent,
        env=environment(target.parent),
        user=tools.ordinary_user,
    )
    shutil.rmtree(target.parent / _CACHE, ignore_errors=True)  # as large as the image


def environment(scratch: Path) -> dict[str, str]:
    """Return Apptainer's variables: gzip's level, and folders for temporary files and its cache.

    With gzip at level 5, a SIF is 1.3 % larger than at mksquashfs's level 9, and takes a fifth of
    the processor time (docs/performance.md). Every Singularity since 2.x can mount gzip.
    """
    return {
        "APPTAINER_MKSQUASHFS_ARGS": "-Xcompression-level 5",
        "APPTAINER_TMPDIR": str(scratch),
        "APPTAINER_CACHEDIR": str(scratch / _CACHE),
        "TMPDIR": str(scratch),
    }


@contextlib.contextmanager
def tree_of(
    sif: Path, *, scratch: Path, tools: Tools, seen: Seen = lambda _: None, below: str = ""
) -> Iterator[IO[bytes]]:
    """Yield the root file system of a SIF as a tar stream; works as any user, without mounting.

    `seen` receives the whole SIF in chunks, as it is read. With `below` the tar has that folder
    alone, at its path.
    """
    only = ["--subdir", below, "--keep-as-dir"] if below else []
    squashfs = scratch / f"{sif.stem}.squashfs"
    try:
        _copy_squashfs(sif, squashfs, seen)
        with tools.processes.reading_from(
            [tools.program("sqfs2tar"), *only, str(squashfs)]
        ) as stream:
            yield stream
    finally:
        squashfs.unlink(missing_ok=True)


def _copy_squashfs(sif: Path, target: Path, seen: Seen) -> None:
    """Copy the root file system of a SIF, by its descriptor; `seen` receives the whole SIF."""
    place = root_file_system(sif)
    remaining = place.size
    with sif.open("rb") as source, target.open("wb") as sink:
        head = source.read(place.offset)
        seen(head)
        while chunk := source.read(1 << 20):
            sink.write(chunk[:remaining])
            remaining -= len(chunk[:remaining])
            seen(chunk)


def spoiled(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values Apptainer's script would change.

    The script leaves out variables with names that a shell does not accept.
    """
    return {
        name: value
        for name, value in environment.items()
        if _SPOILED.search(value) and _NAME.fullmatch(name)
    }


def variable_commands(variables: Mapping[str, str]) -> list[str]:
    """Return shell commands that set variables as Apptainer does: the caller's values win."""
    return [
        line
        for name, value in variables.items()
        for line in (f'[ -n "${{{name}:-}}" ] || {name}={_quoted(value)}', f"export {name}")
    ]


def environment_script(environment: Mapping[str, str]) -> list[str]:
    """Return the lines of Apptainer's script for an image's variables, without comments.

    `environment` must be without the variables that `spoiled` returns.
    """
    return [
        f'export PATH="{value}"' if name == "PATH" else f'export {name}="${{{name}:-"{value}"}}"'
        for name, value in environment.items()
        if _NAME.fullmatch(name)
    ]


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
