"""Which Debian mirror to use: the one that this machine's own apt uses, unless one is named."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from builder.model.errors import BadInput, MissingPrerequisite

VARIABLE = "BUILD_IMAGES_MIRROR"
SECURITY_VARIABLE = "BUILD_IMAGES_SECURITY_MIRROR"
NONE = "none"
_OFF = {"no", "false", "without", "off", "disable"}  # of apt's StringToBool


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirror:
    """Base URLs of a Debian archive and of its security archive.

    That is None where none is known, and empty where the user does without.
    """

    main: str
    security: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    uri: str
    suite: str


def find_mirror(
    *, apt: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> Mirror:
    """The mirrors named by $BUILD_IMAGES_MIRROR and $BUILD_IMAGES_SECURITY_MIRROR.

    What is not named there is taken from apt's own sources.
    """
    suites = _own_suites(os_release)
    entries = list(_entries(apt))
    security = _security(entries, suites)
    if main := os.environ.get(VARIABLE):
        return _without_secrets(Mirror(main=main.rstrip("/"), security=security))
    mains = [_resolved(one.uri) for one in entries if one.suite in suites]
    if not mains:
        raise MissingPrerequisite(
            "no Debian mirror is known: this machine's apt names none",
            hint=f"set {VARIABLE} to the URL of a Debian mirror (the folder that holds dists/)",
        )
    return _without_secrets(Mirror(main=mains[0], security=security))


def apt_archives(suites: Collection[str], *, apt: Path = Path("/etc/apt")) -> tuple[str, ...]:
    """The archives of which this machine's apt has one of some suites, without those with users."""
    uris = (
        _resolved(entry.uri) for entry in _entries(apt) if entry.suite.partition("-")[0] in suites
    )
    return tuple(dict.fromkeys(uri for uri in uris if "@" not in urlsplit(uri).netloc))


def _security(entries: Iterable[_Entry], suites: set[str]) -> str | None:
    """The security archive, as `Mirror` holds it."""
    if said := os.environ.get(SECURITY_VARIABLE, "").rstrip("/"):
        return "" if said == NONE else said
    found = (
        _resolved(one.uri)
        for one in entries
        if one.suite.removesuffix("-security") in suites - {one.suite}
    )
    return next(found, None)


def _without_secrets(mirror: Mirror) -> Mirror:
    """The mirror, if neither address holds a password: both stay in images and logs."""
    for address in (mirror.main, mirror.security or ""):
        if "@" in urlsplit(address).netloc:
            raise BadInput(
                "the mirror's address holds a user name or a password, which would stay in images",
                hint=f"name one without in {VARIABLE}",
            )
    return mirror


def _resolved(uri: str) -> str:
    """The first mirror of a list of them, as cloud images name it: `mirror+file:/etc/...`."""
    if not uri.startswith("mirror+file:"):
        return uri
    lines = Path(uri.removeprefix("mirror+file:").removeprefix("//")).read_text().split()
    return next((line.rstrip("/") for line in lines if "://" in line), uri)


def _own_suites(os_release: Path) -> set[str]:
    """The suites under which a Debian machine names its own release; others are third parties'."""
    lines = os_release.read_text().splitlines() if os_release.exists() else []
    fields = dict(line.partition("=")[::2] for line in lines)
    if fields.get("ID") != "debian":
        return set()
    return {
        fields.get("VERSION_CODENAME", "").strip('"'),
        "stable",
        "testing",
        "unstable",
        "sid",
    } - {""}


def _entries(apt: Path) -> Iterator[_Entry]:
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for file in lists:
        if file.exists():
            yield from _one_line_entries(file.read_text())
    for file in sorted((apt / "sources.list.d").glob("*.sources")):
        yield from _deb822_entries(file.read_text())


def _one_line_entries(text: str) -> Iterator[_Entry]:
    """`deb [options] URI SUITE COMPONENT...`, see sources.list(5)."""
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words or words[0] != "deb":
            continue
        if len(words) > 1 and words[1].startswith("["):
            closing = next((n for n, word in enumerate(words) if word.endswith("]")), 1)
            words = [words[0], *words[closing + 1 :]]
        if len(words) >= 4 and "main" in words[3:]:  # noqa: PLR2004 - deb, URI, suite, component
            yield _Entry(uri=words[1].rstrip("/"), suite=words[2])


def _deb822_entries(text: str) -> Iterator[_Entry]:
    """Stanzas of `Types:`, `URIs:`, `Suites:`, `Components:`, see sources.list(5)."""
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = dict(_deb822_fields(stanza))
        if (
            "deb" not in fields.get("types", "").split()
            or fields.get("enabled", "").lower() in _OFF
        ):
            continue
        if "main" not in fields.get("components", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield _Entry(uri=uri.rstrip("/"), suite=suite)


def _deb822_fields(stanza: str) -> Iterator[tuple[str, str]]:
    name, value = "", ""
    for line in [line for line in stanza.splitlines() if not line.startswith("#")]:
        if line[:1].isspace():
            value += " " + line.strip()
            continue
        if name:
            yield name, value
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
    if name:
        yield name, value
