"""The packages that pip would install for another Python and architecture, with dependencies.

pip itself resolves, on this machine and for the target, and installs nothing (`--dry-run`). For
another machine it accepts only wheels. So a second index, on loopback, has a stand-in for each
source distribution: a wheel with its name, version and requirements, and no content.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.model.exact_json import part
from builder.system.process import Completed, Processes
from builder.verify.rehearse.servers import LOOPBACK, Index, Unavailable, served
from builder.verify.rehearse.steps import PythonTarget

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TIMEOUT_S = 600.0
_NO_MATCH = re.compile(r"No matching distribution found for ([^\n]+?)(?: \(from [^)]*\))?$", re.M)
_NO_SETTINGS = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_CONSTRAINT": "",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
}
# pip installs these to build a source distribution that names no requirements (PEP 517, PEP 518).
_LEGACY_BUILD = ("setuptools>=40.8.0", "wheel")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceDistribution:
    """The run-time and build requirements of a source distribution.

    Without a pyproject.toml it `is_legacy`: an old pip builds it with the installed packages.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    build_requires: tuple[str, ...]
    is_legacy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """One resolved package: compiled from `source` if there is one, else installed as a wheel."""

    name: str
    version: str
    url: str
    source: SourceDistribution | None = None


class Unresolvable(Exception):
    """Raised with the reason of pip or the index why no set of packages fits."""


RunPip = Callable[[Sequence[str]], Completed]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Resolves requirements against one index, for any target."""

    index: Index
    run_pip: RunPip

    def resolve(
        self, requirements: Sequence[str], target: PythonTarget, options: Sequence[str] = ()
    ) -> tuple[Resolved, ...]:
        """Return the packages that pip would install with `options`, in its order.

        Raises `Unresolvable`, and `Unavailable` when the index gives no answer.
        """
        stand_ins = StandInWheels(self.index, target)
        with (
            served(stand_ins.answer) as url,
            tempfile.TemporaryDirectory(prefix="build-images-") as folder,
        ):
            report = Path(folder, "report.json")
            argv = [*_options(target, Path(folder)), "--extra-index-url", url]
            completed = self.run_pip([*argv, "--report", str(report), *options, *requirements])
            if stand_ins.problems:
                raise stand_ins.problems[0]
            if completed.returncode:
                raise Unresolvable(_reason(completed))
            return tuple(_packages(report, stand_ins.sources))


def _options(target: PythonTarget, folder: Path) -> list[str]:
    platforms = (word for name in target.platforms for word in ("--platform", name))
    return [
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-cache-dir", "--use-feature=fast-deps"),
        *("--only-binary=:all:", "--target", str(folder / "target")),
        *("--python-version", target.python, "--implementation", "cp", "--abi", target.abi),
        *platforms,
    ]


def _packages(
    report: Path, sources: Mapping[tuple[str, str], SourceDistribution]
) -> Iterator[Resolved]:
    for entry in json.loads(report.read_text(encoding="utf-8"))["install"]:
        metadata = entry["metadata"]
        name, version = canonicalize_name(metadata["name"]), str(metadata["version"])
        url = str(entry["download_info"]["url"])
        yield Resolved(name=name, version=version, url=url, source=sources.get((name, version)))


def _reason(completed: Completed) -> str:
    if match := _NO_MATCH.search(completed.stderr):
        return f"the index has no version that matches {match[1]}"
    lines = [line.removeprefix("ERROR: ") for line in completed.stderr.splitlines()]
    errors = [line for line in lines if line.strip() and not line.startswith("WARNING")]
    return "; ".join(errors[:4]) or f"pip ended with exit status {completed.returncode}"


def pip_of_this_machine(processes: Processes, index_url: str) -> RunPip:
    """Return this machine's pip with only its settings for the index and the certificates."""
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    settings = {**_NO_SETTINGS, "no_proxy": ",".join(filter(None, [direct, LOOPBACK]))}

    def run(arguments: Sequence[str]) -> Completed:
        command, *rest = arguments
        argv = [sys.executable, "-m", "pip", command, "--index-url", index_url, *rest]
        return processes.capture(argv, env=settings, check=False, timeout_s=_TIMEOUT_S)

    return run


class StandInWheels:
    """Pages and wheels of an index that has only stand-ins, for one target.

    It has one for each version without a wheel. `sources` are the source distributions that pip
    requested, by name and version; `problems` are the errors of stand-ins that could not be made.
    """

    def __init__(self, index: Index, target: PythonTarget) -> None:
        self._index, self._tags = index, target.tags
        self._urls: dict[str, str] = {}
        self.sources: dict[tuple[str, str], SourceDistribution] = {}
        self.problems: list[Unavailable] = []

    def answer(self, path: str) -> bytes | None:
        name = unquote(path).strip("/")
        try:
            return self._wheel(name) if name.endswith(".whl") else self._page(name)
        except Unavailable as error:
            self.problems.append(error)
        except Exception as error:  # the source is not trusted: any error may occur
            self.problems.append(Unavailable(f"the source of {name} is damaged: {error}"))
        return None

    def _page(self, project: str) -> bytes:
        files = self._index.files(project)
        with_wheel = {file.version for file in files if file.tags & self._tags}
        rows = []
        for file in files:
            if not file.tags and file.version not in with_wheel:
                name = f"{project.replace('-', '_')}-{file.version}-py3-none-any.whl"
                self._urls[name] = file.url
                row = {"filename": name, "url": f"/{name}", "hashes": {}, "yanked": file.is_yanked}
                rows.append({**row, "requires-python": file.requires_python or None})
        page = {"meta": {"api-version": "1.0"}, "name": project, "files": rows}
        return json.dumps(page).encode()

    def _wheel(self, name: str) -> bytes:
        project, version, *_ = parse_wheel_filename(name)
        source = read_source(project, str(version), self._index.read(self._urls[name]))
        self.sources[project, str(version)] = source
        return stand_in_of(source)


# ---- Source distributions ----


def read_source(name: str, version: str, archive: bytes) -> SourceDistribution:
    """Read the requirements in an archive (.tar.gz or .zip), if it declares any."""
    files = _files(archive)
    try:
        project = tomllib.loads(files.get("pyproject.toml", ""))
    except ValueError:
        project = {}
    build = part(project, "build-system", "requires")
    requires = _Metadata(files).requires or part(project, "project", "dependencies") or ()
    return SourceDistribution(
        name=name,
        version=version,
        requires=tuple(filter(_is_valid, map(str, requires))),
        build_requires=tuple(map(str, _LEGACY_BUILD if build is None else build)),
        is_legacy="pyproject.toml" not in files,
    )


def stand_in_of(source: SourceDistribution) -> bytes:
    """Return a wheel for any Python with a source distribution's requirements, and no content."""
    info = f"{source.name.replace('-', '_')}-{source.version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {source.name}", f"Version: {source.version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in source.requires]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join([*lines, "", ""]))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return stream.getvalue()


def _files(archive: bytes) -> dict[str, str]:
    stream = io.BytesIO(archive)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as zipped:
            texts = {path: zipped.read(path) for path in zipped.namelist() if _metadata_name(path)}
    else:
        stream.seek(0)
        with tarfile.open(fileobj=stream) as tar:
            texts = {
                member.name: file.read()
                for member in tar
                if member.isfile() and _metadata_name(member.name)
                if (file := tar.extractfile(member))
            }
    return {_metadata_name(path): text.decode(errors="replace") for path, text in texts.items()}


def _metadata_name(path: str) -> str:
    """Return the name of a file with requirements, in the top folder or egg-info; else empty."""
    *folders, name = path.removeprefix("./").split("/")
    if name == "requires.txt":
        return name if folders and folders[-1].endswith(".egg-info") else ""
    return name if name in {"pyproject.toml", "PKG-INFO"} and len(folders) == 1 else ""


class _Metadata(importlib.metadata.Distribution):
    """Reads run-time requirements as Python does: of PKG-INFO, or of setuptools' requires.txt."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        raise NotImplementedError(path)


def _is_valid(requirement: str) -> bool:
    try:
        return bool(Requirement(requirement))
    except InvalidRequirement:
        return False
