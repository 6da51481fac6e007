"""The variables of a SIF: Apptainer's own script for them, and ours for those that it spoils.

Apptainer 1.4 writes an image's variables into `10-docker2singularity.sh`, with a backslash too many
before quotes and backticks: one such value, and no program in the SIF has any of the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SCRIPT = ".singularity.d/env/90-environment.sh"  # what the section %environment becomes
_SPOILED = re.compile(r"[\"`\\\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def spoiled(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values Apptainer's script does not hand on as they are.

    It leaves out those whose names are none of a shell.
    """
    return {
        name: value
        for name, value in environment.items()
        if _SPOILED.search(value) and _NAME.fullmatch(name)
    }


def commands(variables: Mapping[str, str]) -> list[str]:
    """Shell commands that set variables as Apptainer's do: a value of the caller's wins."""
    return [
        line
        for name, value in variables.items()
        for line in (
            f'[ -n "${{{name}:-}}" ] || {name}={_quoted(value)}',
            f"export {name}",
        )
    ]


def section(variables: Mapping[str, str]) -> str:
    """The definition's section that sets them."""
    return "\n".join(["%environment", *(f"    {line}" for line in commands(variables))])


def script(environment: Mapping[str, str]) -> list[str]:
    """What Apptainer's script for an image's variables says, line by line, but for comments.

    `environment` has none that are spoiled.
    """
    return [
        f'export PATH="{value}"' if name == "PATH" else f'export {name}="${{{name}:-"{value}"}}"'
        for name, value in environment.items()
        if _NAME.fullmatch(name)
    ]


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
