"""Where two builds of one image part: layer by layer, the first path, and what differs of it."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builder.artifacts.oci import Layout, opened_layer
from builder.artifacts.tree import clean
from builder.model.digests import sha256_of

CONTENT, MODE, MTIME, OWNER, MISSING = "content", "mode", "mtime", "owner", "missing"
KIND, LINK, ATTRIBUTES = "type", "link", "attributes"
CONFIG, LAYERS, COMPRESSION, ORDER = "config", "layers", "compression", "order"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first difference in one layer (from 1, the lowest), in the config, or in a tarball.

    `what` is content, mode, mtime, owner, type, link, attributes or missing, for `path`; else
    config, layers, compression or order. `more` counts the other paths that differ.
    """

    where: str
    what: str
    text: str
    path: str = ""
    more: int = 0

    def __str__(self) -> str:
        also = f", and {self.more} more" if self.more else ""
        return f"{self.where}: {self.path}{': ' if self.path else ''}{self.text}{also}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    kind: str
    mode: int
    owner: tuple[int, int]
    mtime: float
    size: int
    content: str
    link: str
    attributes: Mapping[str, str]


_KINDS = {
    tarfile.REGTYPE: "a file",
    tarfile.DIRTYPE: "a folder",
    tarfile.SYMTYPE: "a link",
    tarfile.LNKTYPE: "a hard link",
}


def layout_differences(before: Layout, after: Layout) -> list[Difference]:
    """What differs between two layouts, one entry a layer, and one for the config."""
    found = [*_config_differences(before.config, after.config)]
    if len(before.layers) != len(after.layers):
        text = f"{len(after.layers)} layers, not {len(before.layers)}"
        found.append(Difference(where="image", what=LAYERS, text=text))
    pairs = zip(before.layers, after.layers, strict=False)
    for number, (one, other) in enumerate(pairs, start=1):
        if one.name != other.name:
            found.append(_layer_difference(f"layer {number}", one, other))
    return found


def tarball_difference(before: IO[bytes], after: IO[bytes]) -> Difference:
    """What differs first between two tar streams that are known to differ when compressed."""
    return _difference("tarball", _members(before), _members(after))


def _config_differences(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[Difference]:
    for key in sorted((before.keys() | after.keys()) - {"rootfs"}):
        one, other = before.get(key), after.get(key)
        if one != other:
            name, text = key, f"{other!r}, not {one!r}"
            if isinstance(one, dict) and isinstance(other, dict):
                [inner, *_] = [n for n in sorted(one | other) if one.get(n) != other.get(n)]
                name, text = f"{key}.{inner}", f"{other.get(inner)!r}, not {one.get(inner)!r}"
            yield Difference(where="config", what=CONFIG, text=f"{name} is {_short(text)}")


def _layer_difference(where: str, before: Path, after: Path) -> Difference:
    with opened_layer(before) as one:
        first = _members(one)
    with opened_layer(after) as other:
        second = _members(other)
    return _difference(where, first, second)


def _difference(
    where: str, before: Mapping[str, _Member], after: Mapping[str, _Member]
) -> Difference:
    paths = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if paths:
        what, text = _of(before.get(paths[0]), after.get(paths[0]))
        more = len(paths) - 1
        return Difference(where=where, path=f"/{paths[0]}", what=what, text=text, more=more)
    if list(before) != list(after):
        return Difference(where=where, what=ORDER, text="the same files in another order")
    text = "the same bytes, compressed otherwise: by another version of zlib?"
    return Difference(where=where, what=COMPRESSION, text=text)


def _of(before: _Member | None, after: _Member | None) -> tuple[str, str]:  # noqa: PLR0911 - a list
    """What differs between the members of one path, and that in words."""
    if before is None or after is None:
        return MISSING, "is new" if before is None else "is missing"
    if before.kind != after.kind:
        return KIND, f"{after.kind}, not {before.kind}"
    if (before.content, before.size) != (after.content, after.size):
        return CONTENT, f"another content ({after.size} bytes, not {before.size})"
    if before.link != after.link:
        return LINK, f"links to {after.link}, not {before.link}"
    if before.mode != after.mode:
        return MODE, f"mode {after.mode:04o}, not {before.mode:04o}"
    if before.owner != after.owner:
        return OWNER, "owner {}:{}, not {}:{}".format(*after.owner, *before.owner)
    if before.mtime != after.mtime:
        return MTIME, f"mtime {after.mtime:.0f}, not {before.mtime:.0f}"
    return ATTRIBUTES, f"attributes {_short(str(after.attributes))}"


def _members(stream: IO[bytes]) -> dict[str, _Member]:
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isreg() else None
            found[clean(member.name)] = _Member(
                kind=_KINDS.get(member.type, "a device or pipe"),
                mode=member.mode,
                owner=(member.uid, member.gid),
                mtime=member.mtime,
                size=member.size,
                content=sha256_of(data) if data else "",
                link=member.linkname,
                attributes=dict(member.pax_headers),
            )
    return found


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
