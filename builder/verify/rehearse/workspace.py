"""The files of source trees at the places where the steps of a spec have them.

Only what fetches, unpacks, copies and edits sources is followed. Nothing of a recipe is executed
but the expressions of sed, in its sandbox: https://www.gnu.org/software/sed/manual/ (--sandbox).
Patches are applied to the texts that they name, in a temporary folder.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.model.errors import StepFailed
from builder.system.process import Processes
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import CLONES, PATCHES, Trial, failed, not_tried, passed

_EDIT_TIMEOUT_S = 60.0
_BUILD_FOLDERS = ("/var/tmp/", "/tmp/")  # noqa: S108 - paths in the image
_GIT_TIMEOUT_S = 300.0

# ---- Source trees: of Git repositories, and of locked archives ----

Tree = Mapping[str, str]  # texts by their paths in a source tree


def archive_tree(path: Path) -> Tree:
    """Return the texts of an archive, by path below its folder's parent."""
    with tarfile.open(path) as tar:
        return {
            member.name.removeprefix("./"): file.read().decode(errors="replace")
            for member in tar
            if member.isfile() and (file := tar.extractfile(member))
        }


class GitTree(Tree):
    """A commit of a Git repository, bare or not; each text is read when it is asked for."""

    def __init__(self, processes: Processes, git: Sequence[str], commit: str) -> None:
        self._processes, self._git, self._commit = processes, git, commit
        self._texts: dict[str, str] = {}

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        names = self._output("ls-tree", "-r", "--name-only", "-z", self._commit)
        return frozenset(names.split("\0")) - {""}

    def __getitem__(self, path: str) -> str:
        if path not in self._names:
            raise KeyError(path)
        if path not in self._texts:
            self._texts[path] = self._output("show", f"{self._commit}:{path}")
        return self._texts[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _output(self, *argv: str) -> str:
        with self._processes.reading_from([*self._git, *argv]) as stream:
            return stream.read().decode(errors="replace")


class Clones:
    """Git repositories that this machine has: below `folders`, as OWNER/NAME.git or OWNER/NAME."""

    def __init__(self, processes: Processes, folders: Sequence[Path]) -> None:
        self._processes, self._folders = processes, folders
        self.tree = functools.cache(self._tree)

    def _tree(self, url: str, ref: str) -> Tree | str:
        match = re.fullmatch(r"https://[^/]+/([^/]+)/([^/]+?)(?:\.git)?/?", url)
        if match is None:
            return f"{url} names no owner and repository"
        owner, name = match.groups()
        for folder, path in itertools.product(self._folders, (f"{name}.git", f"{name}/.git")):
            repository = folder / owner / path
            if repository.exists():
                git = ("git", "-c", "safe.directory=*", "--git-dir", str(repository))
                argv = [*git, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
                try:
                    completed = self._processes.capture(argv, timeout_s=_GIT_TIMEOUT_S)
                except StepFailed:
                    return f"the copy in {repository} has no {ref}"
                return GitTree(self._processes, git, completed.stdout.strip())
        return f"no copy of {owner}/{name} is at hand (--clones names folders that have one)"


# ---- The files in an image ----


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mount:
    """The place in the image of a folder of a source tree."""

    place: str
    tree: Tree
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A repository that a step clones, and the commit, tag or branch that it takes."""

    url: str
    ref: str
    line: int


@dataclass(kw_only=True, slots=True)
class Workspace:
    """Follows steps in their order; `trials` are what they were tried for.

    `clones` finds a repository by URL and ref, or says why not; `archives` an archive by its file
    name; `texts` what the spec copies or downloads to a path.
    """

    clones: Callable[[str, str], Tree | str]
    archives: Callable[[str], Tree | None]
    processes: Processes
    texts: Callable[[str], str | None] = lambda _: None
    trials: list[Trial] = field(default_factory=list)
    cloned: list[Clone] = field(default_factory=list)
    _mounts: list[_Mount] = field(default_factory=list)
    _edited: dict[str, str] = field(default_factory=dict)
    _removed: set[str] = field(default_factory=set)
    _places: dict[str, Clone] = field(default_factory=dict)

    def follow(self, step: Step) -> None:
        """Take up what a step does to source files."""
        if command := patch_command(step):
            subject = f"{command.file} in {command.folder}"
            outcome, text = self._patch(command)
            self.trials.append(outcome(PATCHES, subject, text, step.line))
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
        """Return the text at a place in the image, if a source tree at hand has one there."""
        if path in self._removed:
            return None
        if path in self._edited:
            return self._edited[path]
        match = self._at(path)
        return match[0].tree.get(match[1]) if match else None

    def is_at_hand(self, folder: str) -> bool:
        """Return whether a folder's files are those of a source tree that is at hand."""
        return self._at(folder) is not None

    def files_below(self, folder: str) -> Iterator[str]:
        """Yield the paths of the files of a folder in the image, relative to it."""
        if (match := self._at(folder)) is None:
            return
        mount, inside = match
        prefix = f"{inside}/" if inside else ""
        for name in sorted(mount.tree):
            path = name.removeprefix(prefix)
            if name.startswith(prefix) and posixpath.join(folder, path) not in self._removed:
                yield path

    def copied(self) -> tuple[str, ...]:
        """Return the places outside of build folders that have files of a source tree."""
        places = (mount.place for mount in self._mounts)
        return tuple(place for place in places if not place.startswith(_BUILD_FOLDERS))

    def _at(self, path: str) -> tuple[_Mount, str] | None:
        """Return the newest source tree that has a place, and the path in it."""
        for mount in reversed(self._mounts):
            if path == mount.place or path.startswith(f"{mount.place}/"):
                inside = path.removeprefix(mount.place).strip("/")
                return mount, posixpath.normpath(posixpath.join(mount.folder, inside)).strip("./")
        return None

    def _git(self, step: Step) -> None:
        if "clone" in step.argv:
            url = next((word for word in step.argv if "://" in word), "")
            ref = _after(step.argv, "--branch") or "HEAD"
            self._mount_clone(step.path(step.argv[-1]), Clone(url=url, ref=ref, line=step.line))
        elif "checkout" in step.argv and (clone := self._places.get(step.folder)):
            self.cloned.remove(clone)
            self.trials.pop()
            self._mounts = [mount for mount in self._mounts if mount.place != step.folder]
            taken = Clone(url=clone.url, ref=step.argv[-1], line=clone.line)
            self._mount_clone(step.folder, taken)

    def _mount_clone(self, place: str, clone: Clone) -> None:
        self._places[place] = clone
        self.cloned.append(clone)
        tree = self.clones(clone.url, clone.ref)
        subject = f"git clone {clone.url} {clone.ref}"
        if isinstance(tree, str):
            self.trials.append(not_tried(CLONES, subject, tree, clone.line))
        else:
            self.trials.append(passed(CLONES, subject, "the commit is there", clone.line))
            self._mounts.append(_Mount(place=place, tree=tree, folder=""))

    def _unpack(self, step: Step) -> None:
        name = posixpath.basename(_after(step.argv, "-f"))
        tree = self.archives(name) if name else None
        if tree is not None:
            place = step.path(_after(step.argv, "-C") or step.folder)
            self._mounts.append(_Mount(place=place, tree=tree, folder=""))

    def _copy(self, step: Step) -> None:
        words = [word for word in step.argv[1:] if not word.startswith("-")]
        if len(words) != 2:  # noqa: PLR2004 - from and to
            return
        source, target = step.path(words[0]), step.path(words[1])
        if match := self._at(source):
            if not words[0].endswith((".", "/.")):
                target = posixpath.join(target, posixpath.basename(source))
            self._mounts.append(_Mount(place=target, tree=match[0].tree, folder=match[1]))
        for path, text in [*self._edited.items()]:
            if path.startswith(f"{source}/"):
                self._edited[target + path.removeprefix(source)] = text

    def _edit(self, step: Step) -> None:
        words, options = iter(step.argv[1:]), list[str]()
        expressions, files = list[str](), list[str]()
        for word in words:
            if word == "-e":
                expressions.append(next(words, ""))
            elif not word.startswith("-"):
                files.append(word)
            elif word != "-i":
                options.append(word)
        if not expressions:
            expressions, files = files[:1], files[1:]
        options += [word for expression in expressions for word in ("-e", expression)]
        for path in map(step.path, files):
            # Not of the distribution, nor of a source tree that is not at hand.
            if self.is_at_hand(posixpath.dirname(path)):
                outcome, text = self._edit_file(path, options)
                subject = f"sed {' '.join(options)} {path}"
                self.trials.append(outcome(PATCHES, subject, text, step.line))

    def _edit_file(self, path: str, options: list[str]) -> tuple[Callable[..., Trial], str]:
        before = self.read(path)
        if before is None:
            return failed, "the source has no such file"
        with tempfile.TemporaryDirectory(prefix="build-images-") as folder:
            file = Path(folder, "text")
            file.write_text(before, encoding="utf-8")
            argv = ["sed", "--sandbox", *options, str(file)]
            completed = self.processes.capture(argv, check=False, timeout_s=_EDIT_TIMEOUT_S)
        if completed.returncode:
            return not_tried, "sed refuses it here"
        if completed.stdout == before:
            return failed, "it changes nothing in the source"
        self._edited[path] = completed.stdout
        return passed, "it changes the source"

    def _patch(self, command: PatchCommand) -> tuple[Callable[..., Trial], str]:
        patch = self.read(command.file) or self.texts(command.file)
        if not self.is_at_hand(command.folder):
            return not_tried, "its sources are not at hand"
        if patch is None or not shutil.which("patch"):
            lacks = "the patch is not at hand" if patch is None else "this machine has no patch"
            return not_tried, lacks
        is_changed = command.sources(patch)
        if not is_changed or any(not name or ".." in name.split("/") for name in is_changed):
            return failed, "it names no files of the source: not a unified patch"
        paths = {name: posixpath.join(command.folder, name) for name in is_changed}
        texts = {name: self.read(path) for name, path in paths.items()}
        sources = {name: text for name, text in texts.items() if text is not None}
        if missing := [name for name, old in is_changed.items() if old and name not in sources]:
            return failed, f"the source has no {', '.join(missing)}"
        changed = patched(self.processes, command, patch, sources)
        if isinstance(changed, str):
            return failed, changed
        for name, text in changed.items():
            if text is None:
                self._removed.add(paths[name])
            else:
                self._edited[paths[name]] = text
        return passed, "it applies to the source"


def _after(words: tuple[str, ...], option: str) -> str:
    """Return the value of an option, as the next word or behind `=`; empty without the option."""
    for word, following in itertools.pairwise((*words, "")):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


# ---- Patches ----

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
        """Return the files that a patch names, below the folder; whether each is there before."""
        files = {}
        for match in _FILES.finditer(patch):
            old, new = match["old"].strip(), match["new"].strip()
            name = old if new == _NOWHERE else new
            files["/".join(name.split("/")[self.levels :])] = old != _NOWHERE
        return files


def patch_command(step: Step) -> PatchCommand | None:
    """Return the patch that a step applies, if an option or `git apply` names one."""
    is_git = step.program == "git" and step.argv[1:2] == ("apply",)
    if not is_git and step.program != "patch":
        return None
    words = step.argv[2:] if is_git else step.argv[1:]
    text = " ".join(words)
    if is_git:
        file = words[-1] if words and words[-1][0] != "-" else ""
    else:
        file = match["file"] if (match := _PATCH.search(text)) else ""
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
    """Return the texts of the sources after a patch, None for a removed one; or its complaint.

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
        completed = processes.capture(argv, cwd=folder, check=False, timeout_s=_EDIT_TIMEOUT_S)
        if completed.returncode:
            output = completed.stdout + completed.stderr
            lines = [line for line in output.splitlines() if line.strip()]
            reasons = [line for line in lines if any(word in line for word in _REASONS)]
            return (reasons or lines or ["patch ends without a word"])[0]
        paths = {name: folder / name for name in command.sources(patch)}
        return {name: path.read_text() if path.exists() else None for name, path in paths.items()}
