"""Names of packages in a repository for apt, by its `Packages` indices.

https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.facts import ARCHITECTURES
from builder.verify.rehearse.repository_files import NotInRepository, ReadUrl, lines, unpacked

_ENDINGS = (".xz", ".gz", "")  # of which a repository has one at least
_FIELDS = (b"Package: ", b"Provides: ")


def apt_names(read: ReadUrl, archive: str, place: str, arch: str) -> set[str]:
    """The packages of SUITE/COMPONENT in an archive, and what they provide. Raises `OutOfReach`."""
    folder = f"{archive}/dists/{place}/binary-{ARCHITECTURES[arch].debian}"
    for ending in _ENDINGS:
        try:
            data = read(f"{folder}/Packages{ending}")
        except NotInRepository:
            continue
        return {*_names(data)}
    raise NotInRepository(f"it has no {folder.removeprefix(archive).lstrip('/')}/Packages")


def _names(data: bytes) -> Iterator[str]:
    for line in lines(unpacked(data)):
        if line.startswith(_FIELDS):
            for name in line.decode(errors="replace").partition(":")[2].split(","):
                if words := name.split():
                    yield words[0].partition(":")[0]
