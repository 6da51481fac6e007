"""Names of packages in repositories of Debian packages and of RPMs.

Mirrors are not trusted: the size of a file is limited while it is unpacked.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from builder.model.architectures import ARCHITECTURES
from builder.system.compression import DAMAGED, StreamInflater
from builder.system.web import innermost
from builder.verify.rehearse.servers import NotOnServer, ReadUrl, Unavailable

# Ubuntu's universe has 65 MB unpacked, EPEL's primary.xml 40 MB.
LARGEST = 1 << 30  # bytes
_LARGEST_DICTIONARY = 256 << 20  # bytes that xz may ask for
_CHUNK = 4 << 10  # bytes; small, since they may unpack to 30,000 times as many
_XZ, _GZIP, _ZSTD = b"\xfd7zXZ\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

# ---- Debian's, https://wiki.debian.org/DebianRepository/Format ----

_ENDINGS = (".xz", ".gz", "")  # a repository has at least one of these
_FIELDS = (b"Package: ", b"Provides: ")


def apt_names(read: ReadUrl, archive: str, component: str, arch: str) -> set[str]:
    """Return the packages of SUITE/COMPONENT and what they provide. Raises `Unavailable`."""
    list_of_packages = f"dists/{component}/binary-{ARCHITECTURES[arch].debian}/Packages"
    for ending in _ENDINGS:
        try:
            data = read(f"{archive}/{list_of_packages}{ending}")
        except NotOnServer:
            continue
        return {*_apt_names(data)}
    raise NotOnServer(f"it has no {list_of_packages}")


def _apt_names(data: bytes) -> Iterator[str]:
    for line in _lines(unpacked(data)):
        if line.startswith(_FIELDS):
            for name in line.decode(errors="replace").partition(":")[2].split(","):
                if words := name.split():
                    yield words[0].partition(":")[0]


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from complete
    yield rest


# ---- RPM's, https://github.com/rpm-software-management/createrepo_c ----

_INDEX = "repodata/repomd.xml"
_CHECKSUMS = {"sha": "sha1", "sha1": "sha1", "sha256": "sha256", "sha512": "sha512"}
_DEEPEST, _LONGEST = 16, 1 << 20  # nested elements; characters of a text
_OF_INDEX = ("repomd", "data")
_OF_PACKAGE = ("metadata", "package")


def rpm_names(read: ReadUrl, repository: str, arch: str) -> set[str]:
    """Return packages, what they provide, and files of usual folders, by full path.

    `primary.xml` lists the files below /etc and those of a folder `bin` or `sbin`. A package of
    another architecture is called NAME.ARCHITECTURE. `repository` may hold `$basearch`, as dnf
    writes the architecture (yum.conf(5)). Raises `Unavailable`.
    """
    folder = repository.replace("$basearch", arch)
    path, algorithm, checksum = _primary(read(f"{folder}/{_INDEX}"))
    data = read(f"{folder}/{path}")
    if hashlib.new(algorithm, data).hexdigest() != checksum:
        raise Unavailable(f"the checksum of {path} differs from the one in {_INDEX}")
    return {*_rpm_names(_elements(unpacked(data)), arch)}


def _primary(index: bytes) -> tuple[str, str, str]:
    path = algorithm = checksum = ""
    for place, attributes, text in _elements([index]):
        if place == (*_OF_INDEX, "location"):
            path = attributes.get("href", "")
        elif place == (*_OF_INDEX, "checksum"):
            algorithm, checksum = _CHECKSUMS.get(attributes.get("type", ""), ""), text
        elif place == _OF_INDEX and attributes.get("type") == "primary":
            if not algorithm or {"", ".."} & {*path.split("/")}:
                raise Unavailable(f"{_INDEX} names no usable list of packages")
            return path, algorithm, checksum
    raise Unavailable(f"{_INDEX} names no list of packages")


# An element at its end: local names from the root to it, its attributes, its text.
_Element = tuple[tuple[str, ...], Mapping[str, str], str]


def _rpm_names(elements: Iterable[_Element], arch: str) -> Iterator[str]:
    name, is_own = "", False
    for place, attributes, text in elements:
        if place == (*_OF_PACKAGE, "name"):
            name = text
        elif place == (*_OF_PACKAGE, "arch"):
            is_own = text in (arch, "noarch")
            if text != "src":
                yield name if is_own else f"{name}.{text}"
        elif is_own and place == (*_OF_PACKAGE, "format", "provides", "entry"):
            yield attributes.get("name", "")
        elif is_own and place == (*_OF_PACKAGE, "format", "file"):
            yield text


@dataclass(kw_only=True, slots=True)
class _Builder:
    """Collects a parser's events; `ended` are the elements that ended since it was emptied."""

    path: list[str] = field(default_factory=list)
    attributes: list[Mapping[str, str]] = field(default_factory=list)
    text: str = ""
    ended: list[_Element] = field(default_factory=list)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= _DEEPEST:
            raise Unavailable("its XML is nested too deeply")
        self.path.append(name.rpartition(" ")[2])
        self.attributes.append(attributes)
        self.text = ""

    def characters(self, text: str) -> None:
        self.text += text
        if len(self.text) > _LONGEST:
            raise Unavailable("a text in its XML is too long")

    def end(self, _: str) -> None:
        self.ended.append((tuple(self.path), self.attributes.pop(), self.text.strip()))
        self.path.pop()
        self.text = ""

    def refuse(self, *_: object) -> None:
        """Refuse document types and entities: a few bytes of them can expand to gigabytes."""
        raise Unavailable("its XML declares a document type, which is refused")


def _elements(chunks: Iterable[bytes]) -> Iterator[_Element]:
    """Yield the elements of XML in the order in which they end. Raises `Unavailable`."""
    builder, parser = _Builder(), expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.characters
    try:
        for chunk in chunks:
            parser.Parse(chunk, False)
            yield from builder.ended
            builder.ended.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise Unavailable(f"its XML is damaged: {error}") from error
    yield from builder.ended  # expat may hold elements back until the end


# ---- Compressed files ----


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield the content of an xz, gzip, Zstandard or plain file in chunks. Raises `Unavailable`."""
    inflate: lzma.LZMADecompressor | StreamInflater
    if data.startswith(_XZ):
        inflate = lzma.LZMADecompressor(memlimit=_LARGEST_DICTIONARY)
    elif data.startswith((_GZIP, _ZSTD)):
        inflate = StreamInflater(zstd=data.startswith(_ZSTD))
    else:
        yield data
        return
    size = 0
    for start in range(0, len(data), _CHUNK):
        try:
            chunk = inflate.decompress(data[start : start + _CHUNK])
        except (*DAMAGED, lzma.LZMAError, EOFError) as error:
            raise Unavailable(f"it is damaged: {innermost(error)}") from error
        size += len(chunk)
        if size > LARGEST:
            raise Unavailable(f"larger than {LARGEST >> 20} MiB when unpacked")
        yield chunk
    if not inflate.eof:
        raise Unavailable("it is cut off")
