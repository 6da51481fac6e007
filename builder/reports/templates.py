"""The environment of the templates, and filters for sizes, durations and times."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path

import jinja2

from builder.facts.software import RUNTIMES
from builder.model.architectures import ARCHITECTURES

_LONGEST = 40  # the name of a recipe is a part of identifiers, tags and paths
_SIZES = ("B", "kB", "MB", "GB", "TB")


def page_environment(*folders: Path) -> jinja2.Environment:
    """Return an environment for HTML, with the templates of the folders and of the report."""
    environment = text_environment(*folders, Path(__file__).parent / "report", autoescape=True)
    environment.filters.update(
        size=human_size, time=human_time, moment=human_moment, shell=shlex.quote
    )
    environment.globals.update(architectures=ARCHITECTURES, runtimes=RUNTIMES)
    return environment


def text_environment(*folders: Path, autoescape: bool = False, **syntax: str) -> jinja2.Environment:
    """Return an environment for text; without `autoescape`, templates quote values with filters."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=autoescape,  # noqa: S701 - only HTML wants it
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,  # type: ignore[arg-type]  # delimiters
    )


def new_project(title: str, taken: Collection[str], *, arch: str, install: str) -> dict[str, str]:
    """Return the files of a new project by their paths.

    Its recipe is named after `title`, but has no name that is `taken`. `install` are the commands
    that install this program.
    """
    plain = "".join(filter(str.isascii, unicodedata.normalize("NFKD", title.lower())))
    recipe = re.sub(r"[^a-z0-9._-]+", "-", plain).strip("-._")[:_LONGEST].rstrip("-._") or "app"
    name = f"own-{recipe}" if recipe in taken else recipe
    values = {"name": name, "arch": arch, "install": install}
    folder = Path(__file__).parent / "new_project"
    texts = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place, text = path.relative_to(folder).as_posix(), path.read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"[[ {key} ]]", value)
        texts[place.replace("dot.", ".").replace("NAME", name)] = text
    return texts


def first_line(text: str) -> str:
    """Return the first line of an error, without the details."""
    return text.strip().partition("\n")[0]


def human_size(size: float) -> str:
    """Return bytes in decimal units, as `ls --si` and registries show them: `63.1 MB`."""
    value = float(size)
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:  # noqa: PLR2004 - would round to 1000
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def human_time(seconds: float) -> str:
    """Return seconds as `0.4 s`, `41 s`, `5 min 01 s` or `1 h 02 min`."""
    if seconds < 0.05:  # noqa: PLR2004 - nothing to see
        return "<0.1 s" if seconds > 0 else "0 s"
    if seconds < 9.95:  # noqa: PLR2004 - below that, tenths matter
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:  # noqa: PLR2004 - an hour
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def human_moment(text: str) -> str:
    """Return an ISO 8601 moment as `2026-01-31 14:05 UTC`; other text as it is."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
