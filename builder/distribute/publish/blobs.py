"""Blobs that a registry lacks; each is brought once: mounted if possible, else sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builder.distribute.threads import in_threads
from builder.registry import Descriptor, Registry, Source
from builder.system.files import unnamed
from builder.system.home import Home

THERE, MOUNTED, SENT, MISSING = "there", "mounted", "sent", "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobTransfer:
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
    """Numbers and bytes of blobs, by the way in which they were brought."""

    blobs: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def note(self, how: str, size: int) -> None:
        """One more."""
        self.blobs[how] = self.blobs.get(how, 0) + 1
        self.sizes[how] = self.sizes.get(how, 0) + size


def send_all(transfers: Iterable[BlobTransfer], *, jobs: int, only_look: bool = False) -> Traffic:
    """Bring all that is missing, the largest first; `only_look` says what would be brought.

    The first failure ends all of it, and is raised.
    """
    once = {(transfer.registry.name, transfer.blob.digest): transfer for transfer in transfers}
    largest_first = sorted(once.values(), key=lambda transfer: -transfer.blob.size)
    by_digest: dict[str, list[BlobTransfer]] = {}
    for transfer in largest_first:
        by_digest.setdefault(transfer.blob.digest, []).append(transfer)
    groups = list(by_digest.values())

    def stop() -> None:
        for transfer in largest_first:
            transfer.stop()

    traffic = Traffic()
    ways = in_threads(partial(_bring, only_look=only_look), groups, jobs=jobs, stop=stop)
    for group, outcomes in zip(groups, ways, strict=True):
        for transfer, how in zip(group, outcomes, strict=True):
            traffic.note(how, transfer.blob.size)
    return traffic


def _bring(group: Sequence[BlobTransfer], *, only_look: bool) -> list[str]:
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
        *(_shared(other, first, lacking=how != THERE, only_look=only_look) for other in others),
    ]


def _shared(transfer: BlobTransfer, first: BlobTransfer, *, lacking: bool, only_look: bool) -> str:
    """See to it that a repository has what the first one has by now.

    Where that was lacking it, this one is likely to: it mounts the blob without being asked.
    """
    registry, digest, at = transfer.registry, transfer.blob.digest, first.registry.repository
    if lacking and not only_look and registry.mount_blob(digest, at):
        return MOUNTED
    if registry.has_blob(digest):
        return THERE
    return MOUNTED if only_look else _brought(transfer, [] if lacking else [at])


def _brought(transfer: BlobTransfer, at: Sequence[str]) -> str:
    """Bring a repository a blob that it lacks, and that others may have."""
    if any(transfer.registry.mount_blob(transfer.blob.digest, name) for name in at):
        return MOUNTED
    transfer.send()
    return SENT


def _relatives_with(transfer: BlobTransfer) -> Sequence[str]:
    """A relative that has the blob, if one has."""
    for name in transfer.relatives:
        if transfer.registry.sibling(name).has_blob(transfer.blob.digest):
            return [name]
    return []
