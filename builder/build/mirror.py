"""The Debian mirror: the one that this machine's apt uses, unless the user names another."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import urlsplit

from builder.model import BaseImage
from builder.model.errors import BadInput, MissingPrerequisite

VARIABLE = "BUILD_IMAGES_MIRROR"
SECURITY_VARIABLE = "BUILD_IMAGES_SECURITY_MIRROR"
NONE = "none"
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
    suites = _own_suites(os_release)
    entries = list(_entries(apt))
    security = _security(entries, suites)
    if main := os.environ.get(VARIABLE):
        return _without_secrets(DebianMirror(main=main.rstrip("/"), security=security))
    mains = [_resolved(uri) for uri, suite in entries if suite in suites]
    if not mains:
        raise MissingPrerequisite(
            "no Debian mirror is known: this machine's apt has none",
            hint=f"set {VARIABLE} to the URL of a Debian mirror (the folder that holds dists/)",
        )
    return _without_secrets(DebianMirror(main=mains[0], security=security))


def machine_mirror() -> str:
    """Return this machine's Debian archive, and who names it; empty if there is none."""
    try:
        main = find_mirror().main
    except (MissingPrerequisite, BadInput):
        return ""
    return f"{main} ({VARIABLE if os.environ.get(VARIABLE) else 'as apt on this machine'})"


def mirror_of(base: BaseImage, machine: Callable[[], DebianMirror]) -> DebianMirror:
    """Return the mirror of a base: the site's for this base, else the machine's."""
    if not base.mirrors:
        return machine()
    main, *own = base.mirrors
    if own:
        return DebianMirror(main=main, security=own[0])
    with contextlib.suppress(MissingPrerequisite):
        return DebianMirror(main=main, security=machine().security)
    return DebianMirror(main=main, security=None)


def apt_archives(suites: Collection[str], *, apt: Path = Path("/etc/apt")) -> tuple[str, ...]:
    """Return the archives of this machine's apt for some suites, without URLs that name a user."""
    uris = (_resolved(uri) for uri, suite in _entries(apt) if suite.partition("-")[0] in suites)
    return tuple(dict.fromkeys(uri for uri in uris if "@" not in urlsplit(uri).netloc))


def _security(entries: Iterable[_Entry], suites: set[str]) -> str | None:
    """Return the security archive, as `DebianMirror` holds it."""
    if named := os.environ.get(SECURITY_VARIABLE, "").rstrip("/"):
        return "" if named == NONE else named
    archives = (
        _resolved(uri)
        for uri, suite in entries
        if suite.removesuffix("-security") in suites - {suite}
    )
    return next(archives, None)


def _without_secrets(mirror: DebianMirror) -> DebianMirror:
    """Return the mirror; raise `BadInput` for a password, which would stay in images and logs."""
    for address in (mirror.main, mirror.security or ""):
        if "@" in urlsplit(address).netloc:
            raise BadInput(
                "the mirror's address holds a user name or a password, which would stay in images",
                hint=f"set {VARIABLE} to an address without them",
            )
    return mirror


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
