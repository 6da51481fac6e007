"""A diagnosis as text for people and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from builder.host.doctor.diagnosis import Ability, Diagnosis, Item
from builder.system.terminal import BOLD, DIM, GREEN, RED, Paint

SCHEMA = "build-images/doctor/v1"


def as_json(diagnosis: Diagnosis) -> str:
    """Everything that was found and what follows, for programs."""
    document = {
        "schema": SCHEMA,
        "arch": diagnosis.arch,
        "user": diagnosis.user,
        "items": [asdict(item) for item in diagnosis.items.values()],
        "abilities": [
            {
                "title": one.title,
                "able": one.able,
                "missing": [{"key": item.key, "remedy": item.remedy} for item in one.missing],
            }
            for one in diagnosis.abilities
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(diagnosis: Diagnosis, *, colour: bool) -> str:
    """A table of what was found, then what this machine can do; without a newline at its end."""
    paint = Paint(colour)
    width = max(len(item.title) for item in diagnosis.items.values())
    lines: list[str] = []
    for group in dict.fromkeys(item.group for item in diagnosis.items.values()):
        lines += [paint(group, BOLD)]
        found = [item for item in diagnosis.items.values() if item.group == group]
        lines += [_row(item, width, paint) for item in found] + [""]
    lines += [paint("what this machine can do", BOLD)]
    for ability in diagnosis.abilities:
        lines += _told(ability, paint)
    return "\n".join([*lines, *_remedies(diagnosis, paint)])


def _row(item: Item, width: int, paint: Paint) -> str:
    mark = paint("✓", GREEN) if item.ok else paint("-", DIM)
    word = "yes" if item.ok else "no"
    if not item.ok and not item.optional:
        mark, word = paint("✗", RED), paint("no ", RED)
    text = item.text
    if item.ok and (path := item.data.get("path")):
        text = f"{text:15} {paint(str(path), DIM)}"
    return f"  {mark} {item.title:{width}}  {word:3}  {text}".rstrip()


def _told(ability: Ability, paint: Paint) -> list[str]:
    if ability.able:
        return [f"  {paint('✓', GREEN)} yes  {ability.title}"]
    lines = [f"  {paint('✗', RED)} {paint('no ', RED)}  {ability.title}"]
    names = ", ".join(item.title for item in ability.missing)
    return [*lines, f"         {paint(f'lacks {names}', DIM)}"]


def _remedies(diagnosis: Diagnosis, paint: Paint) -> list[str]:
    """Return how to get what is not there: what is needed first."""
    missing = [item for item in diagnosis.items.values() if not item.ok]
    if not missing:
        return []
    width = max(len(item.title) for item in missing)
    ordered = sorted(missing, key=lambda item: item.optional)
    lines = [f"  {item.title:{width}}  {item.remedy}" for item in ordered]
    return ["", paint("how to get the rest", BOLD), *lines]
