"""The locked sources of images, brought into the store of the builder's home."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from builder.build.bases.mirror import find_mirror
from builder.model import LockedSource, Site, Spec
from builder.model.locked import DEBIAN_SOURCE
from builder.sources.download import Downloader
from builder.sources.locking import SourceRequest
from builder.sources.store import Store, fetch_all
from builder.system.home import Home
from builder.system.progress import Progress

_LARGE = 20_000_000  # bytes; of such a file each quarter is told


def sources_of(specs: Iterable[Spec]) -> tuple[LockedSource, ...]:
    """The files that some specs copy in, each once."""
    found = {one.url: one for spec in specs for one in spec.sources}
    return tuple(found[url] for url in sorted(found))


def fetched(
    sources: Collection[LockedSource], store: Store, progress: Progress, *, offline: bool
) -> dict[str, Path]:
    """Their files in the store, verified, by URL; see `builder.sources.fetch_all` for errors."""
    return fetch_all(
        store,
        sources,
        downloader=Downloader(),
        offline=offline,
        on_progress=DownloadProgress(progress),
    )


def store_of(
    project: Path, site: Site, sources: Collection[LockedSource] | Collection[SourceRequest] = ()
) -> Store:
    """The store in the builder's home; with this machine's Debian mirror if one is needed."""
    groups = (one.urls if isinstance(one, SourceRequest) else (one.url,) for one in sources)
    urls = [url for group in groups for url in group]
    debian = find_mirror().main if any(url.startswith(DEBIAN_SOURCE) for url in urls) else ""
    home = Home.of_environment().sources
    return Store(path=home, mirrors=site.sources, debian=debian, project=project)


class DownloadProgress:
    """Progress of downloads: each start, each end, and quarters of large files."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._quarters: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, source: LockedSource, there: int) -> None:
        quarter = 4 * there // source.size if source.size > _LARGE or there >= source.size else 0
        with self._lock:
            before = self._quarters.get(source.url, -1)
            self._quarters[source.url] = max(quarter, before)
        if quarter > before:
            done = f"{min(25 * quarter, 100)} % of {source.size / 1e6:.1f} MB"
            self._progress.say(f"{source.file}: {done}")
