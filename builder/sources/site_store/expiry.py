"""Entries of a site's store that no builder used recently."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from builder.model.errors import BuildImagesError
from builder.model.exact_json import part, time_of
from builder.registry.manifests import TITLE, descriptors, json_object
from builder.sources.site_store.entries import CREATED
from builder.sources.site_store.protocol import StorePlace


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreEntry:
    """An entry; `used` is the time of its last use, `why` the reason why it is unused.

    Of an entry in a registry the time is that of its creation. `bytes` counts blobs that other
    entries share, too.
    """

    tag: str
    kind: str
    title: str
    bytes: int
    used: dt.datetime
    why: str


def unused_entries(place: StorePlace, since: dt.datetime) -> list[StoreEntry]:
    """Return the entries that were not used since a time, the oldest first."""
    entries = [_entry(place, tag) for tag in place.tags()]
    unused = (entry for entry in entries if entry is not None and entry.used < since)
    return sorted(unused, key=lambda entry: (entry.used, entry.tag))


def _entry(place: StorePlace, tag: str) -> StoreEntry | None:
    content = place.manifest(tag)
    if content is None:  # another builder removed it
        return None
    where = f"{place.name}: {tag}"
    manifest = json_object(content, where)
    used = place.used_at(tag)
    try:
        created = time_of(part(manifest, "annotations", CREATED))
    except ValueError as error:
        hint = "it is not the store of build-images, or is damaged; nothing was removed"
        raise BuildImagesError(f"{where}: not an entry of the site's store", hint=hint) from error
    kind = tag.partition("-")[0]
    return StoreEntry(
        tag=tag,
        kind=kind,
        title=str(part(manifest, "annotations", TITLE)).removeprefix(f"{kind} "),
        bytes=sum(blob.size for blob in descriptors(manifest, "layers", where)),
        used=created if used is None else dt.datetime.fromtimestamp(used, tz=dt.timezone.utc),
        why=f"created {created:%Y-%m-%d}" if used is None else "no builder used it recently",
    )
