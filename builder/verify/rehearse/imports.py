"""What copied Python sources import, against what the image installs."""

from __future__ import annotations

import ast
import functools
import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from builder.facts.software import HOST_LIBRARIES, IN_EVERY_IMAGE
from builder.model.errors import counted
from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.modules import STANDARD
from builder.verify.rehearse.resolution import Resolved
from builder.verify.rehearse.trials import IMPORTS, LIBRARIES, Trial, failed, not_tried, passed
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


LARGEST_WHEEL = 64 << 20  # bytes; a larger one would take longer to fetch than all other trials

ReadWheel = Callable[[str], bytes]
SizeOf = Callable[[str], int]


class LibraryTrials:
    """Tries the wheels of many images; each wheel is read once."""

    def __init__(self, read: ReadWheel, size_of: SizeOf) -> None:
        self._read, self._size_of = read, size_of
        self._needed = functools.cache(self._needed_by)

    def of(
        self, packages: Iterable[Resolved], installed: Collection[str], line: int
    ) -> Iterator[Trial]:
        """A trial for each wheel that holds programs; `installed` are the run-time packages."""
        for package in packages:
            name = posixpath.basename(package.url)
            if package.source is not None or name.endswith("-none-any.whl"):
                continue
            yield self._trial(name, package.url, installed, line)

    def _trial(self, name: str, url: str, installed: Collection[str], line: int) -> Trial:
        needed = self._needed(url)
        if isinstance(needed, str):
            return not_tried(LIBRARIES, name, needed, line)
        lost, unknown = [], []
        for soname in sorted(needed):
            library = HOST_LIBRARIES.get(soname)
            if library is None:
                unknown.append(soname)
            elif not {library.deb, library.rpm, *library.with_it} & {*installed}:
                lost.append(f"{soname} ({library.deb}; {library.rpm})")
        if lost:
            text = f"no package of the image brings {', '.join(lost)}"
            return failed(LIBRARIES, name, text, line, "name the packages under runtime")
        if unknown:
            reason = f"which packages bring {', '.join(unknown)} is in no table"
            return not_tried(LIBRARIES, name, reason, line)
        found = f"; {', '.join(sorted(needed))} come with packages" if needed else ""
        return passed(LIBRARIES, name, f"it finds its libraries{found}", line)

    def _needed_by(self, url: str) -> frozenset[str] | str:
        """What the libraries of a wheel are linked to outside of it; a text that says why not."""
        size = self._size_of(url)
        if size > LARGEST_WHEEL:
            return f"the wheel has {size >> 20} MiB, and is not read for this"
        try:
            return frozenset(needed_outside(self._read(url)))
        except OutOfReach as reason:
            return str(reason)


def needed_outside(wheel: bytes) -> set[str]:
    """What the programs of a wheel are linked to, but for its own libraries and every image's."""
    own: set[str] = set()
    needed: set[str] = set()
    with zipfile.ZipFile(io.BytesIO(wheel)) as zipped:
        for path in zipped.namelist():
            name = posixpath.basename(path)
            if ".so" in name:
                own.add(name)
                needed |= _linked_to(zipped.read(path))
    return {soname for soname in needed - own if not IN_EVERY_IMAGE.fullmatch(soname)}


def _linked_to(program: bytes) -> set[str]:
    try:
        elf = ELFFile(io.BytesIO(program))
    except ELFError:
        return set()  # a text that is called as a library is
    return {
        str(tag.needed)  # type: ignore[attr-defined]  # of this kind of tag alone
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags()
        if tag.entry.d_tag == "DT_NEEDED"
    }
