"""The Debian mirror: the one that this machine's apt uses, unless the user names another."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import urlsplit

from builder.model import BaseImage
from builder.model.errors import BadInput, MissingPrerequisite

VARIABLE = "BUILD_IMAGES_MIRROR"
SECURITY_VARIABLE = "BUILD_IMAGES_SECURITY_MIRROR"
NONE = "none"
SECURITY = "security"  # the pocket
_OFF = {"no", "false", "without", "off", "disable"}  # of apt's StringToBool


@dataclass(frozen=True, kw_only=True, slots=True)
class DebianMirror:
    """Base URLs of a Debian archive and of its security archive.

    `security` is None if none is known, and empty if the user does without it.
    """

    main: str
    security: str | None


_Entry = tuple[str, str]  # the URI of an archive, and a suite


def find_mirror(
    *, apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> DebianMirror:
    """Return the mirrors named by $BUILD_IMAGES_MIRROR and $BUILD_IMAGES_SECURITY_MIRROR.

    A mirror that these variables do not name is taken from this machine's apt sources.
    """
    security = security_archive(apt=apt, os_release=os_release)
    if main := os.environ.get(VARIABLE):
        return DebianMirror(main=_public(main.rstrip("/"), VARIABLE), security=security)
    suites = _own_suites(os_release)
    mains = [_resolved(uri) for uri, suite in _entries(apt) if suite in suites]
    if not mains:
        raise MissingPrerequisite(
            "no Debian mirror is known: this machine's apt has none",
            hint=f"set {VARIABLE} to the URL of a Debian mirror (the folder that holds dists/)",
        )
    return DebianMirror(main=_public(mains[0], VARIABLE), security=security)


def security_archive(
    *, apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> str | None:
    """Return the security archive of `find_mirror`, which may have no mirror beside it."""
    if named := os.environ.get(SECURITY_VARIABLE, "").rstrip("/"):
        return "" if named == NONE else _public(named, SECURITY_VARIABLE)
    suites = _own_suites(os_release)
    for uri, suite in _entries(apt):
        if suite.removesuffix("-security") in suites - {suite}:
            return _public(_resolved(uri), SECURITY_VARIABLE)
    return None


def machine_archives() -> Callable[[BaseImage], Iterator[str]]:
    """Return a function that says which archives of this machine serve a base, and who names them.

    The base is made here. Archives that are not known are left out.
    """
    main, security = "", None
    with contextlib.suppress(MissingPrerequisite, BadInput):
        security = security_archive()
        main = find_mirror().main
    updates = f"security updates from {security}" if security else "no security updates"

    def of(base: BaseImage) -> Iterator[str]:
        if main and not base.mirrors:
            yield f"fetched from {main} ({_namer(VARIABLE)})"
        if security is not None and not base.mirrors[1:] and takes_security(base):
            yield f"{updates} ({_namer(SECURITY_VARIABLE)})"

    return of


def _namer(variable: str) -> str:
    return variable if os.environ.get(variable) else "as apt on this machine"


def mirror_of(base: BaseImage, machine: Callable[[], DebianMirror]) -> DebianMirror:
    """Return the mirror of a base: the site's for this base, else the machine's."""
    if not base.mirrors:
        return machine()
    main, *own = base.mirrors
    return DebianMirror(main=main, security=own[0] if own else security_archive())


def takes_security(base: BaseImage) -> bool:
    """Return whether a base is made here with security updates, where they are not turned off."""
    return bool(base.bootstrap and SECURITY in base.bootstrap.pockets)


def apt_archives(suites: Collection[str], *, apt: Path = Path("/etc/apt")) -> tuple[str, ...]:
    """Return the archives of this machine's apt for some suites, without URLs that name a user."""
    uris = (_resolved(uri) for uri, suite in _entries(apt) if suite.partition("-")[0] in suites)
    return tuple(dict.fromkeys(uri for uri in uris if "@" not in urlsplit(uri).netloc))


def _public(address: str, variable: str) -> str:
    """Return the address; raise `BadInput` for a password, which would stay in images and logs."""
    if "@" in urlsplit(address).netloc:
        raise BadInput(
            "the mirror's address holds a user name or a password, which would stay in images",
            hint=f"set {variable} to an address without them",
        )
    return address


def _resolved(uri: str) -> str:
    """Return the first mirror in the list of a `mirror+file:/etc/...`, as cloud images have it."""
    if not uri.startswith("mirror+file:"):
        return uri
    lines = Path(uri.removeprefix("mirror+file:").removeprefix("//")).read_text().split()
    return next((line.rstrip("/") for line in lines if "://" in line), uri)


def _own_suites(os_release: Path) -> set[str]:
    """Return the suites of this machine's Debian release; third parties use other names."""
    lines = os_release.read_text().splitlines() if os_release.exists() else []
    fields = dict(line.partition("=")[::2] for line in lines)
    if fields.get("ID") != "debian":
        return set()
    codename = fields.get("VERSION_CODENAME", "").strip('"')
    return {codename, "stable", "testing", "unstable", "sid"} - {""}


def _entries(apt: Path) -> Iterator[_Entry]:
    for file in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]:
        if file.exists():
            yield from _one_line_entries(file.read_text())
    for file in sorted((apt / "sources.list.d").glob("*.sources")):
        yield from _deb822_entries(file.read_text())


def _one_line_entries(text: str) -> Iterator[_Entry]:
    """Yield entries of lines `deb [options] URI SUITE COMPONENT...`, see sources.list(5)."""
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0] != "deb":
            continue
        if len(words) > 1 and words[1].startswith("["):
            closing = next((n for n, word in enumerate(words) if word.endswith("]")), 1)
            words = [words[0], *words[closing + 1 :]]
        if len(words) >= 4 and "main" in words[3:]:  # noqa: PLR2004 - deb, URI, suite, component
            yield words[1].rstrip("/"), words[2]


def _deb822_entries(text: str) -> Iterator[_Entry]:
    """Yield entries of stanzas of `Types:`, `URIs:`, `Suites:` and so on, see sources.list(5)."""
    lines = "\n".join(line.rstrip() for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\n+", lines.strip()):
        fields = HeaderParser().parsestr(stanza)
        words = {name: fields.get(name, "").split() for name in ("Types", "URIs", "Suites")}
        is_on = fields.get("Enabled", "").lower() not in _OFF
        if is_on and "deb" in words["Types"] and "main" in fields.get("Components", "").split():
            for uri, suite in itertools.product(words["URIs"], words["Suites"]):
                yield uri.rstrip("/"), suite
