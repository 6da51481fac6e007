"""Source trees that steps of a spec work on: of Git repositories, and of locked archives."""

from __future__ import annotations

import functools
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.model.errors import StepFailed
from builder.system.process import Processes

_TIMEOUT_S = 300.0
_REPOSITORY = re.compile(r"https://[^/]+/(?P<owner>[^/]+)/(?P<name>[^/]+?)(\.git)?/?")


class Tree(Protocol):
    """Files by their paths in a source tree."""

    def names(self) -> frozenset[str]: ...

    def read(self, path: str) -> str | None:
        """The text of a file; None where there is none."""


@dataclass(frozen=True, slots=True)
class FilesTree:
    """A tree whose files are at hand."""

    files: dict[str, str]

    def names(self) -> frozenset[str]:
        return frozenset(self.files)

    def read(self, path: str) -> str | None:
        return self.files.get(path)


class GitTree:
    """A commit of a Git repository, bare or not."""

    def __init__(self, processes: Processes, repository: Path, commit: str) -> None:
        self._git = ("git", "-c", "safe.directory=*", "--git-dir", str(repository))
        self._processes, self._commit = processes, commit
        self.names = functools.cache(self._names)
        self.read = functools.cache(self._read)

    def _names(self) -> frozenset[str]:
        argv = [*self._git, "ls-tree", "-r", "--name-only", "-z", self._commit]
        with self._processes.reading_from(argv) as stream:
            return frozenset(stream.read().decode(errors="replace").split("\0")) - {""}

    def _read(self, path: str) -> str | None:
        if path not in self.names():
            return None
        argv = [*self._git, "show", f"{self._commit}:{path}"]
        with self._processes.reading_from(argv) as stream:
            return stream.read().decode(errors="replace")


def archive_tree(path: Path) -> FilesTree:
    """The texts of an archive, by path below its folder's parent."""
    with tarfile.open(path) as tar:
        found = {
            member.name.removeprefix("./"): file.read().decode(errors="replace")
            for member in tar
            if member.isfile() and (file := tar.extractfile(member))
        }
    return FilesTree(found)


class Clones:
    """Git repositories that this machine has: below `folders`, as OWNER/NAME.git or OWNER/NAME."""

    def __init__(self, processes: Processes, folders: Sequence[Path]) -> None:
        self._processes, self._folders = processes, folders
        self.tree = functools.cache(self._tree)

    def _tree(self, url: str, ref: str) -> Tree | str:
        """A tag or commit of a repository; a text that says why it cannot be read."""
        named = _REPOSITORY.fullmatch(url)
        if named is None:
            return f"{url} names no owner and repository"
        owner, name = named["owner"], named["name"]
        for folder in self._folders:
            for path in (folder / owner / f"{name}.git", folder / owner / name / ".git"):
                if path.exists():
                    return self._commit(path, ref)
        return f"no copy of {owner}/{name} is at hand (--clones names folders that have one)"

    def _commit(self, repository: Path, ref: str) -> Tree | str:
        argv = ["git", "-c", "safe.directory=*", "--git-dir", str(repository)]
        try:
            done = self._processes.capture(
                [*argv, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"],
                timeout_s=_TIMEOUT_S,
            )
        except StepFailed:
            return f"the copy in {repository} has no {ref}"
        return GitTree(self._processes, repository, done.stdout.strip())
