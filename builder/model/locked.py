"""`lock.yaml` as values: the files and the base images that images are made from, pinned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

LOCK = "lock.yaml"
DEBIAN_SOURCE = "debian-source:"  # debian-source:PACKAGE/VERSION, upstream's part of a package


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

    def pinned(self, reference: str, arch: str) -> str:
        """`reference@sha256:...` where it is locked, else the reference as it is."""
        digest = self.references.get((reference, arch))
        return f"{reference}@{digest}" if digest else reference
