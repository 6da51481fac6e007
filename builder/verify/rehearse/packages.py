"""Check distribution packages against repositories' lists that this machine can read."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from builder.model import BaseImage, PlannedImage
from builder.model.errors import first_of, suggestion
from builder.verify.rehearse.repositories import apt_names, rpm_names
from builder.verify.rehearse.servers import NotOnServer, ReadUrl, Unavailable
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import PACKAGES, Trial, failed, not_tried, passed

UBUNTU = "ubuntu"
# https://wiki.ubuntu.com/Releases
UBUNTU_SUITES = {"18.04": "bionic", "20.04": "focal", "22.04": "jammy", "24.04": "noble"}
# The Debian release that most packages of an Ubuntu release come from, by its /etc/debian_version:
# a Debian mirror has no lists of Ubuntu. Mirrors drop old releases; then the next one is used.
STAND_INS = {
    "18.04": ("buster", "bullseye"),
    "20.04": ("bullseye", "bookworm"),
    "22.04": ("bookworm",),
    "24.04": ("trixie",),
}
_INSTALLERS = frozenset({"apt-get", "dnf", "yum", "microdnf"})
_SHOWN = 6
# Folders with files that RPM lists name: https://github.com/rpm-software-management/createrepo_c
_LISTED_FOLDERS = ("/etc/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/")
_VERSION = re.compile(r"-\d[^-]*$")  # or the release in NAME-VERSION-RELEASE

# SUITE/COMPONENT of the lists that apt reads: required ones, and those that a mirror may lack.
_Components = tuple[tuple[str, ...], tuple[str, ...]]


def _of_debian(suite: str) -> _Components:
    return tuple(f"{suite}/{name}" for name in ("main", "contrib", "non-free")), ()


def _of_ubuntu(suite: str) -> _Components:
    """Ubuntu's own image has updates and security enabled, and all four components."""
    pockets = [f"{suite}{pocket}" for pocket in ("", "-updates", "-security")]
    names = ("universe", "main", "restricted", "multiverse")
    components = tuple(f"{pocket}/{name}" for pocket in pockets for name in names)
    return components[:2], components[2:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Archives:
    """URLs of the repositories whose lists can be read.

    `named` are a site's own, by base. `debian` is this machine's Debian mirror, empty without one;
    `ubuntu` are the Ubuntu archives in its apt configuration.
    """

    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    debian: str = ""
    ubuntu: tuple[str, ...] = ()

    def of(self, base: BaseImage) -> tuple[str, ...]:
        if named := self.named.get(base.name):
            return named
        if base.distribution == UBUNTU:
            return self.ubuntu
        own = base.mirrors[:1] or (self.debian,)
        return own if own[0] and base.bootstrap else ()


class PackageTrials:
    """Tries the packages that images install against lists of packages; each is read once."""

    def __init__(self, read: ReadUrl, archives: Archives) -> None:
        self._read, self._archives = read, archives
        self._of_apt = functools.cache(self._names_for_apt)
        self._of_rpm = functools.cache(self._names_of_rpms)

    def of(self, steps: Iterable[Step], image: PlannedImage) -> Iterator[Trial]:
        for step in steps:
            names = sorted(installed_by(step), key=_unlisted)
            for reason, group in itertools.groupby(names, key=_unlisted):
                if reason:
                    yield not_tried(PACKAGES, shown([*group]), reason, step.line)
                else:
                    yield self._trial(image, [*group], step.line)

    def _trial(self, image: PlannedImage, names: list[str], line: int) -> Trial:
        """Look in the base's list, or in that of a related release, which may lack packages."""
        known = self._known(image)
        if not isinstance(known, str):
            return _by_list(image, names, known, line)
        suite, of_family = self._stand_in(image)
        unknown = [name for name in names if name not in of_family]
        if not suite:
            return not_tried(PACKAGES, shown(names), known, line)
        if unknown:
            text = f"{known}, and its stand-in Debian {suite} has no {', '.join(unknown)}"
            return not_tried(PACKAGES, shown(names), text, line)
        text = f"each is in the list of Debian's {suite}, which stands in for {image.base.name}"
        return passed(PACKAGES, shown(names), text, line)

    def _known(self, image: PlannedImage) -> frozenset[str] | str:
        """Return the names of a base's packages, or the reason why they are not known."""
        base, arch = image.base, image.cell.arch
        urls = self._archives.of(base)
        if not urls:
            return f"no list of the packages of {base.name} is available"
        if base.bootstrap:
            return self._of_apt(urls, _of_debian(base.bootstrap.suite), arch)
        if base.distribution == UBUNTU:
            suite = UBUNTU_SUITES.get(base.version, base.version)
            return self._of_apt(urls, _of_ubuntu(suite), arch)
        return self._of_rpm(urls, arch)

    def _stand_in(self, image: PlannedImage) -> tuple[str, frozenset[str]]:
        """Return the Debian release that replaces an Ubuntu release, and its names; or empty."""
        base, debian = image.base, self._archives.debian
        if base.distribution == UBUNTU and debian:
            for suite in STAND_INS.get(base.version, ()):
                names = self._of_apt((debian,), _of_debian(suite), image.cell.arch)
                if isinstance(names, frozenset):
                    return suite, names
        return "", frozenset()

    def _names_for_apt(
        self, archives: tuple[str, ...], components: _Components, arch: str
    ) -> frozenset[str] | str:
        """Read the first archive that has the architecture: Ubuntu's ports have their own."""
        required, optional = components
        reasons = []
        for archive in archives:
            names: set[str] = set()
            try:
                for component in (*required, *optional):
                    may_lack = (NotOnServer,) if component in optional else ()
                    with contextlib.suppress(*may_lack):
                        names |= apt_names(self._read, archive, component, arch)
                return frozenset(names)
            except Unavailable as reason:
                reasons.append(f"the mirror's list of {required[0]}: {reason}")
        return "; ".join(dict.fromkeys(reasons))

    def _names_of_rpms(self, repositories: tuple[str, ...], arch: str) -> frozenset[str] | str:
        """Read all repositories: if one is missing, a missing name proves nothing."""
        names: set[str] = set()
        for number, repository in enumerate(repositories, start=1):
            try:
                names |= rpm_names(self._read, repository, arch)
            except Unavailable as reason:
                return f"repository {number} of {len(repositories)}: {reason}"
        return frozenset(names)


def _unlisted(name: str) -> str:
    """Return why the distribution's lists cannot contain a name; empty if they can."""
    if name.startswith(("cuda-", "libcublas", "libcudnn", "libnccl")):
        return "the lists of NVIDIA's repositories are not available"
    if name.endswith((".rpm", ".deb")) or "://" in name:
        return "it is a file, and lists of packages do not contain it"
    if "/" in name and not name.startswith(_LISTED_FOLDERS):
        return "lists of packages do not contain files of that folder"
    return "lists of packages contain no groups" if name.startswith("@") else ""


def _by_list(image: PlannedImage, names: list[str], known: frozenset[str], line: int) -> Trial:
    unknown = [name for name in names if not _is_known(name, known, image.cell.arch)]
    if not unknown:
        return passed(PACKAGES, shown(names), "each is in the distribution's list", line)
    places = ", ".join(f"{name}{_place(image, name)}" for name in unknown)
    text = f"{image.base.name} for {image.cell.arch} has no package {places}"
    return failed(PACKAGES, shown(names), text, line, _hint(unknown, known))


def _is_known(name: str, known: frozenset[str], arch: str) -> bool:
    """Look a name up as dnf and apt do: with version, architecture or `*`."""
    if name in known or fnmatch.filter(known, name):
        return True
    bare = name.removesuffix(f".{arch}").removesuffix(".noarch")
    without_release = _VERSION.sub("", bare)
    return not known.isdisjoint({bare, without_release, _VERSION.sub("", without_release)})


def _hint(unknown: list[str], known: frozenset[str]) -> str:
    guesses = (suggestion(name, known, '"{}"', cutoff=0.75) for name in unknown)
    if text := ", ".join(filter(None, guesses)):
        return f"did you mean {text}?"
    return "if another repository has it, add that one to packages in site.yaml"


def _place(image: PlannedImage, name: str) -> str:
    """Return where a recipe or the base names a package; empty if a block installs it by itself."""
    for stage in image.stages:
        for use in (*stage.development, *stage.runtime):
            for argument, value in use.arguments.items():
                if name in _texts(value):
                    return f" ({use.where.file}:{use.lines.get(argument, use.where.line)})"
    if image.mpi and name in (*image.mpi.development, *image.mpi.runtime):
        return f" ({image.base.where.file}: mpi)"
    return ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.partition("=")[0]
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(_texts, value))
    elif isinstance(value, Mapping):
        yield from _texts([*value.values()])


def installed_by(step: Step) -> tuple[str, ...]:
    """Return the names of the packages that a step installs, without versions."""
    if step.program not in _INSTALLERS or "install" not in step.argv:
        return ()
    words = step.argv[step.argv.index("install") + 1 :]
    names = (word.partition("=")[0] for word in words if not word.startswith("-"))
    return tuple(filter(None, names))


def shown(names: list[str]) -> str:
    """Return the first names, and the number of further names."""
    return first_of(names, _SHOWN)
