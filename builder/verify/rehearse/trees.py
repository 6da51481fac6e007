"""Source trees that steps of a spec work on: of Git repositories, and of locked archives."""

from __future__ import annotations

import functools
import itertools
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builder.model.errors import StepFailed
from builder.system.process import Processes

_GIT_TIMEOUT_S = 300.0


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
        """Return a tag or commit of a repository, or the reason why it cannot be read."""
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
