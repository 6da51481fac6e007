"""What all images of one run share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from builder.bases import Mirror
from builder.cli.progress import Progress
from builder.engines import Engine, Tools
from builder.verify import HostFacts

FORMATS = ("oci", "sif", "charliecloud")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the main job: where things are, what does the work, who is told."""

    tools: Tools
    engine: Engine
    mirror: Mirror | None
    out: Path
    progress: Progress
    host: HostFacts
    versions: Mapping[str, str]
    formats: tuple[str, ...] = FORMATS
    refresh: bool = False
    verify: bool = True


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
