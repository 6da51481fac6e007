"""The files of source trees at the paths where the steps of a spec have them.

They are in a folder that represents the image's root. Only steps that fetch, unpack, copy, remove
and edit sources are followed. Nothing of a recipe is executed except sed's expressions, in its
sandbox: https://www.gnu.org/software/sed/manual/ (--sandbox). Links are removed, so that no path
leads out of the folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.model.errors import StepFailed
from builder.system.process import Processes
from builder.verify.rehearse.steps import Step, arguments_of
from builder.verify.rehearse.trials import CLONES, PATCHES, Trial, failed, not_tried, passed

_EDIT_TIMEOUT_S = 60.0
_BUILD_FOLDERS = ("/var/tmp/", "/tmp/")  # noqa: S108 - paths in the image
_GIT_TIMEOUT_S = 300.0
_NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}  # no filters

# ---- Source trees: of locked archives, and of Git repositories ----


def unpack(archive: Path, folder: Path) -> set[str]:
    """Write the regular files of an archive to a folder; return their topmost folders."""
    topmost = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            file = tar.extractfile(member) if member.isfile() else None
            if file and not name.startswith(("/", "..")):
                write_file(folder / name, file.read())
                topmost.add(name.partition("/")[0])
    return topmost


def write_file(path: Path, content: bytes) -> None:
    """Write a file and the folders above it, unless a file or a folder is in its place."""
    with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Clones:
    """Git repositories that this machine has: below `folders`, as OWNER/NAME.git or OWNER/NAME."""

    def __init__(self, processes: Processes, folders: Sequence[Path]) -> None:
        self._processes, self._folders = processes, folders

    def check_out(self, url: str, ref: str, folder: Path) -> str:
        """Write the files of a commit, tag or branch to a folder; return why if that fails."""
        match = re.fullmatch(r"https://[^/]+/([^/]+)/([^/]+?)(?:\.git)?/?", url)
        if match is None:
            return f"{url} names no owner and repository"
        owner, name = match.groups()
        for below, path in itertools.product(self._folders, (f"{name}.git", f"{name}/.git")):
            repository = below / owner / path
            if repository.exists():
                try:
                    self._check_out(repository, ref, folder)
                except StepFailed:
                    return f"the copy in {repository} has no {ref}, or not all of its files"
                return ""
        return f"no copy of {owner}/{name} (name its folder with --clones)"

    def _check_out(self, repository: Path, ref: str, folder: Path) -> None:
        """Write the files of a commit, without links, and run no program that the repository names.

        Its settings are not read: a temporary Git folder uses only its objects.
        """
        git = ("git", "--git-dir", str(repository), "rev-parse")
        names = ("--git-path", "objects", f"{ref}^{{commit}}")
        objects, commit = self._git([*git, *names], {}).splitlines()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-images-") as own:
            env = {"GIT_DIR": own, "GIT_WORK_TREE": str(folder), "GIT_OBJECT_DIRECTORY": objects}
            self._git(["git", "init", "--template="], env)
            take = ("git", "-c", "core.symlinks=false", "read-tree", "--reset", "-u")
            self._git([*take, "--end-of-options", commit], env)

    def _git(self, argv: Sequence[str], env: Mapping[str, str]) -> str:
        env = {**_NO_SETTINGS, **env}
        return self._processes.capture(argv, env=env, timeout_s=_GIT_TIMEOUT_S).stdout


# ---- The files in an image ----

# Writes the files of a repository's commit to a folder; returns the reason if that fails.
CheckOut = Callable[[str, str, Path], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A repository that a step clones, and the commit, tag or branch that it checks out.

    `problem` is the reason why it is not available.
    """

    url: str
    ref: str
    line: int
    problem: str

    @property
    def trial(self) -> Trial:
        subject = f"git clone {self.url} {self.ref}"
        if self.problem:
            return not_tried(CLONES, subject, self.problem, self.line)
        return passed(CLONES, subject, "the commit is there", self.line)


@dataclass(kw_only=True, slots=True)
class SourceWorkspace:
    """Follows the effects of steps, in their order, on source files; `trials` are the results.

    `root` represents the image's root folder, with the files that the spec copies there. `stored`
    are the locked files in the store, by name; `cloned` are repositories by path.
    """

    root: Path
    check_out: CheckOut
    processes: Processes
    stored: Mapping[str, Path] = field(default_factory=dict)
    cloned: dict[str, Clone] = field(default_factory=dict)
    _edits: list[Trial] = field(default_factory=list)
    _trees: list[str] = field(default_factory=list)  # folders of source trees

    @property
    def trials(self) -> list[Trial]:
        return [*(clone.trial for clone in self.cloned.values()), *self._edits]

    def follow(self, step: Step) -> None:
        """Apply the effect of a step on source files."""
        if command := patch_command(step):
            subject = f"{command.file} in {command.folder}"
            outcome, text = self._patch(command)
            self._edits.append(outcome(PATCHES, subject, text, step.line))
        elif step.program == "git":
            self._git(step)
        elif step.program == "tar":
            self._unpack(step)
        elif step.program == "cp":
            self._copy(step)
        elif step.program == "rm":
            for word in arguments_of(step.argv[1:]).words:
                self._remove(self._file(step.path(word)))
        elif step.program == "sed" and any(word.startswith("-i") for word in step.argv):
            self._edit(step)

    def read(self, path: str) -> str | None:
        """Return the text of a file in the image, if an available source tree has it."""
        file = self._file(path)
        return file.read_text(errors="replace") if file.is_file() else None

    def is_at_hand(self, folder: str) -> bool:
        """Return whether a folder's files are those of an available source tree."""
        return any(folder == tree or folder.startswith(f"{tree}/") for tree in self._trees)

    def files_below(self, folder: str) -> list[str]:
        """Return the paths of the files of a folder in the image, relative to it."""
        top = self._file(folder)
        return sorted(str(file.relative_to(top)) for file in top.rglob("*") if file.is_file())

    def copied(self) -> tuple[str, ...]:
        """Return the paths outside of build folders that have files of a source tree."""
        return tuple(tree for tree in self._trees if not tree.startswith(_BUILD_FOLDERS))

    def _file(self, path: str) -> Path:
        """Return the local file for an absolute, normal path in the image."""
        return self.root / path.lstrip("/")

    def _remove(self, file: Path) -> None:
        with contextlib.suppress(OSError):  # like `rm -f`
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()

    def _git(self, step: Step) -> None:
        if "clone" in step.argv:
            url = next((word for word in step.argv if "://" in word), "")
            ref = arguments_of(step.argv, ("--branch", "-b")).last("--branch", "-b") or "HEAD"
            self._clone(step.path(step.argv[-1]), url, ref, step.line)
        elif "checkout" in step.argv and (clone := self.cloned.get(step.folder)):
            self._clone(step.folder, clone.url, step.argv[-1], clone.line)

    def _clone(self, place: str, url: str, ref: str, line: int) -> None:
        folder = self._file(place)
        self._remove(folder)
        self._trees = [tree for tree in self._trees if tree != place]
        problem = self.check_out(url, ref, folder)
        self.cloned[place] = Clone(url=url, ref=ref, line=line, problem=problem)
        if not problem:
            self._trees.append(place)

    def _unpack(self, step: Step) -> None:
        arguments = arguments_of(step.argv[1:], ("-f", "-C"))
        archive = self.stored.get(posixpath.basename(arguments.last("-f")))
        if archive is not None:
            place = step.path(arguments.last("-C"))
            topmost = unpack(archive, self._file(place))
            self._trees += [posixpath.join(place, name) for name in sorted(topmost)]

    def _copy(self, step: Step) -> None:
        words = arguments_of(step.argv[1:]).words
        if len(words) != 2:  # noqa: PLR2004 - from and to
            return
        source, target = step.path(words[0]), step.path(words[1])
        if not self.is_at_hand(source) or not self._file(source).is_dir():
            return
        if posixpath.basename(words[0]) != ".":
            target = posixpath.join(target, posixpath.basename(source))
        if not f"{target}/".startswith(f"{source}/"):  # cp refuses that
            shutil.copytree(self._file(source), self._file(target), dirs_exist_ok=True)
            self._trees.append(target)

    def _edit(self, step: Step) -> None:
        arguments = arguments_of(step.argv[1:], ("-e",))
        expressions: Sequence[str] = arguments.all("-e")
        files = arguments.words
        if not expressions:
            expressions, files = files[:1], files[1:]
        options = [flag for flag in arguments.flags if not flag.startswith("-i")]
        for expression in expressions:
            options += ["-e", expression]
        for path in map(step.path, files):
            # Files of the distribution, and of source trees that are not available, are not tried.
            if self.is_at_hand(posixpath.dirname(path)):
                outcome, text = self._edit_file(self._file(path), options)
                subject = f"sed {' '.join(options)} {path}"
                self._edits.append(outcome(PATCHES, subject, text, step.line))

    def _edit_file(self, file: Path, options: list[str]) -> tuple[Callable[..., Trial], str]:
        if not file.is_file():
            return failed, "the source has no such file"
        before = file.read_bytes()
        argv = ["sed", "--sandbox", "-i", *options, str(file)]
        completed = self.processes.capture(argv, check=False, timeout_s=_EDIT_TIMEOUT_S)
        if completed.returncode:
            return not_tried, "sed refuses it in its sandbox"
        if file.read_bytes() == before:
            return failed, "it changes nothing in the source"
        return passed, "it changes the source"

    def _patch(self, command: PatchCommand) -> tuple[Callable[..., Trial], str]:
        """Apply a patch if it applies completely."""
        if not self.is_at_hand(command.folder) or not self._file(command.folder).is_dir():
            return not_tried, "its sources are not available"
        patch = self._file(command.file)
        if not patch.is_file():
            patch = self.stored.get(posixpath.basename(command.file), patch)
        if not patch.is_file():
            return not_tried, "the patch is not available"
        if not shutil.which("patch"):
            return not_tried, "the program patch is missing on this machine"
        if error := self._patch_error(command, patch, "--dry-run"):
            return failed, error
        self._patch_error(command, patch)
        below = self._file(command.folder).rglob("*")
        if links := [path for path in below if path.is_symlink()]:
            for link in links:
                link.unlink()
            return not_tried, "it makes a symbolic link"
        return passed, "it applies to the source"

    def _patch_error(self, command: PatchCommand, patch: Path, *more: str) -> str:
        """Run patch, and return its error message if it fails.

        `--unified` keeps patch from reading an ed script, which could run commands.
        """
        argv = ["patch", "--unified", "--batch", "--forward", *command.options, *more]
        completed = self.processes.capture(
            [*argv, f"-p{command.levels}", "-i", str(patch)],
            cwd=self._file(command.folder),
            check=False,
            timeout_s=_EDIT_TIMEOUT_S,
        )
        if not completed.returncode:
            return ""
        output = completed.stdout + completed.stderr
        lines = [line for line in output.splitlines() if line.strip()]
        reasons = [line for line in lines if any(word in line for word in _REASONS)]
        return (reasons or lines or ["patch printed no reason"])[0]


# ---- Patches ----

_WITH_VALUE = ("-p", "--strip", "-d", "--directory", "-i", "--input")
_REASONS = ("can't find file", "FAILED", "****", "eversed")
_ALIKE = ("-R", "--reverse", "-l", "--ignore-whitespace")


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchCommand:
    """A step that applies a patch: the patch, the folder of the sources, and how names are read."""

    file: str
    folder: str
    levels: int
    options: tuple[str, ...]


def patch_command(step: Step) -> PatchCommand | None:
    """Return the patch that a step applies, if an option or `git apply` names one."""
    is_git = step.program == "git" and step.argv[1:2] == ("apply",)
    if not is_git and step.program != "patch":
        return None
    words = step.argv[2:] if is_git else step.argv[1:]
    arguments = arguments_of(words, _WITH_VALUE)
    levels = arguments.last("-p", "--strip")
    if is_git:
        # A command with several patches is not tried: no file has this name.
        file = "several patches" if arguments.words[1:] else "".join(arguments.words)
        folder, levels = step.folder, levels or "1"
    else:
        input_file = " ".join(words).partition("<")[2].split()
        file = arguments.last("-i", "--input") or "".join(input_file[:1])
        folder = step.path(arguments.last("-d", "--directory"))
    if not file or not levels.isdigit():
        return None
    return PatchCommand(
        file=posixpath.normpath(posixpath.join(folder, file)),
        folder=folder,
        levels=int(levels),
        options=tuple(word for word in words if word in _ALIKE),
    )
