"""The values of a diagnosis: what was looked for, and what the machine can therefore do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

USER, GPU, DISK = "user and kernel", "GPU", "disk"  # groups of items


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """Where the system shows itself; tests give folders of their own.

    `caller` is the caller's user id by name, which `etc/passwd` need not have.
    """

    top: Path = Path("/")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")
    keyrings: Path = Path("/usr/share/keyrings")
    caller: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing that was looked for.

    `text` is what was found, or what is wrong; `remedy` how to get it. `key` names it among the
    needs of an ability. A machine may do without what is `optional`.
    """

    key: str
    group: str
    title: str
    ok: bool
    text: str
    remedy: str = ""
    optional: bool = False
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ability:
    """Something that this machine can do when nothing is `missing` for it."""

    title: str
    missing: tuple[Item, ...]

    @property
    def able(self) -> bool:
        return not self.missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All that was found, by key, and the abilities that follow from it."""

    arch: str
    user: str
    items: Mapping[str, Item]
    abilities: tuple[Ability, ...]


def lines_of(file: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def indexed(items: list[Item]) -> dict[str, Item]:
    return {item.key: item for item in items}
