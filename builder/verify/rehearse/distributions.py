"""What a source distribution says of itself, and a wheel that stands in for it in a resolution.

pip resolves for another machine with wheels alone. A stand-in has the name, the version and the
requirements of a source distribution, and nothing else: pip then resolves with what would be
compiled there.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.model.exact_json import part

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
