"""Which blobs a registry lacks, and how each gets there once: mounted if it can be, else sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.home import Home
from builder.publish.threads import in_threads
from builder.registry import Descriptor, Registry, Source
from builder.whole import unnamed

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
    traffic, sender = Traffic(), _Sender(only_look=only_look)

    def stop() -> None:
        for one in largest_first:
            one.stop()

    ways = in_threads(sender.bring, largest_first, jobs=jobs, stop=stop)
    for one, how in zip(largest_first, ways, strict=True):
        traffic.note(how, one.blob.size)
    return traffic


class _Sender:
    """Knows where blobs are; two threads never send the same one."""

    def __init__(self, *, only_look: bool) -> None:
        self._only_look = only_look
        self._lock = threading.Lock()
        self._at: dict[str, str] = {}  # a repository that has the blob, by digest
        self._busy: dict[str, threading.Lock] = {}

    def bring(self, wanted: Wanted) -> str:
        """See to it that a repository has a blob; how that went."""
        digest, registry = wanted.blob.digest, wanted.registry
        with self._lock:
            busy = self._busy.setdefault(digest, threading.Lock())
        with busy:
            if registry.has_blob(digest):
                how = THERE
            elif self._only_look:
                how = MOUNTED if self._somewhere(wanted) else MISSING
            elif any(registry.mount_blob(digest, one) for one in self._somewhere(wanted)):
                how = MOUNTED
            else:
                wanted.send()
                how = SENT
            self._at[digest] = registry.repository
            return how

    def _somewhere(self, wanted: Wanted) -> Sequence[str]:
        """A repository to mount from; none if no relative has the blob."""
        digest = wanted.blob.digest
        if known := self._at.get(digest):
            return [known]
        for name in wanted.relatives:
            if wanted.registry.sibling(name).has_blob(digest):
                return [name]
        return []
