"""Programs, libraries and scripts that cannot be loaded, in small roots: the check `libraries`."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign import Case
from library_roots import (
    DEFECTS,
    LIBRARIES,
    OF_X86_64,
    SMALL_PAGES,
    SOUND,
    SOUND_ON_X86_64,
    X86_64,
    Plant,
    Root,
    command,
    sound_root,
)

# Where a program or library may lie, and whether it is one that is started.
_PLACES = {
    "usr/bin/tool": True,
    "usr/local/bin/tool": True,
    "opt/tool/bin/tool": True,
    "usr/local/lib/libtool.so": False,
    "opt/tool/lib/libtool.so": False,
    "usr/lib/libtool.so.1": False,
    "usr/lib/python3/dist-packages/tool.so": False,
}
_OSABI = 7


def _linked(root: Root, place: str, *options: str) -> None:
    if _PLACES[place]:
        root.using("user", place, *options)
    else:
        root.using("changed", place, "-shared", "-fPIC", *options)


def _patch(root: Root, place: str, at: int, data: bytes) -> None:
    _linked(root, place)
    content = bytearray(root.file(place).read_bytes())
    content[at : at + len(data)] = data
    root.file(place).write_bytes(content)


def _lost(root: Root, place: str) -> None:
    """Its library is gone, and nothing else needs it."""
    _linked(root, place)
    for name in ("usr/bin/user", "usr/bin/script", f"{LIBRARIES}/libown.so.1"):
        root.file(name).unlink()


def _cut_off(root: Root, place: str) -> None:
    _linked(root, place)
    path = root.file(place)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


_KINDS: dict[str, tuple[Callable[[Root, str], object], str]] = {
    "without its library": (_lost, "/{place} needs libown.so.1"),
    "cut off": (_cut_off, "/{place} is cut off"),
    "for another system": (
        lambda root, place: _patch(root, place, _OSABI, b"\x09"),
        "/{place} is for another system",
    ),
    "for smaller pages": (
        lambda root, place: _linked(root, place, *SMALL_PAGES),
        "/{place} is laid out for memory pages of 2048 bytes",
    ),
    "for x86-64-v4 by its note": (
        lambda root, place: _linked(root, place, "-Wl,-z,x86-64-v4"),
        "/{place} is for processors of x86-64-v4",
    ),
}


def _defects() -> Iterator[tuple[str, Plant, str]]:
    for name, (plant, named) in {**DEFECTS, **(OF_X86_64 if X86_64 else {})}.items():
        yield name, plant, re.escape(named)
    for kind, (spoil, named) in _KINDS.items():
        for place in _PLACES:
            pattern = re.escape(named.format(place=place))
            yield (
                f"{kind}: {place}",
                lambda root, spoil=spoil, place=place: spoil(root, place),  # type: ignore[misc]
                pattern,
            )


@functools.cache
def _template() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="libraries-")
    for name in ("root", "built"):
        (Path(folder.name) / name).mkdir()
    sound_root(Path(folder.name) / "root", Path(folder.name) / "built")
    return folder


def judge(plant: Plant, folder: Path) -> list[str]:
    source = Path(_template().name) / "root"
    root = Root(path=Path(shutil.copytree(source, folder / "root")), built=folder)
    plant(root)
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command(root), capture_output=True, text=True, env=path, check=False)
    return [done.stdout + done.stderr] if done.returncode else []


def cases() -> list[Case]:
    """All defects of this kind."""
    return [
        Case(family="libraries", name=name, faults=functools.partial(judge, plant), named=named)
        for name, plant, named in _defects()
    ]


def sound_cases() -> list[Case]:
    """All sound roots."""
    roots = {**SOUND, **(SOUND_ON_X86_64 if X86_64 else {})}
    return [
        Case(family="libraries", name=name, faults=functools.partial(judge, plant))
        for name, plant in roots.items()
    ]
