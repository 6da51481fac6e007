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

from builder.sources.package_indices import IndexState, state_of

if TYPE_CHECKING:
    import requests

_OF_A_SUITE = re.compile(r"(http://[^?#]+/dists/)([^/?#]+)(/[^?#]+)")
_WANTED = "Acquire-By-Hash|Codename|Components|Date|Label|Origin|Suite|Valid-Until"
_FIELD = re.compile(rf"^({_WANTED}): *(.*)$", re.MULTILINE)
_SUM = re.compile(r"^ ([0-9a-f]{64}) +([0-9]+) +(\S+)$", re.MULTILINE)
_ENDS = (".xz", ".gz", "")  # apt takes the first that the Release file names
_MOST_RELEASE = 10 << 20  # bytes; that of Debian's sid has 0.3 MB
_PATIENCE_S = 20.0  # apt waits for 30 s
# Point releases are two to four months apart: what is older was forgotten there.
_OLDEST = dt.timedelta(days=180)
MOST_BEHIND = dt.timedelta(days=14)
_OTHER_MIRROR = "BUILD_IMAGES_MIRROR or BUILD_IMAGES_SECURITY_MIRROR names another mirror"
_WITHOUT = "BUILD_IMAGES_SECURITY_MIRROR=none does without"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~-]*")
_ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Release:
    """What a Release file says: its fields, and (SHA-256, bytes) of each file by path."""

    fields: dict[str, str]
    files: dict[str, tuple[str, str]]

    def indices(self, architectures: frozenset[str]) -> Iterator[str]:
        """The paths of the first component's indices of packages, as apt would ask for them."""
        said, *_ = self.fields.get("Components", "").split() or ["main"]
        component = said.rpartition("/")[2]  # Debian's security archive says updates/main
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
    A state is not taken that is older than the torn one by more than `most_behind`, or that apt
    would refuse for its age; `refused` says which was not, why, and what the way out is.
    """

    architectures: frozenset[str] = frozenset()
    say: Callable[[str], object] = lambda _: None
    most_behind: dt.timedelta = MOST_BEHIND
    refused: list[str] = field(default_factory=list)
    _behind: dict[tuple[str, str], int] = field(default_factory=dict)  # days
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

    def behind_days(self, url: str) -> int:
        """How much older what is given for a URL is than what the mirror tells of there."""
        found = _OF_A_SUITE.fullmatch(url)
        return self._behind.get((found[1], found[2]), 0) if found else 0

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
                    behind = (_date(release) - _date(other)).days
                    its = f"its {name}, of {other.fields['Date']}"
                    torn = f"the mirror is amid a sync of {suite}: {lacking} is not there yet"
                    if why := self._why_not(other, behind):
                        self.say(f"{torn}; {its}, is not taken: {why}")
                        self.refused.append(f"{torn}; {its}, {why}")
                        return suite
                    self._behind[archive, suite] = max(behind, 0)
                    self.say(f"{torn}; taken is {its}")
                    return name
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError):
            return suite  # whoever asked for it is told
        return suite

    def _why_not(self, other: _Release, behind: int) -> str:
        """Why a whole state is not taken, with the way out; empty if it is."""
        if _is_over(other):
            return f"is valid no more; {_OTHER_MIRROR}, or {_WITHOUT}"
        if behind > self.most_behind.days:
            return (
                f"is {behind} days behind it; --max-index-age {behind} takes it, or {_OTHER_MIRROR}"
            )
        return ""

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


def state_beside(archive: str, suite: str) -> IndexState | None:
    """The state of a suite that a mirror tells of now; None where it tells of none.

    For mirrors to which requests go past the proxy: https.
    """
    import requests  # noqa: PLC0415 - commands that build nothing start without it
    import urllib3  # noqa: PLC0415

    url = f"{archive}/dists/{suite}/InRelease"
    try:
        with _ask("GET", url) as answer:
            if answer.status_code != HTTPStatus.OK:
                return None
            return state_of(url, url, answer.raw.read(_MOST_RELEASE, decode_content=True))
    except (requests.RequestException, urllib3.exceptions.HTTPError):
        return None


def _names(release: _Release, suite: str) -> list[str]:
    """The other names of a suite, which its Release file says."""
    said = (release.fields.get(one, "") for one in ("Suite", "Codename"))
    return [name for name in said if name != suite and _NAME.fullmatch(name)]


def _identity(release: _Release) -> list[str | None]:
    return [release.fields.get(one) for one in ("Origin", "Label", "Suite", "Codename")]


def _is_of_late(other: _Release, release: _Release) -> bool:
    """Whether a state may be the one before another, or is newer, and is none of long ago."""
    return _date(release) - _date(other) <= _OLDEST


def _is_over(release: _Release) -> bool:
    """Whether apt takes a state no more: that of security updates says until when it is good."""
    until = release.fields.get("Valid-Until")
    return bool(until) and parsedate_to_datetime(until or "") < dt.datetime.now(tz=dt.timezone.utc)


def _date(release: _Release) -> dt.datetime:
    """Raises `ValueError` where a Release file has none."""
    return parsedate_to_datetime(release.fields.get("Date", ""))


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
    from builder.sources import upstream  # noqa: PLC0415

    headers = {"Accept-Encoding": "identity"}
    return upstream.ask(method, url, headers, None, logins={}, follow=True)
