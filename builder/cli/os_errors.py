"""Messages for errors of the operating system: the file, the reason, and what to do next."""

from __future__ import annotations

import errno
from pathlib import Path

from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.home import Home

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HINTS = {
    **dict.fromkeys(_FULL, "free disk space, or name another folder: --output, BUILD_IMAGES_HOME"),
    **dict.fromkeys(
        [errno.EACCES, errno.EPERM, errno.EROFS],
        "name another folder, or get permission for this one",
    ),
}


def describe(error: OSError) -> tuple[str, int]:
    """Return the message for an error, with its hint on a second line, and the exit code."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    problem = f"{names}: {error.strerror}" if names and error.strerror else error.strerror or error
    hint = _HINTS.get(error.errno or 0)
    code = (MissingPrerequisite if _lacks(error) else BadInput).exit_code
    return f"{problem}" + (f"\n  hint: {hint}" if hint else ""), code


def _lacks(error: OSError) -> bool:
    """True if the machine lacks disk space, or a home directory that can be written to."""
    if error.errno in _FULL:
        return True
    named = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    try:
        home = Home.of_environment().path
    except MissingPrerequisite:  # this user has none
        return False
    return any(path == home or home in path.parents or path in home.parents for path in named)
