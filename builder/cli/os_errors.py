"""What the system refuses, in words that say which file, why, and what next."""

from __future__ import annotations

import errno
from pathlib import Path

from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.home import Home

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HINTS = {
    **dict.fromkeys(_FULL, "make room, or name another place: --output, BUILD_IMAGES_HOME"),
    **dict.fromkeys(
        [errno.EACCES, errno.EPERM, errno.EROFS],
        "name another place, or have it opened for this user",
    ),
}


def told(error: OSError) -> tuple[str, int]:
    """What to say of an error, its hint in a line of its own, and the exit code."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    what = f"{names}: {error.strerror}" if names and error.strerror else error.strerror or error
    hint = _HINTS.get(error.errno or 0)
    code = (MissingPrerequisite if _lacks(error) else BadInput).exit_code
    return f"{what}" + (f"\n  hint: {hint}" if hint else ""), code


def _lacks(error: OSError) -> bool:
    """Whether the machine lacks something: room, or a home that can be written to."""
    if error.errno in _FULL:
        return True
    named = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    try:
        home = Home.of_environment().path
    except MissingPrerequisite:  # this user has none
        return False
    return any(one == home or home in one.parents or one in home.parents for one in named)
