"""States of a distribution's package indices that a build used, by their Release files.

A Release file names every index of its suite by checksum, and apt checks them: so its digest and
its date stand for all of them. https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from builder.model.manifest import ImageInputs
from builder.model.records import read

_RELEASE = re.compile(
    r"https?://[^/?#]+/(?:[^?#]*/)?(?P<archive>[^/?#]+)/dists/(?P<suite>[^?#]+)/(?:In)?Release"
)
_DATE = re.compile(r"^Date: *(.+?) *$", re.MULTILINE)
MOST_BYTES = 10 << 20  # of a Release file; that of Debian's sid has 0.3 MB


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class IndexState:
    """The state of a suite of an archive (`debian`, `debian-security`), on any mirror.

    `date` is that of the Release file as ISO 8601, empty without one, `sha256` its digest in
    hexadecimal. It was `taken_as` that name of the suite, and is `behind_days` older than the state
    that the mirror has under the requested name.
    """

    archive: str
    suite: str
    taken_as: str
    date: str
    sha256: str
    behind_days: int = 0


def is_release(url: str) -> bool:
    """Return whether a URL is of a suite's Release file."""
    return _RELEASE.fullmatch(url) is not None


def state_of(url: str, taken: str, content: bytes, behind_days: int = 0) -> IndexState | None:
    """Return the state that a Release file describes; `taken` is the URL that it came from.

    None if `url` is that of another file.
    """
    requested, received = _RELEASE.fullmatch(url), _RELEASE.fullmatch(taken)
    if not requested:
        return None
    return IndexState(
        archive=requested["archive"],
        suite=requested["suite"],
        taken_as=received["suite"] if received else requested["suite"],
        date=_date(content),
        sha256=hashlib.sha256(content).hexdigest(),
        behind_days=behind_days,
    )


def state_from(value: object) -> IndexState:
    """Return the state of a JSON value; raises `ValueError` if it is none."""
    state = read(IndexState, value)
    if state.date:
        dt.datetime.fromisoformat(state.date)
    return state


def states_in(inputs: ImageInputs) -> tuple[IndexState, ...]:
    """Return the states in a manifest's inputs; earlier versions have none."""
    states = list[IndexState]()
    for entry in inputs.indices:
        with contextlib.suppress(ValueError):
            states.append(state_from(entry))
    return distinct(states)


def days_behind(inputs: ImageInputs) -> int:
    """Return the most days by which a manifest's states were older than their mirrors'."""
    return max((state.behind_days for state in states_in(inputs)), default=0)


def distinct(states: Iterable[IndexState]) -> tuple[IndexState, ...]:
    """Return the states in order, each once."""
    return tuple(sorted(set(states)))


def age_days(state: IndexState, at: str) -> int | None:
    """Return the days between a state and a time (ISO 8601); None if one is not known."""
    try:
        return (dt.datetime.fromisoformat(at) - dt.datetime.fromisoformat(state.date)).days
    except (TypeError, ValueError):
        return None


def _date(content: bytes) -> str:
    match = _DATE.search(content.decode(errors="replace"))
    try:
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - loads sockets

        date = parsedate_to_datetime(match[1]) if match else None
    except ValueError:
        return ""
    if date is None:
        return ""
    utc = date.replace(tzinfo=date.tzinfo or dt.timezone.utc).astimezone(dt.timezone.utc)
    return utc.isoformat(timespec="seconds")
