"""Suites on a mirror during its sync, and the name under which a suite is complete.

During a sync, a mirror's Release file may list an index that is still missing, and apt refuses the
suite ("File has unexpected size. Mirror sync in progress?"). Or the index lists packages that are
still missing, for days on architectures with few users. A suite has two names, such as `trixie` and
`stable`, and a mirror may have a different state under each. If the requested state is incomplete
and the other one complete, all requests use the other name. apt checks signatures, names, dates and
checksums as usual. https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

import contextlib
import datetime as dt
import lzma
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import requests

from builder.model.package_indices import IndexState, state_of
from builder.sources.upstream import page_of, request

_OF_A_SUITE = re.compile(r"(http://[^?#]+/dists/)([A-Za-z0-9][A-Za-z0-9.+_~-]*)(/[^?#]+)")
_INDEX = r"^ ([0-9a-f]{{64}}) +([0-9]+) +({}/binary-{}/Packages\.xz)$"
_COMPARED = 1 << 20  # bytes read of each index: some thousand packages
_PACKAGE = r"^Package: (\S+)\n(?:\S.*\n|[ \t].*\n)*?Filename: (\S+_{}\.deb)$"
_TIMEOUT_S = 10.0  # apt waits for 30 s
MOST_BEHIND = dt.timedelta(days=14)
_OTHER_MIRROR = "BUILD_IMAGES_MIRROR or BUILD_IMAGES_SECURITY_MIRROR sets another mirror"
_WITHOUT = "BUILD_IMAGES_SECURITY_MIRROR=none leaves it out"
_ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@dataclass(kw_only=True)
class Suites:
    """The names under which suites are requested, each determined once.

    `architectures` are Debian's names for the packages' architectures; without any, every suite is
    requested by its own name. `say` receives a line for each replaced name. A state that is more
    than `most_behind` older than the incomplete one, or too old for apt, is not used; `refused`
    lists such states with the remedy.
    """

    architectures: frozenset[str] = frozenset()
    say: Callable[[str], object] = lambda _: None
    most_behind: dt.timedelta = MOST_BEHIND
    refused: list[str] = field(default_factory=list)
    _names: dict[str, tuple[str, int]] = field(default_factory=dict)  # and days behind, by folder
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def address(self, url: str) -> str:
        """Return the URL to request for `url`; it differs only for an incomplete suite."""
        match = _OF_A_SUITE.fullmatch(url)
        if not (match and self.architectures):
            return url
        archive, suite, path = match.groups()
        folder = archive + suite
        with self._locks.setdefault(folder, threading.Lock()):
            if folder not in self._names:
                self._names[folder] = self._complete_name(archive, suite)
        return f"{archive}{self._names[folder][0]}{path}"

    def behind_days(self, url: str) -> int:
        """Return by how many days the served state is older than the one at the URL."""
        match = _OF_A_SUITE.fullmatch(url)
        return self._names.get(match[1] + match[2], ("", 0))[1] if match else 0

    def _complete_name(self, archive: str, suite: str) -> tuple[str, int]:
        """Return the name of a suite's complete state, and by how many days it is older.

        Without a complete state or a response, it is the suite's own name: apt then reports the
        error.
        """
        with contextlib.suppress(requests.RequestException, ValueError, lzma.LZMAError):
            release = _release(archive + suite)
            missing = self._missing(archive + suite, release)
            others = {_field(release, "Suite"), _field(release, "Codename")} - {suite}
            for name in others:
                other = _release(archive + name)
                if other == release or _identity(other) != _identity(release):
                    continue
                missing = missing or self._missing_package(archive, suite, name, release)
                if not missing or self._missing(archive + name, other):
                    continue
                torn = f"the mirror is syncing {suite}: {missing} is still missing"
                state = f"its {name}, of {_field(other, 'Date')}"
                behind = (_date(release) - _date(other)).days
                if reason := self._refusal(other, behind):
                    self.say(f"{torn}; {state}, is not used: {reason}")
                    self.refused.append(f"{torn}; {state}, is not used: {reason}")
                    break
                self.say(f"{torn}; using {state}")
                return name, max(behind, 0)
        return suite, 0

    def _refusal(self, release: str, behind: int) -> str:
        """Return why a complete state is not used, and the remedy; empty if it is used."""
        until = _field(release, "Valid-Until")  # of security updates
        if until and parsedate_to_datetime(until) < dt.datetime.now(tz=dt.timezone.utc):
            return f"it has expired; {_OTHER_MIRROR}, or {_WITHOUT}"
        if behind <= self.most_behind.days:
            return ""
        return f"it is {behind} days older; --max-index-age {behind} accepts it, or {_OTHER_MIRROR}"

    def _missing(self, folder: str, release: str) -> str:
        """Return the first index of a Release file that is missing on the mirror, else empty."""
        for _, index in self._indices(release):
            if not _is_available(folder, *index.groups()):
                return index[3]
        return ""

    def _missing_package(self, archive: str, suite: str, other: str, release: str) -> str:
        """Return a package of a suite's index that is missing on the mirror, else empty.

        It looks for only two packages whose version differs in the suite's other state, because
        the packages of an architecture arrive together.
        """
        for arch, index in self._indices(release):
            new, old = (_packages(f"{archive}{name}/{index[3]}", arch) for name in (suite, other))
            changed = [path for name, path in new.items() if old.get(name, path) != path]
            for package in {*changed[:1], *changed[-1:]}:
                with _response("HEAD", archive.removesuffix("dists/") + package) as response:
                    if response.status_code in _ABSENT:
                        return package
        return ""

    def _indices(self, release: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield architecture, and match with SHA-256, size and path, for each listed index."""
        # Debian's security archive names its first component updates/main.
        component = (_field(release, "Components") or "main").split()[0].rpartition("/")[2]
        for arch in sorted(self.architectures):
            pattern = _INDEX.format(re.escape(component), arch)
            if index := re.search(pattern, release, re.MULTILINE):
                yield arch, index


def _is_available(folder: str, sha256: str, size: str, path: str) -> bool:
    """Return whether apt would find an index; true if the server's response is unclear."""
    for place in (f"{path.rpartition('/')[0]}/by-hash/SHA256/{sha256}", path):
        with _response("HEAD", f"{folder}/{place}") as response:
            is_other = response.ok and response.headers.get("Content-Length", size) != size
            if response.status_code not in _ABSENT and not is_other:
                return True
    return False


def _packages(url: str, arch: str) -> dict[str, str]:
    """Return the paths of an index's first packages for an architecture, by name.

    Raises `lzma.LZMAError` if the file is not an index.
    """
    with _response("GET", url) as response:
        start = next(response.iter_content(_COMPARED), b"") if response.ok else b""
    text = lzma.LZMADecompressor().decompress(start, 32 * _COMPARED).decode("latin-1")
    return dict(re.findall(_PACKAGE.format(arch), text, re.MULTILINE))


def _release(folder: str) -> str:
    """Return the Release file in a suite's folder; raises `ValueError` if it is missing."""
    with _response("GET", f"{folder}/InRelease") as response:
        page = page_of(response) if response.ok else None
    if page is None:
        raise ValueError(f"{folder} has no Release file")
    return page.decode("latin-1")  # which preserves every byte


def _field(release: str, name: str) -> str:
    match = re.search(rf"^{name}: *(.*)$", release, re.MULTILINE)
    return match[1] if match else ""


def _identity(release: str) -> list[str]:
    return [_field(release, name) for name in ("Origin", "Label", "Suite", "Codename")]


def _date(release: str) -> dt.datetime:
    return parsedate_to_datetime(_field(release, "Date"))


def _response(method: str, url: str) -> requests.Response:
    return request(method, url, {}, None, logins={}, follow=True, timeout_s=_TIMEOUT_S)


def state_beside(archive: str, suite: str) -> IndexState | None:
    """Return the current state of a suite on a mirror; None if it has no such suite.

    This is for HTTPS mirrors, whose requests do not pass through the proxy.
    """
    folder = f"{archive}/dists/{suite}"
    url = f"{folder}/InRelease"
    try:
        return state_of(url, url, _release(folder).encode("latin-1"))
    except (requests.RequestException, ValueError):
        return None
