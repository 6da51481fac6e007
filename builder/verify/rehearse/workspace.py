"""The files of source trees at the places where the steps of a spec have them.

Only what fetches, unpacks, copies and edits sources is followed. Nothing of a recipe is executed
but the expressions of sed, in its sandbox: https://www.gnu.org/software/sed/manual/ (--sandbox).
Patches are applied to the texts that they name, in a temporary folder.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.system.process import Processes
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trees import Tree
from builder.verify.rehearse.trials import CLONES, PATCHES, Trial, failed, not_tried, passed

_SED_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mount:
    """Where a folder of a source tree is in the image; `origin` names the tree for people."""

    place: str
    tree: Tree
    folder: str
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A repository that a step clones, and the commit, tag or branch that it takes."""

    url: str
    ref: str
    line: int


FindTree = Callable[[str, str], Tree | str]  # of a repository's URL and a ref
FindArchive = Callable[[str], Tree | None]  # of an archive's file name
FindText = Callable[[str], str | None]  # of what the spec copies or downloads to a path


def _no_text(_: str) -> None:
    return None


@dataclass(kw_only=True, slots=True)
class Workspace:
    """Follows steps in their order; `trials` are what they were tried for."""

    clones: FindTree
    archives: FindArchive
    processes: Processes
    texts: FindText = _no_text
    trials: list[Trial] = field(default_factory=list)
    cloned: list[Clone] = field(default_factory=list)
    _mounts: list[_Mount] = field(default_factory=list)
    _edited: dict[str, str] = field(default_factory=dict)
    _removed: set[str] = field(default_factory=set)
    _places: dict[str, Clone] = field(default_factory=dict)

    def follow(self, step: Step) -> None:
        """Take up what a step does to source files."""
        if command := patch_command(step):
            self._patch(step, command)
        elif step.program == "git":
            self._git(step)
        elif step.program == "tar":
            self._unpack(step)
        elif step.program == "cp":
            self._copy(step)
        elif step.program == "rm":
            self._removed |= {step.path(word) for word in step.argv[1:] if word[0] != "-"}
        elif step.program == "sed" and any(word.startswith("-i") for word in step.argv):
            self._edit(step)

    def read(self, path: str) -> str | None:
        """A text at a place in the image; None where no source tree at hand has one there."""
        if path in self._removed:
            return None
        if path in self._edited:
            return self._edited[path]
        found = self._at(path)
        return found[0].tree.read(found[1]) if found else None

    def is_at_hand(self, folder: str) -> bool:
        """Return whether a folder's files are those of a source tree that is at hand."""
        return self._at(folder) is not None

    def files_below(self, folder: str) -> Iterator[str]:
        """The paths in the image of the files of a folder, relative to it."""
        if (found := self._at(folder)) is None:
            return
        mount, inside = found
        prefix = f"{inside}/" if inside else ""
        for name in sorted(mount.tree.names()):
            path = name.removeprefix(prefix)
            if name.startswith(prefix) and posixpath.join(folder, path) not in self._removed:
                yield path

    def copied(self) -> tuple[str, ...]:
        """The places outside of build folders that have files of a source tree."""
        return tuple(mount.place for mount in self._mounts if not _is_temporary(mount.place))

    def _at(self, path: str) -> tuple[_Mount, str] | None:
        """The newest source tree that has a place, and the path in it."""
        for mount in reversed(self._mounts):
            if path == mount.place or path.startswith(f"{mount.place}/"):
                inside = path.removeprefix(mount.place).strip("/")
                return mount, posixpath.normpath(posixpath.join(mount.folder, inside)).strip("./")
        return None

    def _git(self, step: Step) -> None:
        if "clone" in step.argv:
            url = next((word for word in step.argv if "://" in word), "")
            place = step.path(step.argv[-1])
            ref = _after(step.argv, "--branch") or "HEAD"
            clone = Clone(url=url, ref=ref, line=step.line)
            self._places[place] = clone
            self._mount_clone(place, clone)
        elif "checkout" in step.argv and (clone_here := self._places.get(step.folder)):
            taken = Clone(url=clone_here.url, ref=step.argv[-1], line=clone_here.line)
            self._places[step.folder] = taken
            self.cloned.remove(clone_here)
            self.trials.pop()
            self._mounts = [mount for mount in self._mounts if mount.place != step.folder]
            self._mount_clone(step.folder, taken)

    def _mount_clone(self, place: str, clone: Clone) -> None:
        self.cloned.append(clone)
        tree = self.clones(clone.url, clone.ref)
        subject = f"git clone {clone.url} {clone.ref}"
        if isinstance(tree, str):
            self.trials.append(not_tried(CLONES, subject, tree, clone.line))
        else:
            self.trials.append(passed(CLONES, subject, "the commit is there", clone.line))
            self._mounts.append(_Mount(place=place, tree=tree, folder="", origin=clone.url))

    def _unpack(self, step: Step) -> None:
        name = posixpath.basename(_after(step.argv, "-f"))
        tree = self.archives(name) if name else None
        if tree is not None:
            folder = step.path(_after(step.argv, "-C") or step.folder)
            self._mounts.append(_Mount(place=folder, tree=tree, folder="", origin=name))

    def _copy(self, step: Step) -> None:
        words = [word for word in step.argv[1:] if not word.startswith("-")]
        if len(words) != 2:  # noqa: PLR2004 - from and to
            return
        source, target = step.path(words[0]), step.path(words[1])
        if found := self._at(source):
            mount, inside = found
            if not words[0].endswith((".", "/.")):
                target = posixpath.join(target, posixpath.basename(source))
            copied = _Mount(place=target, tree=mount.tree, folder=inside, origin=mount.origin)
            self._mounts.append(copied)
        for path, text in [*self._edited.items()]:
            if path.startswith(f"{source}/"):
                self._edited[target + path.removeprefix(source)] = text

    def _edit(self, step: Step) -> None:
        """Try a sed -i on the files that it names."""
        words = [word for word in step.argv[1:] if word != "-i"]
        expressions = [words[n + 1] for n, word in enumerate(words[:-1]) if word == "-e"]
        rest = [w for n, w in enumerate(words) if w != "-e" and (not n or words[n - 1] != "-e")]
        files = [word for word in rest if not word.startswith("-")]
        if not expressions and files:
            expressions, files = files[:1], files[1:]
        options = [word for word in rest if word.startswith("-")]
        for name in files:
            self._edit_file(step, step.path(name), [*options, *_with_e(expressions)])

    def _edit_file(self, step: Step, path: str, options: list[str]) -> None:
        if not self.is_at_hand(posixpath.dirname(path)):
            return  # a file of the distribution, or of a source tree that is not at hand
        subject = f"sed {' '.join(options)} {path}"
        before = self.read(path)
        if before is None:
            self.trials.append(failed(PATCHES, subject, "the source has no such file", step.line))
            return
        after = self._sed(options, before)
        if after is None:
            self.trials.append(not_tried(PATCHES, subject, "sed refuses it here", step.line))
        elif after == before:
            text = "it changes nothing in the source"
            self.trials.append(failed(PATCHES, subject, text, step.line))
        else:
            self._edited[path] = after
            self.trials.append(passed(PATCHES, subject, "it changes the source", step.line))

    def _patch(self, step: Step, command: PatchCommand) -> None:
        """Try a patch on the files that it names."""
        subject = f"{command.file} in {command.folder}"
        result = self._patched(command)
        if isinstance(result, Trial):
            self.trials.append(replace(result, subject=subject, line=step.line))
            return
        for name, text in result.items():
            path = posixpath.join(command.folder, name)
            if text is None:
                self._removed.add(path)
            else:
                self._edited[path] = text
        self.trials.append(passed(PATCHES, subject, "it applies to the source", step.line))

    def _patched(self, command: PatchCommand) -> dict[str, str | None] | Trial:
        patch = self.read(command.file) or self.texts(command.file)
        if not self.is_at_hand(command.folder):
            return not_tried(PATCHES, "", "its sources are not at hand")
        if patch is None or not is_applicable():
            lacks = "the patch is not at hand" if patch is None else "this machine has no patch"
            return not_tried(PATCHES, "", lacks)
        named = command.sources(patch)
        if not named or any(".." in name.split("/") or not name for name in named):
            return failed(PATCHES, "", "it names no files of the source: not a unified patch")
        paths = {name: posixpath.join(command.folder, name) for name in named}
        sources = {name: text for name in named if (text := self.read(paths[name])) is not None}
        if lost := [name for name, is_there in named.items() if is_there and name not in sources]:
            return failed(PATCHES, "", f"the source has no {', '.join(lost)}")
        result = patched(self.processes, command, patch, sources)
        return failed(PATCHES, "", result) if isinstance(result, str) else result

    def _sed(self, options: list[str], text: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="build-images-") as folder:
            file = Path(folder, "text")
            file.write_text(text, encoding="utf-8")
            argv = ["sed", "--sandbox", *options, str(file)]
            done = self.processes.capture(argv, check=False, timeout_s=_SED_TIMEOUT_S)
        return None if done.returncode else done.stdout


def _with_e(expressions: list[str]) -> Iterator[str]:
    for expression in expressions:
        yield from ("-e", expression)


def _after(words: tuple[str, ...], option: str) -> str:
    """The value of an option, as the next word or behind `=`; empty if it is not there."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _is_temporary(place: str) -> bool:
    return place.startswith(("/var/tmp/", "/tmp/"))  # noqa: S108 - paths in the image


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
