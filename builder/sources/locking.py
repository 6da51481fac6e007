"""Locking: what images need from elsewhere becomes entries of lock.yaml."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from builder.model.errors import BuildImagesError, Refused
from builder.model.locked import DEBIAN_SOURCE, Lock, LockedSource
from builder.registry.web import without_users
from builder.sources.download import Downloader, NotFetched
from builder.sources.store import JOBS, Store, Unfetched
from builder.system.locks import locked

SCHEMA = "build-images/lock/v1"
_FILE = re.compile(r"[\w+~][\w.+~%=-]*")
_HEADER = """\
# Written by build-images lock; commit it. Sources are verified against it wherever they come from,
# and base images are taken by digest. docs/sources.md explains it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A source that `recipes` ask for: at the first of `urls`, or else the next."""

    urls: tuple[str, ...]
    recipes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Locking:
    """How a source is locked. `resolve` finds a `debian-source:` URL in Debian's indices.

    With `update`, what is locked already is looked up anew, and what changed is accepted.
    """

    store: Store
    downloader: Downloader
    resolve: Callable[[str], LockedSource]
    update: bool = False
    say: Callable[[str], object] = lambda _: None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedAll:
    """What could be locked, and one error for each source that could not."""

    sources: tuple[LockedSource, ...]
    failures: tuple[BuildImagesError, ...]


def lock_sources(wanted: Iterable[Wanted], known: Lock, locking: Locking) -> LockedAll:
    """An entry for each source; those that are locked stay as they are, but for `update`."""
    failures: list[BuildImagesError] = []

    def one(want: Wanted) -> LockedSource | None:
        try:
            return _locked(want, known.sources, locking)
        except (Unfetched, Refused) as error:
            failures.append(error)
            return chosen(want.urls, known.sources)  # what was locked is not lost

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        try:
            found = list(pool.map(one, wanted))
        except BaseException:
            locking.downloader.stop()
            raise
    return LockedAll(sources=tuple(one for one in found if one), failures=tuple(failures))


def chosen(urls: Sequence[str], known: Mapping[str, LockedSource]) -> LockedSource | None:
    """The entry of the first of some alternatives that is locked."""
    return next((known[url] for url in urls if url in known), None)


def _locked(want: Wanted, known: Mapping[str, LockedSource], locking: Locking) -> LockedSource:
    before = chosen(want.urls, known)
    if before and not locking.update:
        return replace(before, recipes=want.recipes)
    reasons: list[str] = []
    for url in want.urls:
        try:
            found = _looked_up(url, locking)
        except Unfetched as error:
            reasons.append(str(error))
            continue
        _tell(found, before, reasons, locking)
        mirrors = before.mirrors if before and before.url == url else ()
        return replace(found, recipes=want.recipes, mirrors=mirrors)
    asked = without_users(f"{want.urls[0]} ({', '.join(want.recipes)})")
    raise Unfetched("\n".join([asked, *_indented(reasons)]))


def _indented(texts: Sequence[str]) -> list[str]:
    return ["  " + text.replace("\n", "\n  ") for text in texts]


def _tell(
    found: LockedSource, before: LockedSource | None, reasons: Sequence[str], locking: Locking
) -> None:
    url = without_users(found.url)
    if before and before.sha256 != found.sha256:
        locking.say(f"{url}: was sha256 {before.sha256}, is {found.sha256}")
    elif not before:
        locking.say(f"{url}: locked, sha256 {found.sha256[:12]}, {found.size} bytes")
    for reason in reasons:
        locking.say(f"  instead of {reason.splitlines()[0]}")


def _looked_up(url: str, locking: Locking) -> LockedSource:
    """The entry for a URL; its file is in the store then, so that it can be had in truth."""
    if url.startswith(DEBIAN_SOURCE):
        found = locking.resolve(url)
        locking.store.ensure(found, downloader=locking.downloader)
        return found
    name = posixpath.basename(url)
    if not _FILE.fullmatch(name):
        raise Unfetched(f"{without_users(url)}: its last part, {name!r}, is not the name of a file")
    return _downloaded(url, name, locking)


def _downloaded(url: str, name: str, locking: Locking) -> LockedSource:
    """Fetch from the URL itself, or from a site's mirror where that is out of reach."""
    digest = hashlib.sha256(url.encode()).hexdigest()
    with locked(locking.store.path, digest):  # another run may lock the same
        return _downloaded_to(locking.store.path / f".{digest}.new", url, name, locking)


def _downloaded_to(partial: Path, url: str, name: str, locking: Locking) -> LockedSource:
    places = [
        locking.store.origin(url),
        *(f"{mirror.rstrip('/')}/{name}" for mirror in locking.store.mirrors),
    ]
    reasons = []
    try:
        for place in places:
            partial.unlink(missing_ok=True)
            try:
                found = locking.downloader.fetch(place, partial)
            except NotFetched as error:
                reasons.append(without_users(f"{place}: {error}"))
                continue
            locking.store.take(partial, found)
            return LockedSource(url=url, file=name, sha256=found.sha256, size=found.size)
    finally:
        partial.unlink(missing_ok=True)
    raise Unfetched("\n".join(reasons))


def merged(
    known: Lock,
    found: Lock,
    *,
    everything: bool,
    recipes: Collection[str],
) -> Lock:
    """The lock to write. With `everything`, what is in `found` alone: nobody needs the rest.

    Else entries that only other `recipes` ask for stay, and each keeps the recipes that it had.
    """
    if everything:
        return found
    sources = dict(known.sources)
    for url, source in found.sources.items():
        before = known.sources[url].recipes if url in known.sources else ()
        names = [name for name in before if name not in recipes]
        sources[url] = replace(source, recipes=tuple(sorted({*names, *source.recipes})))
    return Lock(sources=sources, references={**known.references, **found.references})


def lock_text(lock: Lock) -> str:
    """The text of lock.yaml: the same lock gives the same bytes."""
    lines = [f"{_HEADER}schema: {SCHEMA}"]
    sources = sorted(lock.sources.values(), key=lambda one: one.url)
    references = sorted(lock.references.items())
    lines += ["sources:"] if sources else ["sources: []"]
    for source in sources:
        lines += _entry(_source_fields(source))
    lines += ["references:"] if references else ["references: []"]
    for (reference, arch), digest in references:
        fields = {"reference": reference, "arch": arch, "digest": digest}
        lines += _entry(fields)
    return "\n".join(lines) + "\n"


def _source_fields(source: LockedSource) -> dict[str, object]:
    fields: dict[str, object] = {
        "url": source.url,
        "file": source.file,
        "path": source.path,
        "sha256": source.sha256,
        "size": source.size,
        "mirrors": list(source.mirrors),
        "recipes": sorted(source.recipes),
    }
    return {name: value for name, value in fields.items() if value}


def _entry(fields: Mapping[str, object]) -> list[str]:
    """JSON is YAML, and leaves no doubt about what is text."""
    texts = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return [f"  - {texts[0]}", *(f"    {text}" for text in texts[1:])]
