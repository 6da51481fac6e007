"""What all images of one run share."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.sharing import SharedLayers
from builder.build.bases.mirror import Mirror
from builder.build.engines import Engine, Tools
from builder.model import EPOCH, FORMATS
from builder.system.host_facts import HostFacts
from builder.system.progress import Progress


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the main job: where things are, what does the work, who is told.

    `refresh` makes everything anew, bases included; without `cache`, finished build steps and
    artifacts are not taken up again; `offline`, what the home has is asked of nobody. No time in an
    image is later than `epoch`. `sources` are the files of the store by URL, `declared` the digests
    of the project's files by path, `layers` those that its images have in common.
    """

    tools: Tools
    engine: Engine
    mirror: Mirror | None
    out: Path
    progress: Progress
    host: HostFacts
    versions: Mapping[str, str]
    formats: tuple[str, ...] = FORMATS
    started: str = field(default_factory=now)
    epoch: int = EPOCH
    refresh: bool = False
    cache: bool = True
    verify: bool = True
    native_tools: bool = True
    offline: bool = False
    sources: Mapping[str, Path] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    layers: SharedLayers | None = None

    @property
    def not_before(self) -> str:
        """What was made before that time is made anew; empty for whatever is there."""
        return self.started if self.refresh else ""


@dataclass(frozen=True, slots=True)
class Timer:
    """Seconds spent in each step of one image, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a step."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)
