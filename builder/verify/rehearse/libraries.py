"""Shared libraries that wheels want of the host, against the packages that the image installs."""

from __future__ import annotations

import functools
import io
import posixpath
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from builder.facts.libraries import HOST_LIBRARIES, IN_EVERY_IMAGE
from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.resolution import Resolved
from builder.verify.rehearse.trials import LIBRARIES, Trial, failed, not_tried, passed

LARGEST_WHEEL = 64 << 20  # bytes; a larger one would take longer to fetch than all other trials

ReadWheel = Callable[[str], bytes]
SizeOf = Callable[[str], int]


class LibraryTrials:
    """Tries the wheels of many images; each wheel is read once."""

    def __init__(self, read: ReadWheel, size_of: SizeOf) -> None:
        self._read, self._size_of = read, size_of
        self._needed = functools.cache(self._needed_by)

    def of(
        self, packages: Iterable[Resolved], installed: Collection[str], line: int
    ) -> Iterator[Trial]:
        """A trial for each wheel that holds programs; `installed` are the run-time packages."""
        for package in packages:
            name = posixpath.basename(package.url)
            if package.source is not None or name.endswith("-none-any.whl"):
                continue
            yield self._trial(name, package.url, installed, line)

    def _trial(self, name: str, url: str, installed: Collection[str], line: int) -> Trial:
        needed = self._needed(url)
        if isinstance(needed, str):
            return not_tried(LIBRARIES, name, needed, line)
        lost, unknown = [], []
        for soname in sorted(needed):
            library = HOST_LIBRARIES.get(soname)
            if library is None:
                unknown.append(soname)
            elif not {library.deb, library.rpm, *library.with_it} & {*installed}:
                lost.append(f"{soname} ({library.deb}; {library.rpm})")
        if lost:
            text = f"no package of the image brings {', '.join(lost)}"
            return failed(LIBRARIES, name, text, line, "name the packages under runtime")
        if unknown:
            reason = f"which packages bring {', '.join(unknown)} is in no table"
            return not_tried(LIBRARIES, name, reason, line)
        found = f"; {', '.join(sorted(needed))} come with packages" if needed else ""
        return passed(LIBRARIES, name, f"it finds its libraries{found}", line)

    def _needed_by(self, url: str) -> frozenset[str] | str:
        """What the libraries of a wheel are linked to outside of it; a text that says why not."""
        size = self._size_of(url)
        if size > LARGEST_WHEEL:
            return f"the wheel has {size >> 20} MiB, and is not read for this"
        try:
            return frozenset(needed_outside(self._read(url)))
        except OutOfReach as reason:
            return str(reason)


def needed_outside(wheel: bytes) -> set[str]:
    """What the programs of a wheel are linked to, but for its own libraries and every image's."""
    own: set[str] = set()
    needed: set[str] = set()
    with zipfile.ZipFile(io.BytesIO(wheel)) as zipped:
        for path in zipped.namelist():
            name = posixpath.basename(path)
            if ".so" in name:
                own.add(name)
                needed |= _linked_to(zipped.read(path))
    return {soname for soname in needed - own if not IN_EVERY_IMAGE.fullmatch(soname)}


def _linked_to(program: bytes) -> set[str]:
    try:
        elf = ELFFile(io.BytesIO(program))
    except ELFError:
        return set()  # a text that is called as a library is
    return {
        str(tag.needed)  # type: ignore[attr-defined]  # of this kind of tag alone
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags()
        if tag.entry.d_tag == "DT_NEEDED"
    }
