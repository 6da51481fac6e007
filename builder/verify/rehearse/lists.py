"""Which packages a distribution has, by the lists of repositories that this machine may read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from builder.facts import ARCHITECTURES
from builder.model import BaseImage, PlannedImage
from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.repository_files import NotInRepository, ReadUrl, lines, unpacked
from builder.verify.rehearse.rpm_lists import rpm_names

UBUNTU = "ubuntu"
# https://wiki.ubuntu.com/Releases
UBUNTU_SUITES = {"18.04": "bionic", "20.04": "focal", "22.04": "jammy", "24.04": "noble"}
# The Debian release that an Ubuntu release was made from most of, by its own files
# (/etc/debian_version): Ubuntu's lists cannot be read from a Debian mirror.
# An old one leaves the mirrors; then the next one is taken.
STAND_INS = {
    "18.04": ("buster", "bullseye"),
    "20.04": ("bullseye", "bookworm"),
    "22.04": ("bookworm",),
    "24.04": ("trixie",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Suites:
    """SUITE/COMPONENT of what apt reads. A mirror may lack the `optional` ones: few packages."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def _of_debian(suite: str) -> _Suites:
    return _Suites(required=tuple(f"{suite}/{name}" for name in ("main", "contrib", "non-free")))


def _of_ubuntu(suite: str) -> _Suites:
    """Ubuntu's own image has updates and security enabled, and all four components."""
    components = ("universe", "main", "restricted", "multiverse")
    pockets = [f"{suite}{pocket}" for pocket in ("", "-updates", "-security")]
    places = [f"{pocket}/{component}" for pocket in pockets for component in components]
    return _Suites(required=tuple(places[:2]), optional=tuple(places[2:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Archives:
    """URLs of the repositories whose lists may be read.

    `named` are a site's own, by base. `debian` is this machine's Debian mirror, empty without one;
    `ubuntu` are Ubuntu's archives that its apt names.
    """

    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    debian: str = ""
    ubuntu: tuple[str, ...] = ()

    def of(self, base: BaseImage) -> tuple[str, ...]:
        """Those of a base."""
        if named := self.named.get(base.name):
            return named
        if base.distribution == UBUNTU:
            return self.ubuntu
        return (self.debian,) if self.debian and base.bootstrap else ()


class PackageLists:
    """Names of packages; each list is read once."""

    def __init__(self, read: ReadUrl, archives: Archives) -> None:
        self._read, self._archives = read, archives
        self._of_apt = functools.cache(self._names_for_apt)
        self._of_rpm = functools.cache(self._names_of_rpms)

    def of(self, image: PlannedImage) -> frozenset[str] | str:
        """The names of a base's packages; a text that says why they are not known."""
        base, arch = image.base, image.cell.arch
        urls = self._archives.of(base)
        if not urls:
            return f"no list of the packages of {base.name} can be read here"
        if base.bootstrap:
            return self._of_apt(urls, _of_debian(base.bootstrap.suite), arch)
        if base.distribution == UBUNTU:
            suite = UBUNTU_SUITES.get(base.version, base.version)
            return self._of_apt(urls, _of_ubuntu(suite), arch)
        return self._of_rpm(urls, arch)

    def stand_in(self, image: PlannedImage) -> tuple[str, frozenset[str]] | None:
        """Debian's release in place of an Ubuntu release, and its names; None for other bases."""
        base, debian = image.base, self._archives.debian
        suites = STAND_INS.get(base.version, ()) if base.distribution == UBUNTU and debian else ()
        for suite in suites:
            names = self._of_apt((debian,), _of_debian(suite), image.cell.arch)
            if isinstance(names, frozenset):
                return suite, names
        return None

    def _names_for_apt(
        self, archives: tuple[str, ...], suites: _Suites, arch: str
    ) -> frozenset[str] | str:
        """Those of the first archive that has the architecture: Ubuntu's ports have their own."""
        reasons = []
        for archive in archives:
            try:
                return frozenset(self._names_of_archive(archive, suites, arch))
            except OutOfReach as reason:
                reasons.append(f"the mirror's list of {suites.required[0]}: {reason}")
        return "; ".join(dict.fromkeys(reasons))

    def _names_of_archive(self, archive: str, suites: _Suites, arch: str) -> set[str]:
        names: set[str] = set()
        for place in suites.required:
            names |= apt_names(self._read, archive, place, arch)
        for place in suites.optional:
            try:
                names |= apt_names(self._read, archive, place, arch)
            except NotInRepository:
                continue
        return names

    def _names_of_rpms(self, repositories: tuple[str, ...], arch: str) -> frozenset[str] | str:
        """Those of all repositories; without one of them, a missing name would prove nothing."""
        names: set[str] = set()
        for number, repository in enumerate(repositories, start=1):
            try:
                names |= rpm_names(self._read, repository, arch)
            except OutOfReach as reason:
                return f"repository {number} of {len(repositories)}: {reason}"
        return frozenset(names)


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
