"""Locking: write sources and base images of recipes to lock.yaml."""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from builder.model.errors import BuildImagesError, Fault, Refused, counted
from builder.model.inputs import DEBIAN_SOURCE, INDEX_SOURCES, LOCK, Lock, LockedSource
from builder.sources.download import Downloader, NotFetched
from builder.sources.store import SourceStore, Unfetched
from builder.system.locks import locked
from builder.system.threads import in_threads
from builder.system.web import without_users

K = TypeVar("K")
SCHEMA = "build-images/lock/v1"
_FILE = re.compile(r"[\w+~][\w.+~%=-]*")
_HEADER = """\
# Written by build-images lock; commit it. Sources are verified against it wherever they come from,
# and base images are taken by digest. docs/sources.md explains it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRequest:
    """A source that `recipes` need; `urls` are alternatives, in order of preference."""

    urls: tuple[str, ...]
    recipes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Locking:
    """The settings of locking.

    `resolve` looks up a `debian-source:` URL in Debian's indices, and a `wheel:` or `sdist:` URL in
    the Python package index.

    With `update`, locked sources are looked up again, and changes are accepted.
    """

    store: SourceStore
    downloader: Downloader
    resolve: Callable[[str], LockedSource]
    update: bool = False
    say: Callable[[str], object] = lambda _: None


def lock_sources(
    requests: Iterable[SourceRequest], known: Lock, locking: Locking
) -> tuple[list[LockedSource], list[BuildImagesError]]:
    """Return an entry for each source, and an error for each source that could not be locked.

    Locked entries are changed only with `update`.
    """
    failures: list[BuildImagesError] = []

    def locked_entry(request: SourceRequest) -> LockedSource | None:
        try:
            return _locked(request, known.sources, locking)
        except (Unfetched, Refused) as error:
            failures.append(error)
            return chosen(request.urls, known.sources)  # keep the locked entry

    entries = in_threads(locked_entry, requests, stop=locking.downloader.stop)
    return [entry for entry in entries if entry], failures


def chosen(urls: Sequence[str], known: Mapping[str, LockedSource]) -> LockedSource | None:
    """Return the entry of the first locked alternative."""
    return next((known[url] for url in urls if url in known), None)


def _locked(
    request: SourceRequest, known: Mapping[str, LockedSource], locking: Locking
) -> LockedSource:
    before = chosen(request.urls, known)
    if before and not locking.update:
        return replace(before, recipes=request.recipes)
    reasons: list[str] = []
    for url in request.urls:
        try:
            source = _looked_up(url, locking)
        except Unfetched as error:
            reasons.append(str(error))
            continue
        _report(source, before, reasons, locking)
        mirrors = before.mirrors if before and before.url == url else ()
        return replace(source, recipes=request.recipes, mirrors=mirrors)
    requested = without_users(f"{request.urls[0]} ({', '.join(request.recipes)})")
    raise Unfetched("\n".join([requested, textwrap.indent("\n".join(reasons), "  ")]))


def _report(
    source: LockedSource, before: LockedSource | None, reasons: Sequence[str], locking: Locking
) -> None:
    url = without_users(source.url)
    if before and before.sha256 != source.sha256:
        locking.say(f"{url}: was sha256 {before.sha256}, is {source.sha256}")
    elif not before:
        locking.say(f"{url}: locked, sha256 {source.sha256[:12]}, {source.size} bytes")
    for reason in reasons:
        locking.say(f"  instead of {reason.splitlines()[0]}")


def _looked_up(url: str, locking: Locking) -> LockedSource:
    """Return the entry for a URL; its file is fetched into the store, except an index's."""
    if url.startswith(INDEX_SOURCES):
        try:
            return locking.resolve(url)
        except NotFetched as error:
            raise Unfetched(f"{url}: {error}") from error
    if url.startswith(DEBIAN_SOURCE):
        source = locking.resolve(url)
        locking.store.ensure(source, downloader=locking.downloader)
        return source
    name = posixpath.basename(url)
    if not _FILE.fullmatch(name):
        raise Unfetched(f"{without_users(url)}: its last part, {name!r}, is not a valid file name")
    return _downloaded(url, name, locking)


def _downloaded(url: str, name: str, locking: Locking) -> LockedSource:
    """Fetch from the URL itself, or from a site's mirror if the URL cannot be reached."""
    store, digest = locking.store, hashlib.sha256(url.encode()).hexdigest()
    partial = store.path / f".{digest}.new"
    reasons = []
    with locked(store.path, digest), contextlib.ExitStack() as stack:  # one run at a time
        stack.callback(partial.unlink, missing_ok=True)
        mirrored = (f"{mirror.rstrip('/')}/{name}" for mirror in store.mirrors)
        for place in (store.origin(url), *mirrored):
            partial.unlink(missing_ok=True)
            try:
                fetched = locking.downloader.fetch(place, partial)
            except NotFetched as error:
                reasons.append(without_users(f"{place}: {error}"))
                continue
            store.take(partial, fetched)
            return LockedSource(url=url, file=name, sha256=fetched.sha256, size=fetched.size)
    raise Unfetched("\n".join(reasons))


def needed(
    lock: Lock, requests: Iterable[SourceRequest], references: Collection[tuple[str, str]]
) -> Lock:
    """Return the entries of a lock for these requests and references."""
    users: dict[str, set[str]] = {}
    for request in requests:
        for url in request.urls:
            users.setdefault(url, set()).update(request.recipes)
    return Lock(
        sources={
            url: replace(source, recipes=recipes)
            for url, source in lock.sources.items()
            if (recipes := tuple(sorted(users.get(url, set()) & {*source.recipes})))
        },
        references={key: pin for key, pin in lock.references.items() if key in references},
    )


def merged(retained: Lock, new: Lock, *, recipes: Collection[str]) -> Lock:
    """Return the lock to write; recipes that are not in `recipes` keep their sources."""
    sources = dict(retained.sources)
    for url, source in new.sources.items():
        before = retained.sources[url].recipes if url in retained.sources else ()
        names = [name for name in before if name not in recipes]
        sources[url] = replace(source, recipes=tuple(sorted({*names, *source.recipes})))
    return Lock(sources=sources, references={**retained.references, **new.references})


def mismatches(
    lock: Lock,
    requests: Collection[SourceRequest],
    references: Collection[tuple[str, str]],
    files: Mapping[str, str],
    *,
    own: Lock,
    retained: Lock,
) -> list[Fault]:
    """Return the faults of a lock: missing sources of partly locked recipes, and needless entries.

    Needless are entries of the project's `own` lock that are neither requested nor `retained`.
    `files` maps recipes to their files.
    """
    faults = [
        Fault(
            file=files[name],
            line=1,
            key="",
            problem=f"its source {request.urls[0]} is not in {LOCK}, but others are",
            valid=f"run: build-images lock --recipe {name}",
        )
        for request in requests
        for name in request.recipes
        if lock.of_stages({name: ()}) and not set(request.urls) & set(lock.sources)
    ]
    requested = {(url, name) for item in requests for url in item.urls for name in item.recipes}
    requested |= {(url, name) for url, pin in retained.sources.items() for name in pin.recipes}
    needless = [
        (source.line, f"{source.url}: {name} does not use it")
        for source in own.sources.values()
        for name in source.recipes
        if (source.url, name) not in requested
    ]
    needless += [
        (1, f"{reference} for {arch}: no image uses it")
        for reference, arch in own.references
        if (reference, arch) not in {*references, *retained.references}
    ]
    valid = "run: build-images lock, which removes it"
    return faults + [
        Fault(file=LOCK, line=line, key="", problem=problem, valid=valid)
        for line, problem in needless
    ]


def lock_changes(before: Lock, lock: Lock, inherited: Lock) -> Iterator[str]:
    """Yield what became of a lock's sources and of its base images."""
    own = lock.beyond(inherited)
    yield _changes("source", before.sources, lock.sources, own.sources)
    yield _changes("base image", before.references, lock.references, own.references)


def _changes(
    noun: str, before: Mapping[K, object], after: Mapping[K, object], own: Mapping[K, object]
) -> str:
    new, gone = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    count, inherited = counted(len(after), noun), len(after) - len(own)
    if inherited:
        count += f", {inherited} of them inherited"
    if inherited and not (own or gone):
        return f"{count}; nothing to write"
    return f"{count}; {new} new, {changed} changed, {gone} removed"


def lock_text(lock: Lock) -> str:
    """Return the text of lock.yaml; equal locks give equal bytes."""
    lines = [f"{_HEADER}schema: {SCHEMA}"]
    sources = sorted(lock.sources.values(), key=lambda source: source.url)
    references = sorted(lock.references.items())
    lines += ["sources:"] if sources else ["sources: []"]
    for source in sources:
        lines += _entry(_source_fields(source))
    lines += ["references:"] if references else ["references: []"]
    for (reference, arch), digest in references:
        lines += _entry({"reference": reference, "arch": arch, "digest": digest})
    return "\n".join(lines) + "\n"


def _source_fields(source: LockedSource) -> dict[str, object]:
    names = ("url", "file", "path", "sha256", "size", "mirrors")
    fields = {name: getattr(source, name) for name in names}
    fields["recipes"] = sorted(source.recipes)
    return {name: value for name, value in fields.items() if value}


def _entry(fields: Mapping[str, object]) -> list[str]:
    """Return the lines of an entry; values are in JSON, which is valid YAML."""
    texts = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return [f"  - {texts[0]}", *(f"    {text}" for text in texts[1:])]
