"""Which state of a distribution's package indices a build used, by their Release files.

A Release file names every index of its suite by checksum, and apt checks them: so its digest and
its date are those of all of them. https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from email.utils import parsedate_to_datetime

from builder.model.manifest import ImageInputs

_RELEASE = re.compile(
    r"https?://[^/?#]+/(?:[^?#]*/)?(?P<archive>[^/?#]+)/dists/(?P<suite>[^?#]+)/(?:In)?Release"
)
_DATE = re.compile(r"^Date: *(.+?) *$", re.MULTILINE)
MOST_BYTES = 10 << 20  # of a Release file; that of Debian's sid has 0.3 MB


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class IndexState:
    """The state of a suite of an archive, `debian` or `debian-security`, whichever mirror's.

    `date` is that of the Release file as ISO 8601, empty if it says none, `sha256` its digest in
    hexadecimal. It was `taken_as` that name of the suite, and is `behind_days` older than the state
    that the mirror tells of under the name that was asked for.
    """

    archive: str
    suite: str
    taken_as: str
    date: str
    sha256: str
    behind_days: int = 0


def is_release(url: str) -> bool:
    """Whether a URL is that of a suite's Release file."""
    return _RELEASE.fullmatch(url) is not None


def state_of(url: str, taken: str, content: bytes, behind_days: int = 0) -> IndexState | None:
    """The state that a Release file tells of; `taken` is the URL that it came from.

    None if the URL is that of something else.
    """
    asked, came = _RELEASE.fullmatch(url), _RELEASE.fullmatch(taken)
    if not asked:
        return None
    return IndexState(
        archive=asked["archive"],
        suite=asked["suite"],
        taken_as=came["suite"] if came else asked["suite"],
        date=_date(content),
        sha256=hashlib.sha256(content).hexdigest(),
        behind_days=behind_days,
    )


def state_from(said: object) -> IndexState:
    """A state as JSON holds it; raises `ValueError` or its like if it is none."""
    if not isinstance(said, dict) or said.keys() != {one.name for one in fields(IndexState)}:
        raise ValueError("no state of a package index")
    behind = said["behind_days"]
    if isinstance(behind, bool) or not isinstance(behind, int):
        raise TypeError("behind_days is no whole number")
    texts = {name: value for name, value in said.items() if isinstance(value, str)}
    if said.keys() - texts.keys() != {"behind_days"}:
        raise TypeError("a part of the state of a package index is no text")
    if texts["date"]:
        dt.datetime.fromisoformat(texts["date"])
    return IndexState(**texts, behind_days=behind)


def states_in(inputs: ImageInputs) -> tuple[IndexState, ...]:
    """The states that a manifest's inputs name; those of earlier versions name none."""
    found = list[IndexState]()
    for one in inputs.indices:
        if isinstance(one, dict):
            with contextlib.suppress(ValueError, TypeError):
                found.append(state_from({key: one[key] for key in one.keys() - {"used_by"}}))
    return distinct(found)


def days_behind(inputs: ImageInputs) -> int:
    """The most by which a state that a manifest names was older than what its mirror told of."""
    return max((one.behind_days for one in states_in(inputs)), default=0)


def distinct(states: Iterable[IndexState]) -> tuple[IndexState, ...]:
    """The states in order, each once."""
    return tuple(sorted(set(states)))


def age_days(state: IndexState, at: str) -> int | None:
    """How many days old a state was at a time (ISO 8601); None if one of these is not known."""
    try:
        return (dt.datetime.fromisoformat(at) - dt.datetime.fromisoformat(state.date)).days
    except (TypeError, ValueError):
        return None


def _date(content: bytes) -> str:
    found = _DATE.search(content.decode(errors="replace"))
    try:
        date = parsedate_to_datetime(found[1]) if found else None
    except ValueError:
        return ""
    if date is None:
        return ""
    utc = date.replace(tzinfo=date.tzinfo or dt.timezone.utc).astimezone(dt.timezone.utc)
    return utc.isoformat(timespec="seconds")
