"""`lock.yaml` as values: the files and the base images that images are made from, pinned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

LOCK = "lock.yaml"
DEBIAN_SOURCE = "debian-source:"  # debian-source:PACKAGE/VERSION, upstream's part of a package
LOCAL_SOURCE = "local:"  # local:PATH, a file of the project: an archive that may not be passed on


def source_folder(recipe: str) -> str:
    """Where an image has the files that a recipe's steps are made from, until they are used."""
    return f"/opt/build-images/sources/{recipe}"


def locked_url(asked: str) -> str:
    """The URL by which a source is locked, of one that a block was given."""
    return asked.rpartition("/")[0] if asked.startswith(DEBIAN_SOURCE) else asked


def _with_file(url: str) -> str:
    """A URL as blocks can be given it before it is locked: Debian's file names are guessed."""
    if not url.startswith(DEBIAN_SOURCE):
        return url
    package, _, version = url.removeprefix(DEBIAN_SOURCE).partition("/")
    return f"{url}/{package}_{version}.orig.tar.xz"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedSource:
    """One file that is downloaded while an image is built.

    `url` is what recipes and hpccm's blocks ask for; `mirrors` are URLs of the same bytes. `file`
    is its name, `sha256` in hexadecimal, `size` in bytes. `recipes` are those whose blocks ask for
    it. `path` is where a Debian archive holds the file, for `debian-source:` alone. `line` is its
    line in lock.yaml.
    """

    url: str
    file: str
    sha256: str
    size: int
    mirrors: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    path: str = ""
    line: int = field(default=0, compare=False)

    @property
    def asked(self) -> str:
        """The URL as blocks are given it: its last part is the name of the file, always."""
        return f"{self.url}/{self.file}" if self.path else self.url

    @property
    def in_context(self) -> str:
        """Its path in a spec's folder, from where the specs copy it in."""
        return f"files/sources/{self.sha256[:12]}/{self.file}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """What lock.yaml pins: sources by URL, and digests (`sha256:...`) by reference and arch."""

    sources: Mapping[str, LockedSource] = field(default_factory=dict)
    references: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of_recipes(self, names: Collection[str]) -> tuple[LockedSource, ...]:
        """The sources that any of these recipes asks for, by URL."""
        found = [one for one in self.sources.values() if not set(names).isdisjoint(one.recipes)]
        return tuple(sorted(found, key=lambda one: one.url))

    def asked(self, urls: Sequence[str]) -> str:
        """Of some alternatives the one that is locked, as blocks are given it; else the first."""
        locked = next((self.sources[url].asked for url in urls if url in self.sources), "")
        return locked or _with_file(urls[0])

    def pinned(self, reference: str, arch: str) -> str:
        """`name@sha256:...` where it is locked, else the reference as it is.

        The tag is left out: not every engine takes a reference that has both.
        """
        digest = self.references.get((reference, arch))
        if not digest:
            return reference
        folder, slash, name = reference.partition("@")[0].rpartition("/")
        return f"{folder}{slash}{name.partition(':')[0]}@{digest}"
