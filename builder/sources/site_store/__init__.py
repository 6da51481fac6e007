"""The site's store: bases, native tools, stages and finished images, shared by several machines.

Here are its entries that nobody uses.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from builder.model.exact_json import part, time_of
from builder.registry import WrongContent
from builder.registry.manifests import TITLE, descriptors, json_object
from builder.sources.site_store.entries import CREATED, ENTRY, KINDS, SiteStore, StorePlace
from builder.system.terminal import printable

__all__ = ["SiteStore", "StoreEntry", "unused_entries"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreEntry:
    """An entry; `used` is the time of its last use, or in a registry that of its creation.

    `blobs` are the sizes of its files by digest; `why` is the reason why it counts as unused.
    """

    tag: str
    kind: str
    title: str
    blobs: Mapping[str, int]
    used: dt.datetime
    why: str


def unused_entries(place: StorePlace, since: dt.datetime) -> list[tuple[StoreEntry, int]]:
    """Return the entries that were not used since a time, the oldest first, with their bytes.

    Bytes count for the first entry that has them; those of blobs that other entries need do not
    count. Tags of others in the same repository are left alone.
    """
    tags = (tag for tag in place.tags() if tag.partition("-")[0] in KINDS)
    entries = [entry for tag in tags if (entry := _entry(place, tag))]
    needed = {digest for entry in entries if entry.used >= since for digest in entry.blobs}
    unused = []
    for entry in sorted(entries, key=lambda entry: (entry.used, entry.tag)):
        if entry.used < since:
            own = entry.blobs.keys() - needed
            unused.append((entry, sum(entry.blobs[digest] for digest in own)))
            needed |= own
    return unused


def _entry(place: StorePlace, tag: str) -> StoreEntry | None:
    where, kind = f"{place.name}: {tag}", tag.partition("-")[0]
    try:
        content = place.manifest(tag)
        if content is None:  # another builder removed it
            return None
        manifest = json_object(content, where)
        if manifest.get("artifactType") != ENTRY:
            return None
        created = time_of(part(manifest, "annotations", CREATED))
        listed = descriptors(manifest, "layers", where)
    except (WrongContent, ValueError):
        long_ago = dt.datetime.fromtimestamp(0, tz=dt.timezone.utc)
        return StoreEntry(tag=tag, kind=kind, title=tag, blobs={}, used=long_ago, why="damaged")
    used = place.used_at(tag)
    return StoreEntry(
        tag=tag,
        kind=kind,
        title=printable(str(part(manifest, "annotations", TITLE)).removeprefix(f"{kind} ")),
        blobs={blob.digest: blob.size for blob in listed},
        used=created if used is None else dt.datetime.fromtimestamp(used, tz=dt.timezone.utc),
        why=f"created {created:%Y-%m-%d}" if used is None else "no builder used it recently",
    )
