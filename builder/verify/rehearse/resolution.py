"""The packages that pip would install for another Python and architecture, with dependencies.

pip itself resolves, on this machine and for the target, and installs nothing (`--dry-run`). For
another machine it takes wheels alone. So each source distribution has a stand-in: a wheel with its
name, version and requirements, and no content.
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
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.model.exact_json import part
from builder.system.process import Completed, Processes
from builder.verify.rehearse.index import Index
from builder.verify.rehearse.pip_commands import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TIMEOUT_S = 600.0
_MOST_STAND_INS = 40
_NO_MATCH = re.compile(r"No matching distribution found for ([^\n]+)")
_PARENT = re.compile(r" \(from [^)]*\)$")
_NO_SETTINGS = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_CONSTRAINT": "",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
}
# What pip builds with where a source distribution does not say (PEP 517, PEP 518).
_LEGACY_BUILD = ("setuptools>=40.8.0", "wheel")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceDistribution:
    """The requirements of a source distribution: to run, and to be built.

    Without a pyproject.toml it `is_legacy`: an old pip builds it with what is installed.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    build_requires: tuple[str, ...]
    is_legacy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """One package of a resolution: compiled from `source` where there is one, else a wheel."""

    name: str
    version: str
    url: str
    requires: tuple[str, ...]
    source: SourceDistribution | None = None


class Unresolvable(Exception):
    """The reason why no set of packages meets the requirements, as pip or the index says it."""


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
        """Return the packages that pip would install with `options`, in its order.

        Raises `Unresolvable`, and `OutOfReach` when the index gives no answer.
        """
        with tempfile.TemporaryDirectory(prefix="build-images-") as folder:
            attempt = _Attempt(
                index=self.index, target=target, folder=Path(folder), requirements=requirements
            )
            while len(attempt.sources) < _MOST_STAND_INS:
                arguments = [*attempt.arguments(), *options, *requirements]
                completed = self.run_pip(arguments, attempt.report)
                if completed.returncode:
                    attempt.replace_missing(completed)
                elif not attempt.replace_older(packages := tuple(attempt.read_report())):
                    return packages
        raise Unresolvable(f"more than {_MOST_STAND_INS} packages would be compiled")


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """One resolution, repeated with stand-ins until pip needs no further one."""

    index: Index
    target: Target
    folder: Path
    requirements: Sequence[str]
    sources: dict[tuple[str, str], SourceDistribution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for requirement in self.requirements:
            self._stand_in(Requirement(requirement))

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    def arguments(self) -> list[str]:
        target = self.target
        return [
            *("install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "--no-cache-dir", "--use-feature=fast-deps"),
            *("--only-binary=:all:", "--target", str(self.folder / "target")),
            *("--python-version", target.python, "--implementation", "cp", "--abi", target.abi),
            *(word for name in target.platforms for word in ("--platform", name)),
            *("--find-links", str(self.folder), "--report", str(self.report)),
        ]

    def read_report(self) -> Iterator[Resolved]:
        for entry in json.loads(self.report.read_text(encoding="utf-8"))["install"]:
            metadata = entry["metadata"]
            name, version = canonicalize_name(metadata["name"]), str(metadata["version"])
            yield Resolved(
                name=name,
                version=version,
                url=str(entry["download_info"]["url"]),
                requires=tuple(metadata.get("requires_dist", ())),
                source=self.sources.get((name, version)),
            )

    def replace_missing(self, completed: Completed) -> None:
        """Make a stand-in for a package without a wheel. Raises `Unresolvable` if there is none."""
        match = _NO_MATCH.search(completed.stderr)
        requirement = _requirement(match[1]) if match else None
        if requirement is None:
            raise Unresolvable(_reason(completed))
        if not self._stand_in(requirement):
            raise Unresolvable(
                f"the index has nothing for {requirement} that fits {self.target.short}"
            )

    def replace_older(self, packages: Sequence[Resolved]) -> bool:
        """Make a stand-in for the first wheel that pip would pass over for a newer source.

        pip prefers a newer version to a wheel, and saw no sources here.
        """
        texts = [*self.requirements, *(text for package in packages for text in package.requires)]
        requirements = [*filter(None, map(_requirement, texts))]
        return any(
            self._stand_in(Requirement(f"{package.name}{_newer(package, requirements)}"))
            for package in packages
            if not package.source
        )

    def _stand_in(self, requirement: Requirement) -> bool:
        """Make a stand-in if the newest fitting version has a source and no wheel."""
        files = self.index.fitting(requirement, self.target.python)
        usable = [file for file in files if not file.tags or file.tags & self.target.tags]
        newest = [file for file in usable if file.version == usable[0].version]
        if not newest or any(file.tags for file in newest):
            return False
        key = canonicalize_name(requirement.name), str(newest[0].version)
        if key in self.sources:
            return False
        self.sources[key] = read_source(*key, self.index.read(newest[0].url))
        write_stand_in(self.sources[key], self.folder)
        return True


def _newer(package: Resolved, requirements: Iterable[Requirement]) -> SpecifierSet:
    specifier = SpecifierSet(f">={package.version}")
    for requirement in requirements:
        if canonicalize_name(requirement.name) == package.name:
            specifier &= requirement.specifier
    return specifier


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(_PARENT.sub("", text.strip()))
    except InvalidRequirement:
        return None


def _reason(completed: Completed) -> str:
    lines = [line.removeprefix("ERROR: ") for line in completed.stderr.splitlines()]
    errors = [line for line in lines if line.strip() and not line.startswith("WARNING")]
    return "; ".join(errors[:4]) or f"pip ended with exit status {completed.returncode}"


def pip_of_this_machine(processes: Processes, index_url: str) -> RunPip:
    """Return this machine's pip, with none of its settings but the index and the certificates."""

    def run(arguments: Sequence[str], report: Path) -> Completed:
        report.unlink(missing_ok=True)
        command, *rest = arguments
        argv = [sys.executable, "-m", "pip", command, "--index-url", index_url, *rest]
        return processes.capture(argv, env=_NO_SETTINGS, check=False, timeout_s=_TIMEOUT_S)

    return run


# ---- Source distributions ----


def read_source(name: str, version: str, archive: bytes) -> SourceDistribution:
    """Read the requirements in an archive (.tar.gz or .zip), as far as it names any."""
    files = _files(archive)
    try:
        project = tomllib.loads(files.get("pyproject.toml", ""))
    except ValueError:
        project = {}
    build = part(project, "build-system", "requires")
    return SourceDistribution(
        name=name,
        version=version,
        requires=tuple(_requires(files, part(project, "project", "dependencies"))),
        build_requires=tuple(map(str, _LEGACY_BUILD if build is None else build)),
        is_legacy="pyproject.toml" not in files,
    )


def write_stand_in(source: SourceDistribution, folder: Path) -> Path:
    """Write a wheel for any Python with a source distribution's requirements, and no content."""
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
    """Return the name of NAME-VERSION/pyproject.toml, of PKG-INFO there, or of egg-info's list."""
    *folders, name = path.removeprefix("./").split("/")
    if name == "requires.txt":
        return name if folders and folders[-1].endswith(".egg-info") else ""
    return name if name in {"pyproject.toml", "PKG-INFO"} and len(folders) == 1 else ""


def _requires(files: dict[str, str], dependencies: Iterable[object] | None) -> Iterator[str]:
    """Yield the requirements to run: of the metadata, of the project, or of setuptools' list."""
    of_metadata = HeaderParser().parsestr(files.get("PKG-INFO", "")).get_all("Requires-Dist")
    if of_metadata or dependencies is not None:
        yield from map(str, of_metadata or dependencies or ())
        return
    # A section of requires.txt is an extra, a marker, or both (`[extra:marker]`).
    extra, marker = "", ""
    for line in filter(None, map(str.strip, files.get("requires.txt", "").splitlines())):
        text = f"{line} ; {marker}" if marker else line
        if line.startswith("["):
            extra, _, marker = line.strip("[]").partition(":")
        elif not extra and _requirement(text):
            yield text
