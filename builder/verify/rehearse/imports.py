"""What copied Python sources import, against what the image installs."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from builder.model.errors import counted
from builder.verify.rehearse.modules import STANDARD
from builder.verify.rehearse.trials import IMPORTS, Trial, failed, passed
from builder.verify.rehearse.workspace import Workspace

_SHOWN = 6
# A folder of programs beside those in the folder itself; tests are of nobody's purpose.
_TOOLS = "tools"
_TEST = re.compile(r"(test_.*|.*_test|test)\.py")
# How setup.py names what it compiles: Extension("package._C", ...), name="module".
_COMPILED = re.compile(r"""(?:name\s*=\s*|[Ee]xtension\(\s*)['"]([A-Za-z_]\w*)[\w.]*['"]""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """What sources ask of a module that one publisher's fork of it alone has."""

    pattern: re.Pattern[str]
    about: str
    module: str
    repository: str
    source: str


# PythonAPI/pycocotools/coco.py of that repository, since commit 4bb5a0f of November 2018.
FORKS = (
    Fork(
        pattern=re.compile(r"\buse_ext=True\b"),
        about="use_ext=True",
        module="pycocotools",
        repository="github.com/NVIDIA/cocoapi",
        source="https://github.com/NVIDIA/cocoapi/commit/4bb5a0f",
    ),
)


def import_trials(
    workspace: Workspace, folder: str, modules: Collection[str], line: int = 0
) -> Iterator[Trial]:
    """A trial of the Python programs that were copied to a folder, and of what they import there.

    None where there is no program.
    """
    sources = PythonFolder(workspace, folder)
    reached = sources.reached()
    if not reached:
        return
    lost: dict[str, str] = {}
    for path in reached:
        for name, number in sources.imported(path):
            if name not in sources.own and name not in STANDARD and name not in modules:
                lost.setdefault(name, f"{path}:{number}")
        yield from _forks(workspace, sources.text(path), f"{folder}/{path}", line)
    subject = f"imports of {counted(len(reached), 'file')} in {folder}"
    if lost:
        found = [f"{name} ({place})" for name, place in sorted(lost.items())]
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        text = f"nothing installs {', '.join(found[:_SHOWN])}{more}"
        yield failed(IMPORTS, subject, text, line, "add the packages that have these modules")
    else:
        yield passed(IMPORTS, subject, "every module is installed", line)


class PythonFolder:
    """The Python files of a folder, and which of them its programs import.

    `own` are the modules that the folder has itself, with those that its setup.py compiles.
    """

    def __init__(self, workspace: Workspace, folder: str) -> None:
        self._workspace, self._folder = workspace, folder
        self._paths = {path for path in workspace.files_below(folder) if path.endswith(".py")}
        parts = (part.removesuffix(".py") for path in self._paths for part in path.split("/"))
        self.own = {*parts, *_COMPILED.findall(self.text("setup.py"))}

    def text(self, path: str) -> str:
        return self._workspace.read(posixpath.join(self._folder, path)) or ""

    def reached(self) -> list[str]:
        """The programs, and the folder's own modules that they cannot be imported without."""
        waiting = [path for path in self._paths if self._is_program(path)]
        seen = set(waiting)
        while waiting:
            for path in self._imported_files(waiting.pop()):
                if path not in seen:
                    seen.add(path)
                    waiting.append(path)
        return sorted(seen)

    def imported(self, path: str) -> Iterator[tuple[str, int]]:
        """The modules of others that a file imports, each with its line."""
        for name, number in _imported(self.text(path), posixpath.dirname(path)):
            yield name.partition(".")[0], number

    def _is_program(self, path: str) -> bool:
        folder, name = posixpath.split(path)
        return folder in {"", _TOOLS} and name != "setup.py" and not _TEST.fullmatch(name)

    def _imported_files(self, path: str) -> Iterator[str]:
        for name, _ in _imported(self.text(path), posixpath.dirname(path)):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                stem = "/".join(parts[:count])
                yield from {f"{stem}.py", f"{stem}/__init__.py"} & self._paths


def _forks(workspace: Workspace, text: str, path: str, line: int) -> Iterator[Trial]:
    for fork in FORKS:
        if not fork.pattern.search(text):
            continue
        subject = f"{fork.about} in {path}"
        if any(fork.repository in clone.url for clone in workspace.cloned):
            yield passed(IMPORTS, subject, f"{fork.module} is that of {fork.repository}", line)
        else:
            told = f"only {fork.repository} has that in its {fork.module} ({fork.source})"
            yield failed(IMPORTS, subject, told, line)


def _imported(text: str, folder: str) -> Iterator[tuple[str, int]]:
    """The modules that a file cannot be imported without, in full, with their lines.

    What is imported within a function or a `try` may be absent. `folder` is the file's.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # of another Python than this machine's
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder.split("/")[: len(folder.split("/")) - node.level + 1]
            package = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            yield from ((f"{package}.{alias.name}", node.lineno) for alias in node.names)
