"""Which blobs a registry lacks, and how each gets there once: mounted if it can be, else sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builder.distribute.publish.threads import in_threads
from builder.registry import Descriptor, Registry, Source
from builder.system.atomic import unnamed
from builder.system.home import Home

THERE, MOUNTED, SENT, MISSING = "there", "mounted", "sent", "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A blob that a repository has to have: a file's, bytes, or another place's.

    `relatives` are repositories of the same registry that may have it.
    """

    registry: Registry
    blob: Descriptor
    origin: Path | bytes | Source
    relatives: tuple[str, ...] = ()

    def send(self) -> None:
        """Upload it; the repository is known not to have it."""
        if not isinstance(self.origin, Source):
            self.registry.write_blob(self.origin, digest=self.blob.digest, missing=True)
            return
        # Python tries out a folder for temporary files by a file that may be left in it.
        folder = Home.of_environment().path
        folder.mkdir(parents=True, exist_ok=True)
        with unnamed(folder) as file:
            self.origin.read_blob(self.blob, file)
            self.registry.write_blob(file, digest=self.blob.digest, missing=True)

    def stop(self) -> None:
        """End what is under way with its registries."""
        self.registry.stop()
        if isinstance(self.origin, Source):
            self.origin.stop()


@dataclass(kw_only=True, slots=True)
class Traffic:
    """How many blobs went how, and their bytes."""

    blobs: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def note(self, how: str, size: int) -> None:
        """One more."""
        self.blobs[how] = self.blobs.get(how, 0) + 1
        self.sizes[how] = self.sizes.get(how, 0) + size


def send_all(wanted: Iterable[Wanted], *, jobs: int, only_look: bool = False) -> Traffic:
    """Bring all that is missing, the largest first; `only_look` says what would be brought.

    The first failure ends all of it, and is raised.
    """
    once = {(one.registry.name, one.blob.digest): one for one in wanted}
    largest_first = sorted(once.values(), key=lambda one: -one.blob.size)
    by_digest: dict[str, list[Wanted]] = {}
    for one in largest_first:
        by_digest.setdefault(one.blob.digest, []).append(one)
    groups = list(by_digest.values())

    def stop() -> None:
        for one in largest_first:
            one.stop()

    traffic = Traffic()
    ways = in_threads(partial(_bring, only_look=only_look), groups, jobs=jobs, stop=stop)
    for group, some in zip(groups, ways, strict=True):
        for one, how in zip(group, some, strict=True):
            traffic.note(how, one.blob.size)
    return traffic


def _bring(group: Sequence[Wanted], *, only_look: bool) -> list[str]:
    """See to it that some repositories have the same blob; how that went in each."""
    first, *others = group
    if first.registry.has_blob(first.blob.digest):
        how = THERE
    elif only_look:
        how = MOUNTED if _relatives_with(first) else MISSING
    else:
        how = _brought(first, _relatives_with(first))
    return [
        how,
        *(_shared(one, first, lacking=how != THERE, only_look=only_look) for one in others),
    ]


def _shared(wanted: Wanted, first: Wanted, *, lacking: bool, only_look: bool) -> str:
    """See to it that a repository has what the first one has by now.

    Where that was lacking it, this one is likely to: it mounts the blob without being asked.
    """
    registry, digest, at = wanted.registry, wanted.blob.digest, first.registry.repository
    if lacking and not only_look and registry.mount_blob(digest, at):
        return MOUNTED
    if registry.has_blob(digest):
        return THERE
    return MOUNTED if only_look else _brought(wanted, [] if lacking else [at])


def _brought(wanted: Wanted, at: Sequence[str]) -> str:
    """Bring a repository a blob that it lacks, and that others may have."""
    if any(wanted.registry.mount_blob(wanted.blob.digest, one) for one in at):
        return MOUNTED
    wanted.send()
    return SENT


def _relatives_with(wanted: Wanted) -> Sequence[str]:
    """A relative that has the blob, if one has."""
    for name in wanted.relatives:
        if wanted.registry.sibling(name).has_blob(wanted.blob.digest):
            return [name]
    return []
