"""Several images of one command: some are judged, and come, while another one is packed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from builder.distribute.pull.ahead import AT_ONCE, Coming, ahead
from builder.distribute.pull.contents import reading
from builder.distribute.pull.packing import NOTED, Brought, PullCache, pull_cache
from builder.distribute.pull.pulling import (
    Judged,
    NotProven,
    Pulled,
    PullRequest,
    look,
    prepare,
    pull,
)
from builder.distribute.pull.receipts import Last
from builder.registry import Credentials, Registry, RegistryState, connect
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.workers import Workers

_LOOKS_AT_ONCE, _MOST_AHEAD = 2, 16
_LOOK_S = 1800.0  # for all that is asked before an image is judged


@dataclass(frozen=True, kw_only=True, slots=True)
class PullJob:
    """An image, and the path where it is to be."""

    request: PullRequest
    output: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class LookedAt:
    """An image that was judged where it is."""

    job: PullJob
    judged: Judged
    registry: Registry
    last: Last
    cache: PullCache

    def check(self) -> None:
        """Raise `NotProven` if the policy refuses it."""
        if self.judged.judgement.refused:
            raise NotProven(str(self.job.request.reference), self.judged.judgement.rulings)

    def pull(self, say: Callable[[str], object]) -> Pulled:
        """Bring it; raises `NotProven` if the policy refuses it."""
        return pull(
            self.job.request,
            self.judged,
            self.registry,
            cache=self.cache,
            last=self.last,
            output=self.job.output,
            say=say,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Puller:
    """Settings and state that the images of one command share.

    With `dry_run`, images are judged and not brought. Credential helpers are asked once, since they
    may ask a person.
    """

    plain_http: Collection[str]
    dry_run: bool
    say: Callable[[str], object]
    processes: Processes
    credentials: Credentials
    coming: Coming[Brought] = field(default_factory=Coming)
    learned: dict[str, RegistryState] = field(default_factory=dict)

    def workers(self, artifact_format: str) -> AbstractContextManager[Workers | None]:
        """Start processes that take notes, one for each layer that comes at once."""
        if self.dry_run or artifact_format not in NOTED:
            return contextlib.nullcontext()
        return reading(AT_ONCE)

    def look_ahead(
        self, requests: Sequence[PullJob], workers: Workers | None
    ) -> Generator[Future[LookedAt], None, None]:
        """Yield the images in order, each as soon as it is judged."""
        for first in range(0, len(requests), _MOST_AHEAD):
            batch = requests[first : first + _MOST_AHEAD]
            futures, end = ahead(
                lambda request: self._look(request, workers), batch, threads=_LOOKS_AT_ONCE
            )
            try:
                yield from futures
            except BaseException:
                end()
                self.processes.stop()
                for future in futures:
                    if future.done() and not (future.cancelled() or future.exception()):
                        future.result().registry.stop()
                raise

    def _look(self, job: PullJob, workers: Workers | None) -> LookedAt:
        """Look at an image, and have its layers come if it is proven."""
        request, pulls = job.request, Home.of_environment().pulls
        registry = connect(
            request.reference,
            self.credentials,
            plain_http=self.plain_http,
            tell=self.say,
            state=self.learned.setdefault(request.reference.name, RegistryState()),
        )
        last = Last(folder=pulls / "last")
        with registry.transport.time_limit(_LOOK_S):
            judged = look(request, registry, last)
        cache = pull_cache(
            pulls,
            check=registry.transport.sleep.check,
            tell=self.say,
            coming=self.coming,
            workers=workers,
        )
        if not self.dry_run:
            prepare(request, judged, registry, cache=cache, output=job.output)
        return LookedAt(job=job, judged=judged, registry=registry, last=last, cache=cache)
