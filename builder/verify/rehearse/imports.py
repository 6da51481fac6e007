"""Check imports of copied Python sources, and libraries of wheels, against installed packages."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import posixpath
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from packaging.utils import canonicalize_name

from builder.facts.software import HOST_LIBRARIES, IN_EVERY_IMAGE
from builder.model.errors import counted
from builder.model.records import read
from builder.system.files import table_beside
from builder.verify.rehearse.packages import shown
from builder.verify.rehearse.resolution import Resolved
from builder.verify.rehearse.servers import Unavailable
from builder.verify.rehearse.trials import IMPORTS, LIBRARIES, Trial, failed, not_tried, passed
from builder.verify.rehearse.workspace import SourceWorkspace

# ---- Modules that an image has ----


@dataclass(frozen=True, kw_only=True, slots=True)
class Modules:
    """The tables of modules.yaml."""

    former: tuple[str, ...]
    packages: Mapping[str, tuple[str, ...]]
    repositories: Mapping[str, tuple[str, ...]]


_TABLE = "modules.yaml"
_MODULES = read(Modules, table_beside(__file__, _TABLE), _TABLE)
STANDARD = frozenset({*sys.stdlib_module_names, *_MODULES.former})


def modules_of_packages(names: Iterable[str]) -> Iterator[str]:
    """Yield the modules of packages of an index."""
    for name in map(canonicalize_name, names):
        known = "cupy" if name.startswith("cupy-cuda") else name
        yield from _MODULES.packages.get(known, (name.replace("-", "_"),))


def modules_of_source(url: str) -> tuple[str, ...]:
    """Return the modules that the repository or archive at a URL installs."""
    if "#subdirectory=compliance" in url:
        return ("mlperf_compliance",)
    name = posixpath.basename(url.rstrip("/")).removesuffix(".git")
    return _MODULES.repositories.get(name, ())


def modules_of_distribution(packages: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the distribution's packages: python3-scipy has scipy."""
    python = (name.removeprefix("python3-") for name in packages if name.startswith("python3-"))
    return modules_of_packages(python)


# ---- Imports of copied sources ----

# The folder itself and this subfolder hold programs; tests are not tried.
_TOOLS = "tools"
_TEST = re.compile(r"(test_.*|.*_test|test)\.py")
# How setup.py names what it compiles: Extension("package._C", ...), name="module".
_COMPILED = re.compile(r"""(?:name\s*=\s*|[Ee]xtension\(\s*)['"]([A-Za-z_]\w*)[\w.]*['"]""")
# Only NVIDIA's fork of pycocotools has it, in PythonAPI/pycocotools/coco.py, since 2018.
_USE_EXT = re.compile(r"\buse_ext=True\b")
_FORK, _FORKED_IN = "github.com/NVIDIA/cocoapi", "https://github.com/NVIDIA/cocoapi/commit/4bb5a0f"


def import_trials(
    workspace: SourceWorkspace, folder: str, modules: Collection[str]
) -> Iterator[Trial]:
    """Try the imports of the Python programs that were copied to a folder, if there are any."""
    sources = PythonFolder(workspace, folder)
    files = sources.reached()
    known = {*sources.own, *STANDARD, *modules}
    missing: dict[str, str] = {}
    for path in files:
        for name, number in sources.imported(path):
            module = name.partition(".")[0]
            if module not in known:
                missing.setdefault(module, f"{path}:{number}")
        if _USE_EXT.search(sources.text(path)):
            yield _fork_trial(workspace, f"use_ext=True in {folder}/{path}")
    subject = f"imports of {counted(len(files), 'file')} in {folder}"
    if missing:
        places = [f"{name} ({place})" for name, place in sorted(missing.items())]
        text = f"nothing installs {shown(places)}"
        yield failed(IMPORTS, subject, text, hint="add the packages that have these modules")
    elif files:
        yield passed(IMPORTS, subject, "every module is installed")


def _fork_trial(workspace: SourceWorkspace, subject: str) -> Trial:
    if any(_FORK in clone.url for clone in workspace.cloned.values()):
        return passed(IMPORTS, subject, f"pycocotools is that of {_FORK}")
    text = f"only the pycocotools of {_FORK} has this option ({_FORKED_IN})"
    return failed(IMPORTS, subject, text)


class PythonFolder:
    """The Python files of a folder, and which of them its programs import.

    `own` are the modules of the folder itself, including those that its setup.py compiles.
    """

    def __init__(self, workspace: SourceWorkspace, folder: str) -> None:
        self._workspace, self._folder = workspace, folder
        self._paths = {path for path in workspace.files_below(folder) if path.endswith(".py")}
        parts = (part.removesuffix(".py") for path in self._paths for part in path.split("/"))
        self.own = {*parts, *_COMPILED.findall(self.text("setup.py"))}

    def text(self, path: str) -> str:
        return self._workspace.read(posixpath.join(self._folder, path)) or ""

    def reached(self) -> list[str]:
        """Return the programs, and the files of the folder that they require."""
        waiting = [path for path in self._paths if _is_program(path)]
        seen = set(waiting)
        while waiting:
            for name, _ in self.imported(waiting.pop()):
                stems = [*itertools.accumulate(name.split("."), posixpath.join)]
                files = {file for stem in stems for file in (f"{stem}.py", f"{stem}/__init__.py")}
                new = (files & self._paths) - seen
                waiting += new
                seen |= new
        return sorted(seen)

    def imported(self, path: str) -> Iterator[tuple[str, int]]:
        """Yield the modules that a file needs to be imported: their full names and lines.

        A module that is imported within a function or a `try` is optional.
        """
        folders = posixpath.dirname(path).split("/")
        try:
            tree = ast.parse(self.text(path))
        except (SyntaxError, ValueError):
            return  # syntax of another Python version
        for node in tree.body:
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = folders[: len(folders) - node.level + 1] if node.level else []
                package = ".".join([*above, *filter(None, [node.module])])
                yield from ((f"{package}.{alias.name}", node.lineno) for alias in node.names)


def _is_program(path: str) -> bool:
    folder, name = posixpath.split(path)
    return folder in {"", _TOOLS} and name != "setup.py" and not _TEST.fullmatch(name)


# ---- Shared libraries ----

LARGEST_WHEEL = 64 << 20  # bytes; a larger one would take longer to fetch than all other trials


class LibraryTrials:
    """Tries the wheels of many images; each wheel is read once."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._needed = functools.cache(self._needed_by)

    def of(
        self, packages: Iterable[Resolved], installed: Collection[str], line: int
    ) -> Iterator[Trial]:
        """Try each wheel that holds programs; `installed` are the run-time packages."""
        for package in packages:
            if package.source is None and not package.url.endswith("-none-any.whl"):
                yield self._trial(package.url, installed, line)

    def _trial(self, url: str, installed: Collection[str], line: int) -> Trial:
        name, needed = posixpath.basename(url), self._needed(url)
        if isinstance(needed, str):
            return not_tried(LIBRARIES, name, needed, line)
        lacking, unknown = [], []
        for soname in sorted(needed):
            library = HOST_LIBRARIES.get(soname)
            if library is None:
                unknown.append(soname)
            elif not {library.deb, library.rpm, *library.with_it} & {*installed}:
                lacking.append(f"{soname} ({library.deb}; {library.rpm})")
        if lacking:
            text = f"no package of the image provides {', '.join(lacking)}"
            return failed(LIBRARIES, name, text, line, "name the packages under runtime")
        if unknown:
            reason = f"no table lists packages that provide {', '.join(unknown)}"
            return not_tried(LIBRARIES, name, reason, line)
        packaged = f"; {', '.join(sorted(needed))} come with packages" if needed else ""
        return passed(LIBRARIES, name, f"it finds its libraries{packaged}", line)

    def _needed_by(self, url: str) -> frozenset[str] | str:
        try:
            return frozenset(needed_outside(self._read(url)))
        except Unavailable as reason:
            return str(reason)


def needed_outside(wheel: bytes) -> set[str]:
    """Return the libraries that a wheel needs, except its own and those in every image."""
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
        return set()  # a text file with a library's name
    return {
        str(tag.needed)  # type: ignore[attr-defined]  # only this kind of tag has it
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags("DT_NEEDED")
    }
