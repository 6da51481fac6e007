"""Ranges of user and group ids that users give away in containers: subuid(5) and subgid(5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from builder.host.doctor.diagnosis import USER, Item, Roots, lines_of
from builder.model.errors import MissingPrerequisite

FILES = ("subuid", "subgid")
IDS = 65536  # as many as a container may use
# SUB_UID_MIN and SUB_UID_MAX, unless a host sets others:
# https://manpages.debian.org/bookworm/login/login.defs.5
_FIRST, _LAST = 100_000, 600_100_000
_FIRST_USER = 1000  # UID_MIN of the same page
_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class IdRange:
    """A line of subuid(5): ids from `first` on, which belong to a user."""

    owner: str
    first: int
    count: int = IDS

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def overlaps(self, other: IdRange) -> bool:
        """Return whether an id is in both."""
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.count > 1 else str(self.first)


def id_items(user: str, roots: Roots) -> list[Item]:
    """Return whether a user has ranges, and whether users of this host share ids by theirs."""
    return [*(_range_item(name, user, roots) for name in FILES), _overlap_item(user, roots)]


def free_range(user: str, roots: Roots, *, anew: bool = False) -> IdRange:
    """A range of which neither a line of another user nor a user of this host has an id.

    So both files get the same; `anew` it is another one than the user has. Where the search begins
    depends on the user: two who ask at the same time are told two ranges.
    """
    users = _users(roots)
    taken = [one for name in FILES for one in _ranges(name, roots) if anew or one.owner != user]
    taken += [IdRange(owner=owner, first=uid, count=1) for owner, uid in users.items()]
    slots = (_LAST - _FIRST) // IDS
    begin = users.get(user, _FIRST_USER) - _FIRST_USER
    for number in range(slots):
        ids = IdRange(owner=user, first=_FIRST + (begin + number) % slots * IDS)
        if not any(map(ids.overlaps, taken)):
            return ids
    raise MissingPrerequisite("this host has no free range of sub-ids", hint="see /etc/subuid")


def _range_item(name: str, user: str, roots: Roots) -> Item:
    count = sum(one.count for one in _ranges(name, roots) if one.owner == user)
    title = "sub-user ids" if name == "subuid" else "sub-group ids"
    if count:
        return Item(key=name, group=USER, title=title, ok=True, text=f"{count} for {user}")
    text = f"no line for {user} in /etc/{name}"
    remedy = _added(name, free_range(user, roots), roots)
    return Item(key=name, group=USER, title=title, ok=False, text=text, remedy=remedy)


def _added(name: str, ids: IdRange, roots: Roots) -> str:
    """A command that adds a range; usermod(8) knows no user of a directory service."""
    if ids.owner in _users(roots):
        return f"sudo usermod --add-{name}s {ids} {ids.owner}"
    return f"echo {ids.owner}:{ids.first}:{ids.count} | sudo tee --append /etc/{name}"


def _overlap_item(user: str, roots: Roots) -> Item:
    """Users who share ids can read and change each other's files, modes notwithstanding."""
    title = "separate sub-ids"
    shared = [(name, *pair) for name in FILES for pair in _overlapping(name, roots)]
    if not shared:
        text = "no two users of this host share one"
        return Item(key="subids", group=USER, title=title, ok=True, text=text)
    of_user = [entry for entry in shared if user in {entry[1].owner, entry[2].owner}]
    name, one, other = (of_user or shared)[0]
    more = f", and {len(shared) - 1} more" if len(shared) > 1 else ""
    text = f"{one.owner} ({one}) and {other.owner} ({other}) share ids in /etc/{name}{more}"
    return Item(
        key="subids",
        group=USER,
        title=title,
        ok=False,
        text=f"{text}: each can read and change files of the other",
        remedy=_moved(name, other if other.count > 1 else one, roots),
        optional=not of_user,
    )


def _moved(name: str, ids: IdRange, roots: Roots) -> str:
    """A command that gives a user another range; it is refused while the user is logged in."""
    new = free_range(ids.owner, roots, anew=True)
    command = f"sudo usermod --del-{name}s {ids} --add-{name}s {new} {ids.owner}"
    return f"{command}  (logged out; what is stored with the old ids is made anew)"


def _overlapping(name: str, roots: Roots) -> Iterator[tuple[IdRange, IdRange]]:
    """Ranges of two users with ids in common, and ranges with the id of another user in them."""
    ranges = _ranges(name, roots)
    users = _users(roots) if name == "subuid" else {}
    own = [IdRange(owner=owner, first=uid, count=1) for owner, uid in users.items()]
    pairs = [*combinations(ranges, 2), *((user, one) for one in ranges for user in own)]
    for one, other in pairs:
        if one.owner != other.owner and one.overlaps(other):
            yield one, other


def _ranges(name: str, roots: Roots) -> list[IdRange]:
    """The lines of a file; one may begin with a user's id in place of the name."""
    names = {str(uid): owner for owner, uid in _users(roots).items()}
    return list(_read(lines_of(roots.etc / name), names))


def _read(lines: Iterable[str], names: Mapping[str, str]) -> Iterator[IdRange]:
    for line in lines:
        owner, *numbers = line.strip().split(":")
        if len(numbers) == _FIELDS - 1 and all(one.isdecimal() for one in numbers):
            first, count = map(int, numbers)
            if count:
                yield IdRange(owner=names.get(owner, owner), first=first, count=count)


def _users(roots: Roots) -> dict[str, int]:
    """The user ids of passwd(5), by name, and that of the caller: a directory may have that one."""
    lines = [line.split(":") for line in lines_of(roots.etc / "passwd")]
    known = {one[0]: int(one[2]) for one in lines if len(one) >= _FIELDS and one[2].isdecimal()}
    return {**roots.caller, **known}
