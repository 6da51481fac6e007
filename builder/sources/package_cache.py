"""The package cache: its folder of downloaded files, and its use by a run.

`builder.sources.package_proxy` serves build steps from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.model.errors import StepFailed
from builder.model.package_indices import IndexState, distinct
from builder.sources.journals import RUN, Journals, ServedFile
from builder.sources.suites import Suites

_CACHED = (".deb", ".udeb", ".rpm", ".whl")
_SOURCES = (".tar.gz", ".zip")  # Python source packages: an index never changes listed files
_BY_APT = ("apt-get", "mmdebstrap")  # the error of a step that apt ended names one of them
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_~-]")


@dataclass(kw_only=True)
class PackageCache:
    """The folder of cached files, and its use in this run.

    `address` is the proxy's URL. The proxy requires the `secret`, so other users of the machine
    cannot use it. A build has its own name and key (`builder.sources.journals.as_build`), and does
    not know the secret. Files in `shared`, a folder for several users, are used, too. `logins` are
    user names and passwords for package indices, by scheme and host; logins for HTTPS are never
    sent unencrypted. `suites` chooses the name under which a mirror's suite is requested.
    """

    folder: Path
    shared: Path | None = None
    address: str = ""
    secret: str = ""
    offline: bool = False
    suites: Suites = field(default_factory=Suites)
    logins: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    taken: int = 0
    taken_bytes: int = 0
    fetched: int = 0
    suspected: int = 0
    _indices: dict[str, set[IndexState]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: dict[Path, threading.Lock] = field(default_factory=dict)
    _served: dict[Path, float] = field(default_factory=dict)  # times of `time.monotonic`

    @property
    def url(self) -> str:
        """The proxy's URL with the login for requests that belong to no build."""
        return self.address.replace("//", f"//{RUN}:{self.secret}@")

    def place(self, url: str, *, listed: bool = False) -> Path | None:
        """Return the cache path of a URL, or None. An index `listed` it: more types are cached."""
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        if not name.endswith((*_CACHED, *_SOURCES) if listed else _CACHED):
            return None
        digest = hashlib.sha256(url.encode()).hexdigest()[:24]
        return self.folder / digest[:2] / f"{digest}-{_UNSAFE.sub('_', name)[-160:]}"

    @property
    def journals(self) -> Journals:
        return Journals(cache=self.folder, shared=self.shared)

    def file_at(self, place: Path) -> Path:
        """Return the file of a place: in the folder, or if missing there, in the shared one."""
        if self.shared and not place.is_file():
            return self.shared / place.relative_to(self.folder)
        return place

    def noted(self, build: str, url: str) -> ServedFile | None:
        """Return the file that a build received for a URL earlier; None unless offline."""
        return self._first_at(url, [self.journals.of(build)]) if self.offline else None

    def newest(self, url: str) -> ServedFile | None:
        """Return the file that any build received last for a URL; used if no server answers."""
        return self._first_at(url, self.journals.newest_first()) if self.offline else None

    def _first_at(
        self, url: str, journals: Iterable[Mapping[str, ServedFile]]
    ) -> ServedFile | None:
        noted = (files[url] for files in journals if url in files)
        existing = (file for file in noted if self.file_at(self.folder / file.file).is_file())
        return next(existing, None)

    @contextlib.contextmanager
    def alone(self, place: Path) -> Iterator[None]:
        """Hold a lock so that no other thread fetches the same file."""
        with self._lock:
            lock = self._busy.setdefault(place, threading.Lock())
        with lock:
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Run a step that may install packages; if it fails, mark the served files as suspect.

        A package manager that refuses a file ends its step, and would get the same file from the
        cache each time. A suspect file is fetched again; it stays until then, since other builds
        used it. Requests do not name their step, so files of concurrent steps are marked, too,
        which costs only a download. Offline, no file is marked.
        """
        begun = time.monotonic()
        try:
            yield
        except StepFailed as error:
            if not self.offline:
                self._suspect(begun)
            if any(name in f"{error.message} {error.tail}" for name in _BY_APT):
                error.hint = "\n  ".join([*self.suites.refused, *filter(None, [error.hint])])
            raise

    def _suspect(self, since: float) -> None:
        """Mark the files that were served since that time or are being sent now."""
        with self._lock:
            for place in [file for file, when in self._served.items() if when >= since]:
                del self._served[place]
                place.parent.mkdir(exist_ok=True)
                _mark(place).touch()
                self.suspected += 1

    def is_good(self, place: Path) -> bool:
        """Return whether a cached file may be served: it is not suspect, or the run is offline."""
        return self.offline or not _mark(place).exists()

    def begin(self, place: Path) -> None:
        """Note that sending a file begins."""
        with self._lock:
            self._served[place] = time.monotonic()

    def keep(self, partial: Path, place: Path) -> None:
        """Cache a fetched file; if a step has failed meanwhile, it stays suspect."""
        with self._lock:
            partial.chmod(0o644)
            place.parent.mkdir(exist_ok=True)
            partial.replace(place)
            if place in self._served:
                _mark(place).unlink(missing_ok=True)
                self.fetched += 1

    def note_index(self, build: str, state: IndexState) -> None:
        """Note a suite's state that a build, or the run itself, saw."""
        with self._lock:
            self._indices.setdefault(build, set()).add(state)
        self.journals.note_state(build, state)

    def index_states(self, build: str) -> tuple[IndexState, ...]:
        """Return the suite states that a build saw in this run."""
        with self._lock:
            return distinct(self._indices.get(build, ()))

    def count(self, taken: int) -> None:
        """Count a file of `taken` bytes that was served from the folder."""
        with self._lock:
            self.taken, self.taken_bytes = self.taken + 1, self.taken_bytes + taken


def _mark(place: Path) -> Path:
    """Return the path that marks a file as suspect, in this run and in later ones."""
    return place.with_name(f"{place.name}.suspected")
