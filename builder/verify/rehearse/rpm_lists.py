"""Names of packages in a repository of RPMs, by its `repomd.xml` and `primary.xml`.

https://github.com/rpm-software-management/createrepo_c. Document types and entities, which no
repository writes, are refused: a few bytes of them can stand for gigabytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.repository_files import ReadUrl, unpacked

BASEARCH = "$basearch"  # as dnf writes the architecture in an address (yum.conf(5))
_INDEX = "repodata/repomd.xml"
_CHECKSUMS = {"sha": "sha1", "sha1": "sha1", "sha256": "sha256", "sha512": "sha512"}
_DEEPEST, _LONGEST = 16, 1 << 20  # elements in each other; characters of a text
_NO_ARCH, _SOURCE = "noarch", "src"
_OF_INDEX = ("repomd", "data")
_OF_PACKAGE = ("metadata", "package")


def rpm_names(read: ReadUrl, repository: str, arch: str) -> set[str]:
    """Packages, what they provide, and files of usual folders, by full path.

    `primary.xml` lists the files below /etc and those of a folder `bin` or `sbin`. A package of
    another architecture is called NAME.ARCHITECTURE. Raises `OutOfReach`.
    """
    folder = repository.replace(BASEARCH, arch)
    primary = _primary(read(f"{folder}/{_INDEX}"))
    data = read(f"{folder}/{primary.path}")
    if hashlib.new(_CHECKSUMS[primary.algorithm], data).hexdigest() != primary.checksum:
        raise OutOfReach(f"{primary.path} is not the one that {_INDEX} names")
    return {*_names(_elements(unpacked(data)), arch)}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Primary:
    path: str
    algorithm: str
    checksum: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Element:
    """An element at its end: local names from the root to it, its attributes, its text."""

    path: tuple[str, ...]
    attributes: Mapping[str, str]
    text: str


def _primary(index: bytes) -> _Primary:
    """Return where the list of packages is, as the repository's index says."""
    path = algorithm = checksum = ""
    for element in _elements([index]):
        if element.path == (*_OF_INDEX, "location"):
            path = element.attributes.get("href", "")
        elif element.path == (*_OF_INDEX, "checksum"):
            algorithm, checksum = element.attributes.get("type", ""), element.text.strip()
        elif element.path == _OF_INDEX and element.attributes.get("type") == "primary":
            if not _is_below(path) or algorithm not in _CHECKSUMS:
                raise OutOfReach(f"{_INDEX} names no usable list of packages")
            return _Primary(path=path, algorithm=algorithm, checksum=checksum)
    raise OutOfReach(f"{_INDEX} names no list of packages")


def _is_below(path: str) -> bool:
    return bool(path) and "://" not in path and not {"", ".."} & {*path.split("/")}


def _names(elements: Iterable[_Element], arch: str) -> Iterator[str]:
    name = of_arch = ""
    for element in elements:
        if element.path[:2] != _OF_PACKAGE:
            continue
        match element.path[2:]:
            case ("name",):
                name = element.text.strip()
            case ("arch",):
                of_arch = element.text.strip()
                if of_arch != _SOURCE:
                    yield name if of_arch in (arch, _NO_ARCH) else f"{name}.{of_arch}"
            case ("format", "provides", "entry") if of_arch in (arch, _NO_ARCH):
                yield element.attributes.get("name", "")
            case ("format", "file") if of_arch in (arch, _NO_ARCH):
                yield element.text.strip()


@dataclass(kw_only=True, slots=True)
class _Builder:
    """Takes the events of a parser; `ended` are the elements that ended since it was emptied."""

    path: list[str] = field(default_factory=list)
    attributes: list[Mapping[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: list[_Element] = field(default_factory=list)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= _DEEPEST:
            raise OutOfReach("its XML is nested too deeply")
        self.path.append(name.rpartition(" ")[2])
        self.attributes.append(attributes)
        self.texts.clear()

    def text(self, text: str) -> None:
        self.texts.append(text)
        if len(self.texts) > _LONGEST or len(text) > _LONGEST:
            raise OutOfReach("a text in its XML is too long")

    def end(self, _: str) -> None:
        path, text = tuple(self.path), "".join(self.texts)
        self.ended.append(_Element(path=path, attributes=self.attributes.pop(), text=text))
        self.path.pop()
        self.texts.clear()


def _elements(pieces: Iterable[bytes]) -> Iterator[_Element]:
    """The elements of XML in the order in which they end. Raises `OutOfReach`."""
    builder, parser = _Builder(), expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.text
    try:
        for piece in pieces:
            parser.Parse(piece, False)
            yield from builder.ended
            builder.ended.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise OutOfReach(f"its XML is damaged: {error}") from error
    yield from builder.ended


def _refuse(*_: object) -> None:
    raise OutOfReach("its XML declares a document type, which is refused")
