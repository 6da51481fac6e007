"""What the system refuses, in words that say which file, why, and what next."""

from __future__ import annotations

import errno

from builder.errors import BadInput, MissingPrerequisite

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
    code = MissingPrerequisite.exit_code if error.errno in _FULL else BadInput.exit_code
    return f"{what}" + (f"\n  hint: {hint}" if hint else ""), code
