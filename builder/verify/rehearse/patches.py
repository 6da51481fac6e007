"""Unified patches, applied to texts of a source tree in a folder of their own."""

from __future__ import annotations

import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.system.process import Processes
from builder.verify.rehearse.steps import Step

_TIMEOUT_S = 60.0
_FILES = re.compile(r"^--- (?P<old>[^\t\n]+).*\n\+\+\+ (?P<new>[^\t\n]+)", re.MULTILINE)
_NOWHERE = "/dev/null"
_LEVELS = re.compile(r"(?<!\S)(?:-p ?|--strip=)(?P<levels>\d+)")
_FOLDER = re.compile(r"(?<!\S)(?:-d ?|--directory=)(?P<folder>\S+)")
_PATCH = re.compile(r"(?<!\S)(?:-i ?|--input=|< ?)(?P<file>\S+)")
_REASONS = ("FAILED", "malformed", "reversed", "Reversed", "ignored")
_ALIKE = ("-R", "--reverse", "-l", "--ignore-whitespace")


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchCommand:
    """A step that applies a patch: the patch, the folder of the sources, and how names are read."""

    file: str
    folder: str
    levels: int
    options: tuple[str, ...]

    def sources(self, patch: str) -> dict[str, bool]:
        """The files that a patch changes, below the folder; whether each is there before."""
        named = {}
        for match in _FILES.finditer(patch):
            old, new = match["old"].strip(), match["new"].strip()
            name = old if new == _NOWHERE else new
            named["/".join(name.split("/")[self.levels :])] = old != _NOWHERE
        return named


def patch_command(step: Step) -> PatchCommand | None:
    """What a step applies; None for any other step, and for patches that no option names."""
    is_git = step.program == "git" and step.argv[1:2] == ("apply",)
    if not is_git and step.program != "patch":
        return None
    words = step.argv[2:] if is_git else step.argv[1:]
    text = " ".join(words)
    named = _PATCH.search(text)
    file = words[-1] if is_git and words and words[-1][0] != "-" else named and named["file"]
    levels = _LEVELS.search(text)
    if not file or not (levels or is_git):
        return None
    inside = None if is_git else _FOLDER.search(text)
    folder = step.path(inside["folder"]) if inside else step.folder
    return PatchCommand(
        file=posixpath.normpath(posixpath.join(folder, file)),
        folder=folder,
        levels=int(levels["levels"]) if levels else 1,
        options=tuple(word for word in words if word in _ALIKE),
    )


def patched(
    processes: Processes, command: PatchCommand, patch: str, sources: Mapping[str, str]
) -> dict[str, str | None] | str:
    """The texts of the sources after a patch, None for one that it removes; or its complaint.

    `--unified` keeps patch from reading an ed script, which could run commands.
    """
    with tempfile.TemporaryDirectory(prefix="build-images-") as place:
        folder, file = Path(place, "sources"), Path(place, "patch")
        folder.mkdir()
        file.write_text(patch, encoding="utf-8")
        for name, text in sources.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        options = ["--unified", "--batch", "--forward", *command.options]
        argv = ["patch", *options, f"-p{command.levels}", "-i", str(file)]
        done = processes.capture(argv, cwd=folder, check=False, timeout_s=_TIMEOUT_S)
        if done.returncode:
            return _complaint(done.stdout + done.stderr)
        names = command.sources(patch)
        paths = {name: folder / name for name in names}
        return {name: path.read_text() if path.exists() else None for name, path in paths.items()}


def is_applicable() -> bool:
    """Return whether this machine has the program patch."""
    return shutil.which("patch") is not None


def _complaint(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    reasons = [line for line in lines if any(word in line for word in _REASONS)]
    return (reasons or lines or ["patch ends without a word"])[0]
