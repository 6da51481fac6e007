"""Suites of a mirror that is amid a sync, and the name under which a suite is complete.

Mirrors copy a suite file after file, and caching ones keep each file for a time of its own.
Meanwhile the Release file may name an index that does not exist yet, and apt refuses the suite:
"File has unexpected size. Mirror sync in progress?" That can last for days, above all for
architectures with few users. A suite has two names, as `trixie` and `stable`, and such a mirror may
hold it in two states. If the requested one is incomplete and the other is complete, all requests go
to the other. apt checks signatures, names, dates and checksums as always.
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

from builder.model.package_indices import IndexState, state_of

if TYPE_CHECKING:
    import requests

_OF_A_SUITE = re.compile(r"(http://[^?#]+/dists/)([^/?#]+)(/[^?#]+)")
_FIELDS = "Acquire-By-Hash|Codename|Components|Date|Label|Origin|Suite|Valid-Until"
_FIELD = re.compile(rf"^({_FIELDS}): *(.*)$", re.MULTILINE)
_SUM = re.compile(r"^ ([0-9a-f]{64}) +([0-9]+) +(\S+)$", re.MULTILINE)
_ENDS = (".xz", ".gz", "")  # apt takes the first that the Release file names
_MOST_RELEASE = 10 << 20  # bytes; that of Debian's sid has 0.3 MB
_WAIT_S = 20.0  # apt waits for 30 s
# Point releases are two to four months apart: what is older was forgotten there.
_OLDEST = dt.timedelta(days=180)
MOST_BEHIND = dt.timedelta(days=14)
_OTHER_MIRROR = "BUILD_IMAGES_MIRROR or BUILD_IMAGES_SECURITY_MIRROR names another mirror"
_WITHOUT = "BUILD_IMAGES_SECURITY_MIRROR=none does without"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_~-]*")
_ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Release:
    """A Release file: its fields, and (SHA-256, bytes) of each file by path."""

    fields: dict[str, str]
    files: dict[str, tuple[str, str]]

    def indices(self, architectures: frozenset[str]) -> Iterator[str]:
        """Yield the paths of the first component's package indices, as apt would request them."""
        first, *_ = self.fields.get("Components", "").split() or ["main"]
        component = first.rpartition("/")[2]  # Debian's security archive says updates/main
        for arch in sorted(architectures):
            names = (f"{component}/binary-{arch}/Packages{end}" for end in _ENDS)
            if path := next((name for name in names if name in self.files), None):
                yield path


@dataclass(kw_only=True)
class Suites:
    """The names under which suites are requested, each determined once.

    A mirror that takes more than 20 s for that gets requests for the original name.
    `architectures` are those of the packages, as Debian names them; without any, every suite is
    requested by its own name. `say` gets a line for each other name that is used.
    A state that is older than the incomplete one by more than `most_behind`, or that apt would
    refuse for its age, is not used; `refused` lists those, with the reason and the remedy.
    """

    architectures: frozenset[str] = frozenset()
    say: Callable[[str], object] = lambda _: None
    most_behind: dt.timedelta = MOST_BEHIND
    refused: list[str] = field(default_factory=list)
    _behind: dict[tuple[str, str], int] = field(default_factory=dict)  # days
    _names: dict[tuple[str, str], Future[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def address(self, url: str) -> str:
        """Return the URL to request for `url`: another one only for an incomplete suite."""
        match = _OF_A_SUITE.fullmatch(url)
        if not (match and self.architectures):
            return url
        archive, suite, path = match.groups()
        with self._lock:
            if (future := self._names.get((archive, suite))) is None:
                future = self._names[archive, suite] = Future()
                arguments = (future, archive, suite)
                threading.Thread(target=self._find, args=arguments, daemon=True).start()
        wait([future], timeout=_WAIT_S)
        self._settle(future, suite)
        return f"{archive}{future.result()}{path}"

    def behind_days(self, url: str) -> int:
        """Return the days by which the served state is older than the one at the URL."""
        match = _OF_A_SUITE.fullmatch(url)
        return self._behind.get((match[1], match[2]), 0) if match else 0

    def _find(self, future: Future[str], archive: str, suite: str) -> None:
        name = suite
        try:
            name = self._complete_name(archive, suite)
        finally:
            self._settle(future, name)

    def _settle(self, future: Future[str], name: str) -> None:
        """Set a name, if none is set: a run uses a single one."""
        with self._lock:
            if not future.done():
                future.set_result(name)

    def _complete_name(self, archive: str, suite: str) -> str:
        """Return the name of a suite's complete state; its own if there is none, or no response."""
        # Commands that build nothing start without these.
        import requests  # noqa: PLC0415
        import urllib3  # noqa: PLC0415

        try:
            if not (release := _release(archive, suite)):
                return suite
            missing = self._missing(archive, suite, release)
            if not missing:
                return suite
            for name in _names(release, suite):
                other = _release(archive, name)
                if (
                    other
                    and _identity(other) == _identity(release)
                    and _is_recent(other, release)
                    and not self._missing(archive, name, other)
                ):
                    behind = (_date(release) - _date(other)).days
                    its = f"its {name}, of {other.fields['Date']}"
                    torn = f"the mirror is amid a sync of {suite}: {missing} is not there yet"
                    if reason := self._refusal(other, behind):
                        self.say(f"{torn}; {its}, is not taken: {reason}")
                        self.refused.append(f"{torn}; {its}, {reason}")
                        return suite
                    self._behind[archive, suite] = max(behind, 0)
                    self.say(f"{torn}; taken is {its}")
                    return name
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError):
            return suite  # apt gets the error for its request
        return suite

    def _refusal(self, other: _Release, behind: int) -> str:
        """Return why a complete state is not used, with the remedy; empty if it is used."""
        if _is_expired(other):
            return f"is valid no more; {_OTHER_MIRROR}, or {_WITHOUT}"
        if behind > self.most_behind.days:
            return (
                f"is {behind} days behind it; --max-index-age {behind} takes it, or {_OTHER_MIRROR}"
            )
        return ""

    def _missing(self, archive: str, name: str, release: _Release) -> str:
        """Return the first index of a Release file that the mirror does not have; or nothing."""
        folder, paths = f"{archive}{name}", release.indices(self.architectures)
        return next((path for path in paths if not _is_available(folder, release, path)), "")


def _release(archive: str, name: str) -> _Release | None:
    with _request("GET", f"{archive}{name}/InRelease") as response:
        if response.status_code != HTTPStatus.OK:
            return None
        text = response.raw.read(_MOST_RELEASE, decode_content=True).decode(errors="replace")
    sums = text.partition("\nSHA256:\n")[2]
    return _Release(
        fields=dict(reversed(_FIELD.findall(text.partition("\nSHA256:\n")[0]))),
        files={path: (sha256, size) for sha256, size, path in _SUM.findall(sums)},
    )


def state_beside(archive: str, suite: str) -> IndexState | None:
    """Return the current state of a suite on a mirror; None if it has none.

    For mirrors to which requests do not go through the proxy: https.
    """
    import requests  # noqa: PLC0415 - commands that build nothing start without it
    import urllib3  # noqa: PLC0415

    url = f"{archive}/dists/{suite}/InRelease"
    try:
        with _request("GET", url) as response:
            if response.status_code != HTTPStatus.OK:
                return None
            return state_of(url, url, response.raw.read(_MOST_RELEASE, decode_content=True))
    except (requests.RequestException, urllib3.exceptions.HTTPError):
        return None


def _names(release: _Release, suite: str) -> list[str]:
    """Return the other names of a suite, from its Release file."""
    names = (release.fields.get(field, "") for field in ("Suite", "Codename"))
    return [name for name in names if name != suite and _NAME.fullmatch(name)]


def _identity(release: _Release) -> list[str | None]:
    return [release.fields.get(key) for key in ("Origin", "Label", "Suite", "Codename")]


def _is_recent(other: _Release, release: _Release) -> bool:
    """Return whether a state is newer than another, or not much older."""
    return _date(release) - _date(other) <= _OLDEST


def _is_expired(release: _Release) -> bool:
    """Return whether apt refuses a state for its age: security updates have a Valid-Until."""
    until = release.fields.get("Valid-Until")
    return bool(until) and parsedate_to_datetime(until or "") < dt.datetime.now(tz=dt.timezone.utc)


def _date(release: _Release) -> dt.datetime:
    """Return the date of a Release file; raises `ValueError` without one."""
    return parsedate_to_datetime(release.fields.get("Date", ""))


def _is_available(folder: str, release: _Release, path: str) -> bool:
    """Return whether apt would find an index; assumed if the server's response is unclear."""
    sha256, size = release.files[path]
    if release.fields.get("Acquire-By-Hash") == "yes":
        by_hash = f"{path.rpartition('/')[0]}/by-hash/SHA256/{sha256}"
        with _request("HEAD", f"{folder}/{by_hash}") as response:
            if response.status_code not in _ABSENT:
                return True
    with _request("HEAD", f"{folder}/{path}") as response:
        is_ok = response.status_code == HTTPStatus.OK
        is_other = is_ok and response.headers.get("Content-Length", size) != size
        return response.status_code not in _ABSENT and not is_other


def _request(method: str, url: str) -> requests.Response:
    from builder.sources import upstream  # noqa: PLC0415

    headers = {"Accept-Encoding": "identity"}
    return upstream.request(method, url, headers, None, logins={}, follow=True)
