"""What pip would install for another Python and architecture, with all dependencies.

pip itself resolves, on this machine and for the target, and installs nothing (`--dry-run`). For
another machine it takes wheels alone, so source distributions have stand-ins
(builder.verify.rehearse.resolution).
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.model.exact_json import part
from builder.system.process import Completed, Processes
from builder.verify.rehearse.index import Index, IndexFile
from builder.verify.rehearse.pip_commands import Target

_TIMEOUT_S = 600.0
_MOST_STAND_INS = 40
_NOTHING = re.compile(r"No matching distribution found for ([^\n]+)")
_PARENT = re.compile(r" \(from [^)]*\)$")
_UNUSED = {"PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": "", "PIP_FIND_LINKS": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """One package of a resolution: compiled from `source` where there is one, else a wheel."""

    name: str
    version: str
    url: str
    requires: tuple[str, ...]
    source: SourceDistribution | None = None


class Unresolvable(Exception):
    """Why no set of packages meets the requirements, as pip or the index says it."""


# Runs pip with arguments, among them the path of the report, which is the second one, too.
RunPip = Callable[[Sequence[str], Path], Completed]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Resolves requirements against one index, for any target."""

    index: Index
    run_pip: RunPip

    def resolve(
        self, requirements: Sequence[str], target: Target, options: Sequence[str] = ()
    ) -> tuple[Resolved, ...]:
        """The packages that pip would install with `options`, in its order.

        Raises `Unresolvable`, and `OutOfReach` when the index gives no answer.
        """
        with tempfile.TemporaryDirectory(prefix="build-images-") as folder:
            return _Attempt(self, target, Path(folder), options).resolve(list(requirements))


class _Attempt:
    """One resolution, repeated with stand-ins until pip needs no further one."""

    def __init__(
        self, resolver: Resolver, target: Target, folder: Path, options: Sequence[str]
    ) -> None:
        self._index, self._run_pip = resolver.index, resolver.run_pip
        self._target, self._folder, self._options = target, folder, options
        self._sources: dict[tuple[str, str], SourceDistribution] = {}

    def resolve(self, requirements: list[str]) -> tuple[Resolved, ...]:
        for requirement in requirements:
            self._stand_in(Requirement(requirement))
        while len(self._sources) < _MOST_STAND_INS:
            done = self._run_pip([*self._arguments(), *requirements], self._report)
            if done.returncode:
                self._after_failure(done)
            else:
                found = tuple(self._read_report())
                if not any(self._is_compiled_when_newer(one, found, requirements) for one in found):
                    return found
        raise Unresolvable(f"more than {_MOST_STAND_INS} packages would be compiled")

    @property
    def _report(self) -> Path:
        return self._folder / "report.json"

    def _arguments(self) -> list[str]:
        target = self._target
        platforms = (word for name in target.platforms for word in ("--platform", name))
        return [
            *("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "--no-cache-dir", "--use-feature=fast-deps"),
            *("--only-binary=:all:", "--target", str(self._folder / "target")),
            *("--python-version", target.python, "--implementation", "cp", "--abi", target.abi),
            *platforms,
            *("--find-links", str(self._folder), "--report", str(self._report)),
            *self._options,
        ]

    def _after_failure(self, done: Completed) -> None:
        """Give a stand-in for what pip found no wheel of; raise where there is none to give."""
        told = _NOTHING.search(done.stderr)
        requirement = _requirement(told[1]) if told else None
        if requirement is None:
            raise Unresolvable(_reason(done))
        if not self._stand_in(requirement):
            raise Unresolvable(
                f"the index has nothing for {requirement} that fits {self._target.short}"
            )

    def _stand_in(self, requirement: Requirement) -> bool:
        """Make a stand-in where the newest fitting version has a source and no wheel."""
        files = self._index.fitting(requirement, self._target.python)
        usable = [file for file in files if not file.tags or file.tags & self._target.tags]
        newest = [file for file in usable if file.version == usable[0].version]
        if not newest or any(file.tags for file in newest):
            return False
        return self._add(requirement.name, newest[0])

    def _add(self, name: str, file: IndexFile) -> bool:
        key = canonicalize_name(name), str(file.version)
        if key in self._sources:
            return False
        source = read_source(key[0], key[1], self._index.read(file.url))
        self._sources[key] = source
        write_stand_in(source, self._folder)
        return True

    def _read_report(self) -> Iterator[Resolved]:
        report = json.loads(self._report.read_text(encoding="utf-8"))
        for entry in report["install"]:
            metadata = entry["metadata"]
            name, version = canonicalize_name(metadata["name"]), str(metadata["version"])
            yield Resolved(
                name=name,
                version=version,
                url=str(entry["download_info"]["url"]),
                requires=tuple(metadata.get("requires_dist", ())),
                source=self._sources.get((name, version)),
            )

    def _is_compiled_when_newer(
        self, one: Resolved, found: Sequence[Resolved], requirements: Iterable[str]
    ) -> bool:
        """Return whether pip would take a newer version than `one`, which has a source alone.

        pip prefers a newer version to a wheel, and saw no sources here.
        """
        if one.source:
            return False
        asked = [*requirements, *(text for other in found for text in other.requires)]
        specifier = SpecifierSet(f">={one.version}")
        for requirement in filter(None, map(_requirement, asked)):
            if canonicalize_name(requirement.name) == one.name:
                specifier &= requirement.specifier
        return self._stand_in(Requirement(f"{one.name}{specifier}"))


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(_PARENT.sub("", text.strip()))
    except InvalidRequirement:
        return None


def _reason(done: Completed) -> str:
    """pip's own error, in one line."""
    lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines()]
    told = [line for line in lines if line.strip() and not line.startswith("WARNING")]
    return "; ".join(told[:4]) or f"pip ended with exit status {done.returncode}"


def pip_of_this_machine(processes: Processes, index_url: str) -> RunPip:
    """This machine's pip, with none of its settings but the index and the certificates."""

    def run(arguments: Sequence[str], report: Path) -> Completed:
        report.unlink(missing_ok=True)
        command, *rest = arguments
        argv = [sys.executable, "-m", "pip", command, "--index-url", index_url, *rest]
        variables = {**_UNUSED, "PIP_EXTRA_INDEX_URL": ""}
        return processes.capture(argv, env=variables, check=False, timeout_s=_TIMEOUT_S)

    return run


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What pip builds with where a source distribution does not say (PEP 517, PEP 518).
LEGACY_BUILD = ("setuptools>=40.8.0", "wheel")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceDistribution:
    """The requirements of a source distribution: to run, and to be built.

    Without a pyproject.toml it `is_legacy`: pip builds it with what is installed where that pip is
    old enough.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    build_requires: tuple[str, ...]
    is_legacy: bool


def read_source(name: str, version: str, archive: bytes) -> SourceDistribution:
    """What an archive (.tar.gz or .zip) says; an empty requirement is what it does not say."""
    files = dict(_told(archive))
    project = _toml(files.get("pyproject.toml", ""))
    build = part(project, "build-system", "requires")
    return SourceDistribution(
        name=name,
        version=version,
        requires=tuple(_requires(files, project)),
        build_requires=tuple(map(str, LEGACY_BUILD if build is None else build)),
        is_legacy="pyproject.toml" not in files,
    )


def write_stand_in(source: SourceDistribution, folder: Path) -> Path:
    """A wheel for any Python with the requirements of a source distribution, and no content."""
    name = source.name.replace("-", "_")
    info = f"{name}-{source.version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {source.name}", f"Version: {source.version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in source.requires]
    path = folder / f"{name}-{source.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join([*lines, "", ""]))
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


_NAMES = ("pyproject.toml", "PKG-INFO", "requires.txt")


def _told(archive: bytes) -> Iterator[tuple[str, str]]:
    """The files in which a source distribution says what it needs, by name."""
    stream = io.BytesIO(archive)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as zipped:
            for path in zipped.namelist():
                if name := _interesting(path):
                    yield name, zipped.read(path).decode(errors="replace")
        return
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        for member in tar:
            name = _interesting(member.name)
            file = tar.extractfile(member) if name and member.isfile() else None
            if file:
                yield name, file.read().decode(errors="replace")


def _interesting(path: str) -> str:
    """The name of a file in the archive's own folder, or of requires.txt in an egg-info."""
    parts = path.removeprefix("./").split("/")
    name = parts[-1]
    if name == "requires.txt":
        return name if len(parts) > 1 and parts[-2].endswith(".egg-info") else ""
    return name if name in _NAMES and len(parts) == 2 else ""  # noqa: PLR2004 - NAME-VERSION/file


def _toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def _requires(files: dict[str, str], project: dict[str, object]) -> Iterator[str]:
    """What it needs to run: by its metadata, else by what setuptools wrote beside it."""
    told = HeaderParser().parsestr(files.get("PKG-INFO", "")).get_all("Requires-Dist")
    if told:
        yield from map(str, told)
    elif (dependencies := part(project, "project", "dependencies")) is not None:
        yield from map(str, dependencies)
    else:
        yield from _of_egg_info(files.get("requires.txt", ""))


def _of_egg_info(text: str) -> Iterator[str]:
    """The lines of requires.txt; a section is an extra, a marker, or both (`[extra:marker]`)."""
    extra, marker = "", ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
        elif not extra:
            requirement = f"{line} ; {marker}" if marker else line
            if _is_requirement(requirement):
                yield requirement


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True
