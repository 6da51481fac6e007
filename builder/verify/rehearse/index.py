"""A Python package index: which files it has for a target, and what is in them.

https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import requests
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from builder.model.exact_json import part
from builder.system.web import innermost, server_of

_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_S = 60.0
_NOT_FOUND = 404
_LARGEST = 100 << 20  # bytes of a file that is read whole


class OutOfReach(Exception):
    """Why an index, or a file of it, cannot be read: in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """One wheel or source distribution. `tags` is empty for a source distribution."""

    name: str
    url: str
    version: Version
    tags: frozenset[Tag]
    requires_python: str
    is_yanked: bool
    size: int

    def runs_on(self, python: str) -> bool:
        """Return whether it says that it is for a version of Python."""
        return not self.requires_python or _specifiers(self.requires_python).contains(python)


# A page of an index as JSON, by project; None where the index has no such project.
ReadPage = Callable[[str], dict[str, object] | None]
ReadFile = Callable[[str], bytes]


class Index:
    """An index at a URL. Pages are read once: answers hold for one rehearsal, and are not kept."""

    def __init__(self, read_page: ReadPage, read_file: ReadFile) -> None:
        self.files = functools.cache(lambda project: _files(read_page(project)))
        self.read = functools.cache(read_file)

    def fitting(self, requirement: Requirement, python: str) -> list[IndexFile]:
        """The files of all versions that meet a requirement, for a Python, the newest first.

        Yanked files are taken where they are named, as pip does, and pre-releases also where
        nothing else meets the requirement.
        """
        files = self.files(canonicalize_name(requirement.name))
        is_pinned = any(one.operator in {"==", "==="} for one in requirement.specifier)
        usable = [
            file for file in files if file.runs_on(python) and (is_pinned or not file.is_yanked)
        ]
        versions = {*requirement.specifier.filter({file.version for file in usable})}
        fitting = [file for file in usable if file.version in versions]
        return sorted(fitting, key=lambda file: file.version, reverse=True)


def remote_index(url: str) -> Index:
    """The index at a URL (`https://index.example/simple`)."""
    session = requests.Session()

    def read_page(project: str) -> dict[str, object] | None:
        answer = _get(session, f"{url.rstrip('/')}/{project}/", {"Accept": _JSON})
        if answer.status_code == _NOT_FOUND:
            return None
        try:
            answer.raise_for_status()
            page: dict[str, object] = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise OutOfReach(f"{server_of(url)} gives no JSON page of {project}") from error
        return page

    def read_file(file_url: str) -> bytes:
        answer = _get(session, file_url, {}, stream=True)
        try:
            answer.raise_for_status()
        except requests.RequestException as error:
            raise OutOfReach(f"{server_of(file_url)}: {innermost(error)}") from error
        if int(answer.headers.get("Content-Length") or 0) > _LARGEST:
            raise OutOfReach(f"larger than {_LARGEST >> 20} MiB")
        return answer.content

    return Index(read_page, read_file)


def _get(
    session: requests.Session, url: str, headers: dict[str, str], *, stream: bool = False
) -> requests.Response:
    try:
        return session.get(url, headers=headers, timeout=_TIMEOUT_S, stream=stream)
    except requests.RequestException as error:
        raise OutOfReach(f"{server_of(url)} cannot be reached: {innermost(error)}") from error


def _files(page: dict[str, object] | None) -> tuple[IndexFile, ...]:
    rows = part(page, "files") or ()
    return tuple(file for row in rows if (file := _file(row)))


def _file(row: dict[str, object]) -> IndexFile | None:
    """A row of a page as a file; None for eggs, installers and what has no valid name."""
    name = str(row["filename"])
    try:
        if name.endswith(".whl"):
            _, version, _, tags = parse_wheel_filename(name)
        elif name.endswith((".tar.gz", ".zip")):
            version, tags = parse_sdist_filename(name)[1], frozenset()
        else:
            return None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return IndexFile(
        name=name,
        url=str(row["url"]),
        version=version,
        tags=tags,
        requires_python=str(row.get("requires-python") or ""),
        is_yanked=bool(row.get("yanked")),
        size=int(str(row.get("size") or 0)),
    )


@functools.cache
def _specifiers(text: str) -> SpecifierSet:
    """What a file says of Python; where it says it wrongly, nothing speaks against the file."""
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return SpecifierSet()
