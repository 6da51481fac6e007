"""The local store of source files, named by SHA-256; each is complete or absent."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.model import Layers
from builder.model.errors import BuildImagesError, MissingPrerequisite, Refused
from builder.model.inputs import DEBIAN_SOURCE, INDEX_SOURCES, LOCAL_SOURCE, LOCK, LockedSource
from builder.sources.download import Downloader, Fetched, NotFetched, OnBytes, digest_of
from builder.sources.package_index import PackageIndex
from builder.system.locks import locked
from builder.system.threads import in_threads
from builder.system.web import server_of, without_users

# Called with a source and its fetched bytes.
OnProgress = Callable[[LockedSource, int], object]


class Unfetched(MissingPrerequisite):
    """A source could not be fetched from any URL."""


class Changed(Refused):
    """The file at a URL differs from the locked one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceStore:
    """The folder of source files. `mirrors` are URLs of a site's folders of source files.

    `debian` is the URL of a Debian archive, for `debian-source:` URLs, `index` that of a Python
    package index, for `wheel:` and `sdist:` URLs; empty if none is known. `layers` are the
    project's folders, for files in them.
    """

    path: Path
    mirrors: tuple[str, ...] = ()
    debian: str = ""
    index: str = ""
    layers: Layers | None = None

    def place(self, sha256: str) -> Path:
        return self.path / "sha256" / sha256

    def holds(self, source: LockedSource) -> Path | None:
        """Return the file if it exists with the right size; its bytes are not read."""
        path = self.place(source.sha256)
        return path if path.is_file() and path.stat().st_size == source.size else None

    def urls(self, source: LockedSource) -> tuple[str, ...]:
        """Return the URLs to try: the site's mirrors, the URL itself, then the lock's mirrors."""
        origin = self.origin(source.url)
        if origin.startswith(DEBIAN_SOURCE):
            origin = f"{self.debian}/{source.path}" if self.debian else ""
        near = tuple(f"{mirror.rstrip('/')}/{source.file}" for mirror in self.mirrors)
        return tuple(dict.fromkeys(url for url in (*near, origin, *source.mirrors) if url))

    def origin(self, url: str) -> str:
        """Return the URL to fetch a source from: a file:// URL for a file of the project."""
        if not url.startswith(LOCAL_SOURCE):
            return url
        path = url.removeprefix(LOCAL_SOURCE)
        return self.layers.find(path).absolute().as_uri() if self.layers else ""

    def ensure(
        self,
        source: LockedSource,
        *,
        downloader: Downloader,
        offline: bool = False,
        on_progress: OnProgress = lambda _source, _bytes: None,
    ) -> Path:
        """Return the file, from the store or fetched into it; its SHA-256 is the locked one.

        Raises `Unfetched` if no URL has the file (or `offline` forbids requests), and `Changed` if
        a URL has a different file and none has the right one.
        """
        place = self.place(source.sha256)
        if _is(place, source):
            return place
        if offline and not source.url.startswith(LOCAL_SOURCE):
            raise Unfetched(_missing(source))
        with locked(self.path, source.sha256):
            if not _is(place, source):
                place.unlink(missing_ok=True)  # damaged: its SHA-256 differs from its name
                self._fetch(source, downloader, partial(on_progress, source))
        return place

    def take(self, file: Path, fetched: Fetched) -> Path:
        """Move a fetched file into the store."""
        place = self.place(fetched.sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.chmod(0o644)
        file.replace(place)
        return place

    def _fetch(self, source: LockedSource, downloader: Downloader, on_bytes: OnBytes) -> None:
        target = self.path / f".{source.sha256}.partial"
        tried: list[str] = []
        others: list[str] = []
        for url in self.urls(source):
            try:
                place = self._listed(url, source, downloader)
                fetched = _fetched(source, place, target, downloader, on_bytes)
            except NotFetched as error:
                tried.append(f"  {url}: {error}")
                continue
            if fetched == _locked(source):
                self.take(target, fetched)
                return
            target.unlink()
            others += [
                f"{url}: the file differs from the locked one:",
                f"  locked: sha256 {source.sha256}, {source.size} bytes",
                f"  found:  sha256 {fetched.sha256}, {fetched.size} bytes",
            ]
        if others:
            raise Changed(self._shown("\n".join([*others, *tried]), source))
        tried = tried or ["  no URL to fetch it from"]
        raise Unfetched(self._shown("\n".join([_missing(source), *tried]), source))

    def _listed(self, url: str, source: LockedSource, downloader: Downloader) -> str:
        """Return the URL of an index's file, which its page has; any other URL unchanged."""
        if not url.startswith(INDEX_SOURCES):
            return url
        index = PackageIndex(url=self.index, downloader=downloader, folder=self.path)
        return index.file(url, source.file).url

    def _shown(self, text: str, source: LockedSource) -> str:
        text = text.replace(server_of(self.index), "the package index") if self.index else text
        return shown(text, source, self.debian)


def _locked(source: LockedSource) -> Fetched:
    return Fetched(sha256=source.sha256, size=source.size)


def _fetched(
    source: LockedSource, url: str, target: Path, downloader: Downloader, on_bytes: OnBytes
) -> Fetched:
    """Fetch a file; start again once if the partial file belonged to a different file.

    A file that is larger than the locked one is read to its end, to report its checksum.
    """
    resumed = target.exists() and 0 < target.stat().st_size <= source.size
    if not resumed:
        target.unlink(missing_ok=True)
    fetched = downloader.fetch(url, target, on_bytes=on_bytes)
    if resumed and fetched != _locked(source):
        target.unlink()
        fetched = downloader.fetch(url, target, on_bytes=on_bytes)
    return fetched


def _is(place: Path, source: LockedSource) -> bool:
    return place.is_file() and digest_of(place) == _locked(source)


def shown(text: str, source: LockedSource, debian: str) -> str:
    """Return a text for messages and logs: the local Debian mirror is not named."""
    if not debian:
        return without_users(text)
    text = text.replace(f"{debian}/{source.path}", source.url) if source.path else text
    return without_users(text).replace(server_of(debian), "the Debian mirror")


def _missing(source: LockedSource) -> str:
    return f"{source.file} ({without_users(source.url)}), sha256 {source.sha256}"


UPDATE_HINT = (
    f"if the new file is correct, build-images lock --update writes it to {LOCK}; "
    "else name a mirror that has the old one (sources: in site.yaml)"
)
MIRROR_HINT = (
    "name a mirror (sources: [URL] in site.yaml), or run build-images fetch on a machine that "
    "reaches them, and copy its store to {store}"
)
OFFLINE_HINT = (
    "run build-images fetch here without --offline, or on a machine with a network, and copy its "
    "store to {store}"
)


def fetch_all(
    store: SourceStore,
    sources: Collection[LockedSource],
    *,
    downloader: Downloader,
    offline: bool = False,
    on_progress: OnProgress = lambda _source, _bytes: None,
) -> dict[str, Path]:
    """Return all files by URL; several are fetched at once.

    Raises one error for all failures: `Changed` if a file differs from the locked one, else
    `Unfetched`, which lists all missing files.
    """
    paths: dict[str, Path] = {}
    failures: list[BuildImagesError] = []

    def ensure(source: LockedSource) -> None:
        try:
            paths[source.url] = store.ensure(
                source, downloader=downloader, offline=offline, on_progress=on_progress
            )
        except (Unfetched, Changed) as error:
            failures.append(error)

    in_threads(ensure, sources, stop=downloader.stop)
    if not failures:
        return dict(sorted(paths.items()))
    texts = sorted(map(str, failures))
    if any(isinstance(failure, Changed) for failure in failures):
        raise Changed("\n".join(texts), hint=UPDATE_HINT)
    count = "1 source is" if len(texts) == 1 else f"{len(texts)} sources are"
    why = "not in the store, and --offline forbids downloads" if offline else "not available"
    hint = OFFLINE_HINT if offline else MIRROR_HINT
    raise Unfetched("\n".join([f"{count} {why}:", *texts]), hint=hint.format(store=store.path))
