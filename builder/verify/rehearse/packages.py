"""Which packages a distribution has, by the lists of repositories that this machine may read."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from builder.model import BaseImage, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.repository_files import NotInRepository, ReadUrl, lines, unpacked
from builder.verify.rehearse.rpm_lists import rpm_names
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import PACKAGES, Trial, failed, not_tried, passed

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


_APT = "apt-get"
_INSTALLERS = frozenset({_APT, "dnf", "yum", "microdnf"})
_SHOWN = 6
NVIDIAS = ("cuda-", "libcublas", "libcudnn", "libnccl")
_FILES = (".rpm", ".deb")
# The files that lists of RPMs name: https://github.com/rpm-software-management/createrepo_c
_LISTED_FOLDERS = ("/etc/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/")


class Lists(Protocol):
    """Names of packages by base and architecture."""

    def of(self, image: PlannedImage) -> frozenset[str] | str:
        """The names of a base's packages; a text that says why they are not known."""

    def stand_in(self, image: PlannedImage) -> tuple[str, frozenset[str]] | None:
        """A release of the same family in its place, and its names; None if there is none."""


class PackageTrials:
    """Tries the packages that images install against lists of packages."""

    def __init__(self, lists: Lists) -> None:
        self._lists = lists

    def of(self, steps: Iterable[Step], image: PlannedImage) -> Iterator[Trial]:
        requests = {step.line: names for step in steps if (names := installed_by(step))}
        if not requests:
            return
        known = self._lists.of(image)
        for line, names in requests.items():
            for reason, group in itertools.groupby(sorted(names, key=_unlisted), key=_unlisted):
                own = [*group]
                if reason:
                    yield not_tried(PACKAGES, shown(own), reason, line)
                elif isinstance(known, str):
                    yield self._by_stand_in(image, own, known, line)
                else:
                    yield _by_list(image, own, known, line)

    def _by_stand_in(self, image: PlannedImage, names: list[str], reason: str, line: int) -> Trial:
        """Against a release of the same family: what that lacks, the base may have all the same."""
        stand_in = self._lists.stand_in(image)
        if stand_in is None:
            return not_tried(PACKAGES, shown(names), reason, line)
        suite, known = stand_in
        if unknown := [name for name in names if name not in known]:
            text = f"{reason}, and Debian's {suite} in its place has no {', '.join(unknown)}"
            return not_tried(PACKAGES, shown(names), text, line)
        text = f"each is in the list of Debian's {suite}, which stands in for {image.base.name}"
        return passed(PACKAGES, shown(names), text, line)


def _unlisted(name: str) -> str:
    """Why no list of the distribution has a name; empty for a name that one may have."""
    if name.startswith(NVIDIAS):
        return "the lists of NVIDIA's repositories are not kept here"
    if name.endswith(_FILES) or "://" in name:
        return "a file, which no list names"
    if "/" in name and not name.startswith(_LISTED_FOLDERS):
        return "lists of packages name no files of that folder"
    return "lists of packages name no groups" if name.startswith("@") else ""


def _by_list(image: PlannedImage, names: list[str], known: frozenset[str], line: int) -> Trial:
    unknown = [name for name in names if not _is_known(name, known, image.cell.arch)]
    if not unknown:
        return passed(PACKAGES, shown(names), "each is in the distribution's list", line)
    places = ", ".join(f"{name}{_place(image, name)}" for name in unknown)
    text = f"{image.base.name} for {image.cell.arch} has no package {places}"
    return failed(PACKAGES, shown(names), text, line, _hint(unknown, known))


def _is_known(name: str, known: frozenset[str], arch: str) -> bool:
    """Whether a list has a name, as dnf and apt take them: with version, architecture or `*`."""
    if name in known:
        return True
    if any(letter in name for letter in "*?["):
        return bool(fnmatch.filter(known, name))
    for ending in (f".{arch}", ".noarch"):
        name = name.removesuffix(ending)
    return name in known or any(before in known for before in _without_version(name))


def _without_version(name: str) -> Iterator[str]:
    """What is before the version and the release in NAME-VERSION and NAME-VERSION-RELEASE."""
    words = name.split("-")
    for count in (1, 2):
        endings = words[-count:]
        if len(words) > count and all(word[:1].isdigit() for word in endings):
            yield "-".join(words[:-count])


def _hint(unknown: list[str], known: frozenset[str]) -> str:
    names = (difflib.get_close_matches(name, known, n=1, cutoff=0.75) for name in unknown)
    guesses = [f'"{close[0]}"' for close in names if close]
    if guesses:
        return f"did you mean {', '.join(guesses)}?"
    return "if another repository has it, name that too: packages in site.yaml"


def _place(image: PlannedImage, name: str) -> str:
    """Where a recipe or the base names a package; empty where a block installs it by itself."""
    for stage in image.stages:
        for use in (*stage.development, *stage.runtime):
            for argument, value in use.arguments.items():
                if name in _texts(value):
                    return f" ({use.where.file}:{use.lines.get(argument, use.where.line)})"
    mpi = image.mpi
    of_base = mpi is not None and name in (*mpi.development, *mpi.runtime)
    return f" ({image.base.where.file}: mpi)" if of_base else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.partition("=")[0]
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(_texts, value))
    elif isinstance(value, Mapping):
        yield from _texts([*value.values()])


def installed_by(step: Step) -> tuple[str, ...]:
    """The names of the packages that a step installs, without versions."""
    if step.program not in _INSTALLERS or "install" not in step.argv:
        return ()
    words = step.argv[step.argv.index("install") + 1 :]
    names = (word.partition("=")[0] for word in words if not word.startswith("-"))
    return tuple(name for name in names if name)


def shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
