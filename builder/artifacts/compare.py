"""Differences between two builds of one image: the first path that differs in each layer."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, NamedTuple

from builder.artifacts.oci import Layout, opened_layer
from builder.artifacts.tree import TreeEntry, clean, entry_of, first_difference
from builder.model.digests import sha256_of

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


class _Member(NamedTuple):
    """A member of a layer with its owner, which equality of entries leaves out, and its time."""

    entry: TreeEntry
    owner: str
    mtime: str


def layout_differences(before: Layout, after: Layout) -> list[Difference]:
    """Return the differences of two layouts: one for each layer, and one for the config."""
    differences = [*_config_differences(before.config, after.config)]
    if len(before.layers) != len(after.layers):
        text = f"{len(after.layers)} layers, not {len(before.layers)}"
        differences.append(Difference(where="image", what=LAYERS, text=text))
    pairs = zip(before.layers, after.layers, strict=False)
    for number, (old, new) in enumerate(pairs, start=1):
        if old.name != new.name:
            with opened_layer(old) as old_tar, opened_layer(new) as new_tar:
                first, second = _members(old_tar), _members(new_tar)
            differences.append(_difference(f"layer {number}", first, second))
    return differences


def tarball_difference(before: IO[bytes], after: IO[bytes]) -> Difference:
    """Return the first difference of two tar streams whose compressed files differ."""
    return _difference("tarball", _members(before), _members(after))


def _config_differences(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[Difference]:
    for key in sorted((before.keys() | after.keys()) - {"rootfs"}):
        old, new = before.get(key), after.get(key)
        if old != new:
            name, text = key, f"{new!r}, not {old!r}"
            if isinstance(old, dict) and isinstance(new, dict):
                inner = next(n for n in sorted(old | new) if old.get(n) != new.get(n))
                name, text = f"{key}.{inner}", f"{new.get(inner)!r}, not {old.get(inner)!r}"
            yield Difference(where="config", what=CONFIG, text=f"{name} is {_short(text)}")


def _difference(
    where: str, before: Mapping[str, _Member], after: Mapping[str, _Member]
) -> Difference:
    paths = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if paths:
        what, text = _first_difference(before.get(paths[0]), after.get(paths[0]))
        more = len(paths) - 1
        return Difference(where=where, path=f"/{paths[0]}", what=what, text=text, more=more)
    if list(before) != list(after):
        return Difference(where=where, what=ORDER, text="the same files in another order")
    text = "the same bytes in a different compression: another version of zlib?"
    return Difference(where=where, what=COMPRESSION, text=text)


def _first_difference(before: _Member | None, after: _Member | None) -> tuple[str, str]:
    """Return the first property in which the members of one path differ, and its description."""
    if before is None or after is None:
        return "missing", "is new" if before is None else "is missing"
    if before.entry != after.entry:
        return first_difference(after.entry, before.entry)
    if before.owner != after.owner:
        return "owner", f"owner {after.owner}, not {before.owner}"
    return "mtime", f"mtime {after.mtime}, not {before.mtime}"


def _members(stream: IO[bytes]) -> dict[str, _Member]:
    members = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isreg() else None
            entry = entry_of(member, clean(member.name), sha256_of(data) if data else "")
            members[entry.path] = _Member(entry, entry.owner, f"{member.mtime:.0f}")
    return members


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
