"""The harness's own check inside a container: its variables and its working directory."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Mapping, Sequence

from builder.model import FAILED, PASSED, Outcome
from builder.verify.runners import Runner
from builder.verify.wording import end_of, last_line, one_line

ENVIRONMENT_CHECK = "environment"
_TIMEOUT_S = 120
_TITLE = "pwd && exec env -0"
# The working directory as the image's configuration names it, also where a link leads there.
_SCRIPT = (
    'if [ "$(pwd -P)" = "$(cd -- "$1" && pwd -P)" ]; then printf "%s\\n" "$1"; else pwd; fi && '
    "exec env -0"
)
# A script of a SIF could behave as long as `env` is started: so another program looks once more.
_SECOND = ("cat", "/proc/self/environ")
# Shells hand on no other names to what they start: https://pubs.opengroup.org/onlinepubs/9699919799
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Shells set these, and every runner is told HOME, whatever an image says.
_ALWAYS = ("HOME", "PWD", "OLDPWD", "SHLVL", "_")
# The Container Device Interface sets it to `void`, which says that it is not in charge.
_WITH_GPUS = ("NVIDIA_VISIBLE_DEVICES",)
# Apptainer puts a folder of its own after the image's.
_APPENDED = {"LD_LIBRARY_PATH": ":/.singularity.d/libs"}


def environment_outcome(
    runner: Runner,
    wanted: Mapping[str, str],
    *,
    directory: str,
    own: Sequence[str],
    gpu: bool = False,
) -> Outcome:
    """Return whether a container has the image's variables and working directory, and nothing else.

    `own` are patterns of the variables that the runner sets by itself. Since each format is
    compared with the image's configuration, all formats are equal if none fails.
    """
    done = runner.run(["sh", "-c", _SCRIPT, "sh", directory], timeout_s=_TIMEOUT_S)
    found_directory, found = _parsed(done.stdout)
    excused = (*_ALWAYS, *own, *(_WITH_GPUS if gpu else ()))
    wrong = [
        *_differences(wanted, found, (*_ALWAYS, *(_WITH_GPUS if gpu else ()))),
        *(f"{name} is set, and not by the image" for name in _more(wanted, found, excused)),
        *(
            [f"the working directory is {found_directory}, not {directory}"]
            if found_directory != directory
            else []
        ),
    ]
    if not done.returncode and not wrong:
        wrong = _changed(found, _pairs(runner.run(_SECOND, timeout_s=_TIMEOUT_S).stdout))
    if done.returncode or wrong:
        if done.returncode:
            wrong = [last_line(done.stderr) or f"{shlex.quote(_TITLE)} did not run"]
        output = end_of(done.stdout.replace("\0", "\n"), done.stderr)
        reason = one_line("; ".join(wrong))
        return Outcome(check=ENVIRONMENT_CHECK, outcome=FAILED, reason=reason, output=output)
    seen = wanted.keys() & found.keys() - set(_ALWAYS)
    names = ", ".join(sorted(seen)) or "none"
    return Outcome(
        check=ENVIRONMENT_CHECK,
        outcome=PASSED,
        reason=f"in {directory}, with the image's variables and no others: {names}",
        duration_s=round(done.duration_s, 3),
    )


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    directory, _, rest = text.partition("\n")
    return directory, _pairs(rest)


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def _changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """What another program is given, where that is not what `env` was."""
    names = {name for name in {*first, *second} if _SHELL_NAME.fullmatch(name)} - {*_ALWAYS}
    return [
        f"{name} depends on the program that is started: {second.get(name)!r} for {_SECOND[0]}"
        for name in sorted(names)
        if first.get(name) != second.get(name)
    ]


def _differences(
    wanted: Mapping[str, str], found: Mapping[str, str], excused: Sequence[str]
) -> list[str]:
    return [
        f"{key} is {found[key]!r}, not {value!r}" if key in found else f"{key} is not set"
        for key, value in wanted.items()
        if key not in excused
        and (key in found or _SHELL_NAME.fullmatch(key))
        and found.get(key) not in {value, value + _APPENDED.get(key, "")}
    ]


def _more(wanted: Mapping[str, str], found: Mapping[str, str], excused: Sequence[str]) -> list[str]:
    more = [name for name in found if name not in wanted]
    return sorted(
        name for name in more if not any(fnmatch.fnmatch(name, pattern) for pattern in excused)
    )
