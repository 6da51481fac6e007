"""Wheels and source distributions on the Python package index of this machine's pip.

`wheel:NAME/VERSION/ARCHITECTURE` is the wheel of a release that runs on any Python and on the most
systems; with `/cp313` at its end, the one for that Python; `any` has no machine code.
`sdist:NAME/VERSION` is a release's source distribution.
Name, size and checksum are those of the index's page of the project:
https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from builder.model.exact_json import part
from builder.model.inputs import LockedSource
from builder.sources.download import Downloader, NotFetched
from builder.system.web import server_of

_JSON = "application/vnd.pypi.simple.v1+json"
_MOST_PAGE = 64 << 20  # bytes
_ANY_PYTHON = "py3"
_LINUX = "manylinux"
_SHARED_ABIS = ("abi3", "none")  # of any later Python: https://peps.python.org/pep-0425/
_SCHEMES = ("http", "https")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """A file on an index's page; `size` is in bytes, 0 if the index does not give it."""

    name: str
    url: str
    sha256: str
    size: int
    yanked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageIndex:
    """The index at `url`; pages are written to `folder` while they are read."""

    url: str
    downloader: Downloader
    folder: Path

    def resolve(self, url: str) -> LockedSource:
        """Return the source for a URL, without recipes; raises `NotFetched`."""
        file = self.file(url)
        if not file.size:
            raise NotFetched(f"{server_of(self.url)} gives no size of {file.name}")
        return LockedSource(url=url, file=file.name, sha256=file.sha256, size=file.size)

    def file(self, url: str, name: str = "") -> ListedFile:
        """Return the file of a URL, by its name if that is known; raises `NotFetched`.

        A file that its project has withdrawn is found by its name only.
        """
        project, version, *machine = url.partition(":")[2].split("/")
        fits = _is_wheel if machine else _is_sdist
        files = {file.name: file for file in self._files(project)}
        fitting = sorted(
            file.name
            for file in files.values()
            if fits(file.name, version, *machine) and not file.yanked
        )
        if name not in files and (name or not fitting):
            kind = f"wheel of it for {' and '.join(machine)}" if machine else "sdist of it"
            raise NotFetched(f"{server_of(self.url)} has no {name or kind}")
        return files[name or fitting[0]]

    def _files(self, project: str) -> Iterator[ListedFile]:
        if not self.url:
            raise NotFetched("this machine's pip names no package index")
        page = f"{self.url.rstrip('/')}/{project}/"
        for row in part(_page(page, self.downloader, self.folder), "files") or ():
            url, sha256 = urljoin(page, str(part(row, "url"))), str(part(row, "hashes", "sha256"))
            size = part(row, "size")
            if urlsplit(url).scheme in _SCHEMES and _SHA256.fullmatch(sha256):
                yield ListedFile(
                    name=str(part(row, "filename")),
                    url=_with_login(url, self.url),
                    sha256=sha256,
                    size=size if isinstance(size, int) else 0,
                    yanked=bool(part(row, "yanked")),
                )


@functools.lru_cache(maxsize=64)
def _page(url: str, downloader: Downloader, folder: Path) -> Mapping[str, object]:
    """Return an index's page of a project."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(".partial", ".index-", folder) as temporary:
        file = Path(temporary) / "page.json"
        downloader.fetch(url, file, limit=_MOST_PAGE, accept=_JSON)
        try:
            page = json.loads(file.read_bytes())
        except ValueError as error:
            raise NotFetched(f"{server_of(url)} has no JSON page of it") from error
    return page if isinstance(page, dict) else {}


def _with_login(url: str, index: str) -> str:
    """Return a file's URL with the login in the index's URL, if both are on one server."""
    at, parts = urlsplit(index), urlsplit(url)
    same = (parts.scheme, parts.netloc) == (at.scheme, at.netloc.rpartition("@")[2])
    return parts._replace(netloc=at.netloc).geturl() if same else url


def _is_wheel(name: str, version: str, arch: str, python: str = _ANY_PYTHON) -> bool:
    """Return whether a file is a wheel of a version for a Python on Linux of `arch`."""
    try:
        _, own, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    abis = (python, *_SHARED_ABIS)
    platforms = {tag.platform for tag in tags if tag.interpreter == python and tag.abi in abis}
    usual = any(one.startswith(_LINUX) and one.endswith(f"_{arch}") for one in platforms)
    return own == Version(version) and (usual or arch in platforms)


def _is_sdist(name: str, version: str) -> bool:
    """Return whether a file is the source distribution of a version."""
    try:
        _, own = parse_sdist_filename(name)
    except InvalidSdistFilename:
        return False
    return own == Version(version)
