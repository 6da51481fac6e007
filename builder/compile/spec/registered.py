"""Blocks of a site's own: classes that installed Python packages register by entry point.

Nothing in a project's folder is executed: a recipe from elsewhere is safe to look at.
"""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from builder.model.errors import BadInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "build_images.blocks"


def registered_block(name: str) -> type | None:
    """The class that is registered under a name, or None. Raises `BadInput` for what is no block.

    Installed packages are looked through only for names that hpccm does not have: it takes
    milliseconds.
    """
    found = _entry_points().get(name)
    if found is None:
        return None
    try:
        loaded = found.load()
    except Exception as error:  # whatever the site's module raises
        raise _unusable(name, found.value, f"it cannot be imported: {error}") from error
    if not inspect.isclass(loaded):
        raise _unusable(name, found.value, "it is no class")
    return loaded


def registered_names() -> list[str]:
    """The names under which blocks are registered."""
    return sorted(_entry_points())


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    """The first of each name on the path. `python -m` puts the working folder there: not that."""
    from importlib.metadata import distributions  # noqa: PLC0415 - see registered_block

    here = Path.cwd()
    path = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    found: dict[str, EntryPoint] = {}
    for one in distributions(path=path):
        for point in one.entry_points.select(group=GROUP):
            found.setdefault(point.name, point)
    return found


def _unusable(name: str, value: str, why: str) -> BadInput:
    return BadInput(
        f"the block {name} cannot be used: {value}: {why}",
        hint=f"it is registered by an installed package, under the entry points {GROUP}",
    )
