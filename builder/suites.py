"""Suites of a mirror that is amid a sync: under which of its names a suite is whole.

Mirrors take over a suite file after file, and those that cache keep each file for a time of its
own. Meanwhile the Release file may name an index that is not there yet, and apt refuses all of it:
"File has unexpected size. Mirror sync in progress?" That can last for days, above all for
architectures that few ask for. A suite has two names, as `trixie` and `stable`, and such a mirror
may hold it in two states. Where the one that is asked for is torn and the other is whole, that one
is asked for all of it. apt checks signatures, names, dates and checksums as always.
https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

_OF_A_SUITE = re.compile(r"(http://[^?#]+/dists/)([^/?#]+)(/[^?#]+)")
_WANTED = "Acquire-By-Hash|Codename|Components|Date|Label|Origin|Suite"
_FIELD = re.compile(rf"^({_WANTED}): *(.*)$", re.MULTILINE)
_SUM = re.compile(r"^ ([0-9a-f]{64}) +([0-9]+) +(\S+)$", re.MULTILINE)
_ENDS = (".xz", ".gz", "")  # apt takes the first that the Release file names
_MOST_RELEASE = 10 << 20  # bytes; that of Debian's sid has 0.3 MB
_PATIENCE_S = 20.0  # apt waits for 30 s
# Point releases are two to four months apart: what is older was forgotten there.
_OLDEST = dt.timedelta(days=180)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~-]*")
_ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Release:
    """What a Release file says: its fields, and (SHA-256, bytes) of each file by path."""

    fields: dict[str, str]
    files: dict[str, tuple[str, str]]

    def indices(self, architectures: frozenset[str]) -> Iterator[str]:
        """The paths of the first component's indices of packages, as apt would ask for them."""
        component, *_ = self.fields.get("Components", "").split() or ["main"]
        for arch in sorted(architectures):
            names = (f"{component}/binary-{arch}/Packages{end}" for end in _ENDS)
            if found := next((name for name in names if name in self.files), None):
                yield found


@dataclass(kw_only=True)
class Suites:
    """Which name each suite is asked for by, found out once and kept.

    A mirror that has not said enough for that after 20 s is asked for what is wanted.

    `architectures` are those that packages are wanted for, as Debian names them; without any,
    everything is asked for by its own name. `say` is told of each other name that was taken.
    """

    architectures: frozenset[str] = frozenset()
    say: Callable[[str], object] = lambda _: None
    _names: dict[tuple[str, str], Future[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def address(self, url: str) -> str:
        """The URL to ask for in place of `url`: another one only in the folder of a torn suite."""
        found = _OF_A_SUITE.fullmatch(url)
        if not (found and self.architectures):
            return url
        archive, suite, path = found.groups()
        with self._lock:
            if (asked := self._names.get((archive, suite))) is None:
                asked = self._names[archive, suite] = Future()
                given = (asked, archive, suite)
                threading.Thread(target=self._find, args=given, daemon=True).start()
        wait([asked], timeout=_PATIENCE_S)
        self._settle(asked, suite)
        return f"{archive}{asked.result()}{path}"

    def _find(self, asked: Future[str], archive: str, suite: str) -> None:
        name = suite
        try:
            name = self._whole(archive, suite)
        finally:
            self._settle(asked, name)

    def _settle(self, asked: Future[str], name: str) -> None:
        """Take a name, if none was taken: for all of a run it is one."""
        with self._lock:
            if not asked.done():
                asked.set_result(name)

    def _whole(self, archive: str, suite: str) -> str:
        """The name of a whole state of a suite; its own where there is none, or nobody answers."""
        # Commands that build nothing start without these.
        import requests  # noqa: PLC0415
        import urllib3  # noqa: PLC0415

        try:
            if not (release := _release(archive, suite)):
                return suite
            lacking = self._lacking(archive, suite, release)
            if not lacking:
                return suite
            for name in _names(release, suite):
                other = _release(archive, name)
                if (
                    other
                    and _identity(other) == _identity(release)
                    and _is_of_late(other, release)
                    and not self._lacking(archive, name, other)
                ):
                    self.say(
                        f"the mirror is amid a sync of {suite}: {lacking} is not there yet; "
                        f"taken is its {name}, of {other.fields.get('Date', 'an unknown day')}"
                    )
                    return name
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError):
            return suite  # whoever asked for it is told
        return suite

    def _lacking(self, archive: str, name: str, release: _Release) -> str:
        """The first index that a Release file names and the mirror does not have; or nothing."""
        wanted = release.indices(self.architectures)
        return next((one for one in wanted if not _is_there(f"{archive}{name}", release, one)), "")


def _release(archive: str, name: str) -> _Release | None:
    with _ask("GET", f"{archive}{name}/InRelease") as answer:
        if answer.status_code != HTTPStatus.OK:
            return None
        text = answer.raw.read(_MOST_RELEASE, decode_content=True).decode(errors="replace")
    sums = text.partition("\nSHA256:\n")[2]
    return _Release(
        fields=dict(reversed(_FIELD.findall(text.partition("\nSHA256:\n")[0]))),
        files={path: (sha256, size) for sha256, size, path in _SUM.findall(sums)},
    )


def _names(release: _Release, suite: str) -> list[str]:
    """The other names of a suite, which its Release file says."""
    said = (release.fields.get(one, "") for one in ("Suite", "Codename"))
    return [name for name in said if name != suite and _NAME.fullmatch(name)]


def _identity(release: _Release) -> list[str | None]:
    return [release.fields.get(one) for one in ("Origin", "Label", "Suite", "Codename")]


def _is_of_late(other: _Release, release: _Release) -> bool:
    """Whether a state may be the one before another, or is newer, and is none of long ago."""
    dates = [parsedate_to_datetime(one.fields.get("Date", "")) for one in (other, release)]
    return dates[1] - dates[0] <= _OLDEST


def _is_there(folder: str, release: _Release, path: str) -> bool:
    """Whether apt would find an index; where a server does not say, it is taken to be there."""
    sha256, size = release.files[path]
    if release.fields.get("Acquire-By-Hash") == "yes":
        by_hash = f"{path.rpartition('/')[0]}/by-hash/SHA256/{sha256}"
        with _ask("HEAD", f"{folder}/{by_hash}") as answer:
            if answer.status_code not in _ABSENT:
                return True
    with _ask("HEAD", f"{folder}/{path}") as answer:
        is_ok = answer.status_code == HTTPStatus.OK
        is_other = is_ok and answer.headers.get("Content-Length", size) != size
        return answer.status_code not in _ABSENT and not is_other


def _ask(method: str, url: str) -> requests.Response:
    from builder import upstream  # noqa: PLC0415

    headers = {"Accept-Encoding": "identity"}
    return upstream.ask(method, url, headers, None, logins={}, follow=True)
