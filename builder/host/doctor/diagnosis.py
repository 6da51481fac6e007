"""A diagnosis of this machine: the examined items and the abilities, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.model.records import write
from builder.system.terminal import BOLD, DIM, GREEN, RED, Paint

SCHEMA = "build-images/doctor/v1"
USER, GPU, DISK = "user and kernel", "GPU", "disk"  # groups of items


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemRoots:
    """System folders that are read, such as /proc; tests use their own folders.

    `caller` maps the caller's name to the user id, since `etc/passwd` need not list the caller.
    """

    top: Path = Path("/")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    etc: Path = Path("/etc")
    keyrings: Path = Path("/usr/share/keyrings")
    caller: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """A program, a setting or a folder that was examined.

    `text` describes it or its problem; `remedy` solves the problem, and is empty if there is none.
    Abilities refer to it by `key`. A machine can do without `optional` items.
    """

    key: str
    group: str
    title: str
    text: str
    remedy: str = ""
    optional: bool = False
    data: Mapping[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Ability:
    """An ability of this machine; it has the ability if `missing` is empty."""

    title: str
    missing: tuple[Item, ...]

    @property
    def able(self) -> bool:
        return not self.missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All items by key, and the abilities that follow from them."""

    arch: str
    user: str
    items: Mapping[str, Item]
    abilities: tuple[Ability, ...]


def as_json(diagnosis: Diagnosis) -> str:
    """Return all items and abilities as JSON."""
    document = {
        "schema": SCHEMA,
        "arch": diagnosis.arch,
        "user": diagnosis.user,
        "items": [{**write(item), "ok": item.ok} for item in diagnosis.items.values()],
        "abilities": [
            {
                "title": ability.title,
                "able": ability.able,
                "missing": [{"key": item.key, "remedy": item.remedy} for item in ability.missing],
            }
            for ability in diagnosis.abilities
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(diagnosis: Diagnosis, *, colour: bool) -> str:
    """Return a table of the items, then the abilities; without a final newline."""
    paint = Paint(colour)
    items = diagnosis.items.values()
    width = max(len(item.title) for item in items)
    lines: list[str] = []
    for group in dict.fromkeys(item.group for item in items):
        rows = [_row(item, width, paint) for item in items if item.group == group]
        lines += [paint(group, BOLD), *rows, ""]
    lines += [paint("what this machine can do", BOLD)]
    for ability in diagnosis.abilities:
        if ability.able:
            lines.append(f"  {paint('✓', GREEN)} yes  {ability.title}")
        else:
            names = ", ".join(item.title for item in ability.missing)
            lines.append(f"  {paint('✗', RED)} {paint('no ', RED)}  {ability.title}")
            lines.append(f"         {paint(f'lacks {names}', DIM)}")
    return "\n".join([*lines, *_remedies(items, paint)])


def _row(item: Item, width: int, paint: Paint) -> str:
    mark, word, text = paint("✓", GREEN), "yes", item.text
    if not item.ok:
        mark, word = (
            (paint("-", DIM), "no ") if item.optional else (paint("✗", RED), paint("no ", RED))
        )
    elif path := item.data.get("path"):
        text = f"{text:15} {paint(str(path), DIM)}"
    return f"  {mark} {item.title:{width}}  {word}  {text}".rstrip()


def _remedies(items: Iterable[Item], paint: Paint) -> list[str]:
    """Return how to get the missing items, required ones first."""
    missing = sorted((item for item in items if not item.ok), key=lambda item: item.optional)
    width = max((len(item.title) for item in missing), default=0)
    lines = [f"  {item.title:{width}}  {item.remedy}" for item in missing]
    return ["", paint("how to get what is missing", BOLD), *lines] if missing else []
