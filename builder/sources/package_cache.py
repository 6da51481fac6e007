"""Packages that are downloaded once: the folder of kept files, and what a run was given from it.

`builder.sources.package_proxy` answers build steps from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.model.errors import StepFailed
from builder.sources.journals import Given, Journals
from builder.sources.package_indices import IndexState, distinct
from builder.sources.suites import Suites

_KEPT = (".deb", ".udeb", ".rpm", ".whl")
_SOURCES = (".tar.gz", ".zip")  # of Python packages: an index never changes what it lists
_BY_APT = ("apt-get", "mmdebstrap")  # one of them is in what a step says that apt ended
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_~-]")


@dataclass(kw_only=True)
class PackageCache:
    """The folder of kept files, and what came from it in this run.

    `address` is the proxy's; `url` has the `secret` that it wants, which other users of the machine
    do not have, and the user `run`; `key` is both as a header. A build has a name and a key of its
    own (`builder.sources.journals.as_build`), and does not know the secret.
    `shared` is another folder, which other users have, too: what is there is taken from it.
    `logins` are names and passwords of package indices that want one, by scheme and host: what is
    for HTTPS is not sent in the clear. `suites` says by which name a mirror is asked for a suite.
    """

    folder: Path
    shared: Path | None = None
    address: str = ""
    url: str = ""
    key: str = ""
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
    _given: dict[Path, float] = field(default_factory=dict)  # when, by `time.monotonic`

    def place(self, url: str, *, listed: bool = False) -> Path | None:
        """Where a file is kept, `listed` by an index or not; None if it is of no kind that is."""
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        if not name.endswith((*_KEPT, *_SOURCES) if listed else _KEPT):
            return None
        digest = hashlib.sha256(url.encode()).hexdigest()[:24]
        return self.folder / digest[:2] / f"{digest}-{_UNSAFE.sub('_', name)[-160:]}"

    @property
    def journals(self) -> Journals:
        return Journals(cache=self.folder, shared=self.shared)

    def file_at(self, place: Path) -> Path:
        """The file of a place in the folder, or else in the shared one."""
        if self.shared and not place.is_file():
            return self.shared / place.relative_to(self.folder)
        return place

    def again(self, who: str, url: str) -> Given | None:
        """What a build was given for a URL before; None unless it is to be given the same again."""
        if not self.offline:
            return None
        given = self.journals.of(who).get(url)
        return given if given and self.file_at(self.folder / given.file).is_file() else None

    def last(self, url: str) -> Given | None:
        """What any build was given last for a URL; for where no server answers."""
        if not self.offline:
            return None
        found = (one[url] for one in self.journals.newest_first() if url in one)
        there = (one for one in found if self.file_at(self.folder / one.file).is_file())
        return next(there, None)

    @contextlib.contextmanager
    def alone(self, place: Path) -> Iterator[None]:
        """A time in which no other thread fetches the same file."""
        with self._lock:
            lock = self._busy.setdefault(place, threading.Lock())
        with lock:
            yield

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step that may install packages; what it was given is suspected if it fails.

        A package manager that refuses a file ends its step, and would be given the same file again
        for ever: what is suspected is fetched anew, and stays until that has come, since other
        builds were made with it. No request says which step it is of, so what steps beside it were
        given meanwhile is suspected, too: it costs a later one a download. Offline nothing is.
        """
        begun = time.monotonic()
        try:
            yield
        except StepFailed as error:
            if not self.offline:
                self._suspect(begun)
            if any(one in f"{error.message} {error.tail}" for one in _BY_APT):
                error.hint = "\n  ".join([*self.suites.refused, *filter(None, [error.hint])])
            raise

    def _suspect(self, since: float) -> None:
        """Mark what was given since that time, and what is still on its way."""
        with self._lock:
            for place in [one for one, when in self._given.items() if when >= since]:
                del self._given[place]
                place.parent.mkdir(exist_ok=True)
                _mark(place).touch()
                self.suspected += 1

    def is_good(self, place: Path) -> bool:
        """Whether a file can be given that is kept there: it is not suspected, or has to do."""
        return self.offline or not _mark(place).exists()

    def begin(self, place: Path) -> None:
        """Note that somebody is about to be given a file."""
        with self._lock:
            self._given[place] = time.monotonic()

    def keep(self, partial: Path, place: Path) -> None:
        """Keep a file that was fetched; if a step failed meanwhile, it stays suspected."""
        with self._lock:
            partial.chmod(0o644)
            place.parent.mkdir(exist_ok=True)
            partial.replace(place)
            if place in self._given:
                _mark(place).unlink(missing_ok=True)
                self.fetched += 1

    def note_index(self, who: str, state: IndexState) -> None:
        """Note which state of a suite a build, or the run itself, was told of."""
        with self._lock:
            self._indices.setdefault(who, set()).add(state)
        self.journals.note_state(who, state)

    def told(self, who: str) -> tuple[IndexState, ...]:
        """The states of suites that a build was told of in this run."""
        with self._lock:
            return distinct(self._indices.get(who, ()))

    def count(self, taken: int) -> None:
        """Note a file that was taken from the folder, by its size."""
        with self._lock:
            self.taken, self.taken_bytes = self.taken + 1, self.taken_bytes + taken


def _mark(place: Path) -> Path:
    """What says that a file is suspected, in this run and in later ones."""
    return place.with_name(f"{place.name}.suspected")
