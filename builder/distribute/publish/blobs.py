"""Transfer the blobs that a registry lacks, each once: mounted if possible, else sent."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builder.registry import Descriptor, Registry, Source
from builder.system.files import unnamed
from builder.system.home import Home
from builder.system.threads import in_threads

THERE, MOUNTED, SENT, MISSING = "there", "mounted", "sent", "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobTransfer:
    """A blob that a repository needs; its origin is a file, bytes, or another repository.

    `relatives` are repositories of the same registry that may have the blob.
    """

    registry: Registry
    blob: Descriptor
    origin: Path | bytes | Source
    relatives: tuple[str, ...] = ()

    def send(self) -> None:
        """Upload the blob; call this only if the repository lacks it."""
        if not isinstance(self.origin, Source):
            self.registry.write_blob(self.origin, digest=self.blob.digest, missing=True)
            return
        # `tempfile` tests its default folder by writing a file there, which may remain.
        folder = Home.of_environment().path
        folder.mkdir(parents=True, exist_ok=True)
        with unnamed(folder) as file:
            self.origin.read_blob(self.blob, file)
            self.registry.write_blob(file, digest=self.blob.digest, missing=True)

    def stop(self) -> None:
        """End the requests to its registry and its origin."""
        self.registry.stop()
        if isinstance(self.origin, Source):
            self.origin.stop()


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Numbers and sizes (in bytes) of blobs, by transfer method."""

    blobs: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)


def send_all(transfers: Iterable[BlobTransfer], *, jobs: int, only_look: bool = False) -> Traffic:
    """Transfer all missing blobs, the largest first; with `only_look`, only report the methods.

    The first failure ends all transfers, and is raised.
    """
    by_digest: dict[str, dict[str, BlobTransfer]] = {}
    for transfer in transfers:
        by_digest.setdefault(transfer.blob.digest, {})[transfer.registry.name] = transfer
    groups = [list(group.values()) for group in by_digest.values()]
    groups.sort(key=lambda group: -group[0].blob.size)

    def stop() -> None:
        for transfer in itertools.chain(*groups):
            transfer.stop()

    traffic = Traffic()
    ways = in_threads(partial(_bring, only_look=only_look), groups, jobs=jobs, stop=stop)
    for group, outcomes in zip(groups, ways, strict=True):
        for how in outcomes:
            traffic.blobs[how] += 1
            traffic.sizes[how] += group[0].blob.size
    return traffic


def _bring(group: Sequence[BlobTransfer], *, only_look: bool) -> list[str]:
    """Transfer one blob to several repositories; return the method for each.

    If the first repository lacks the blob, the others probably do, too: mount it without asking.
    """
    ways: list[str] = []
    first, digest = group[0].registry.repository, group[0].blob.digest
    for transfer in group:
        registry, was_lacking = transfer.registry, bool(ways) and ways[0] != THERE
        if was_lacking and not only_look and registry.mount_blob(digest, first):
            ways.append(MOUNTED)
            continue
        if registry.has_blob(digest):
            ways.append(THERE)
            continue
        relatives = (name for name in transfer.relatives if registry.sibling(name).has_blob(digest))
        at = first if ways else next(relatives, "")
        if only_look:
            ways.append(MOUNTED if at else MISSING)
        elif at and not was_lacking and registry.mount_blob(digest, at):
            ways.append(MOUNTED)
        else:
            transfer.send()
            ways.append(SENT)
    return ways
