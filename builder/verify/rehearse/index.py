"""A Python package index: which files it has for a target, and what is in them.

https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
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
from packaging.version import Version

from builder.model.exact_json import part
from builder.system.web import server_of
from builder.verify.rehearse.servers import NotOnServer, OutOfReach, ReadUrl, read_url

_JSON = "application/vnd.pypi.simple.v1+json"


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
        """Return whether it is for a version of Python; a malformed requirement excludes none."""
        try:
            return SpecifierSet(self.requires_python).contains(python)
        except InvalidSpecifier:
            return True


# A page of an index as JSON, by project; None where the index has no such project.
ReadPage = Callable[[str], Mapping[str, object] | None]


class Index:
    """An index. Pages and files are read once: an answer holds for one rehearsal."""

    def __init__(self, read_page: ReadPage, read_file: ReadUrl) -> None:
        self.files = functools.cache(lambda project: _files(read_page(project)))
        self.read = functools.cache(read_file)

    def fitting(self, requirement: Requirement, python: str) -> list[IndexFile]:
        """Return the files that meet a requirement, for a Python, the newest version first.

        Yanked files are taken if a version is pinned, as pip does, and pre-releases also if
        nothing else meets the requirement.
        """
        is_pinned = any(part.operator in {"==", "==="} for part in requirement.specifier)
        usable = [
            file
            for file in self.files(canonicalize_name(requirement.name))
            if file.runs_on(python) and (is_pinned or not file.is_yanked)
        ]
        versions = {*requirement.specifier.filter({file.version for file in usable})}
        fitting = [file for file in usable if file.version in versions]
        return sorted(fitting, key=lambda file: file.version, reverse=True)

    def size_of(self, url: str) -> int:
        """Return the size of the file at a URL in bytes; 0 if the index does not say."""
        project = canonicalize_name(url.rpartition("/")[2].partition("-")[0])
        return next((file.size for file in self.files(project) if file.url == url), 0)


def remote_index(url: str) -> Index:
    """Return the index at a URL (`https://index.example/simple`)."""
    session = requests.Session()

    def read_page(project: str) -> Mapping[str, object] | None:
        try:
            data = read_url(f"{url.rstrip('/')}/{project}/", accept=_JSON, session=session)
            page: Mapping[str, object] = json.loads(data)
        except NotOnServer:
            return None
        except ValueError as error:
            raise OutOfReach(f"{server_of(url)} gives no JSON page of {project}") from error
        return page

    return Index(read_page, functools.partial(read_url, session=session))


def _files(page: Mapping[str, object] | None) -> tuple[IndexFile, ...]:
    return tuple(file for row in part(page, "files") or () if (file := _file(row)))


def _file(row: Mapping[str, object]) -> IndexFile | None:
    """Return the file of a row; None for eggs, installers and an invalid name."""
    name, tags = str(row["filename"]), frozenset[Tag]()
    try:
        if name.endswith(".whl"):
            _, version, _, tags = parse_wheel_filename(name)
        else:
            _, version = parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename):
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
