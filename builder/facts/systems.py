"""What distributions fix: the C library, and what it asks of the host's kernel and processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.places import Where


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemRelease:
    """One release of a distribution, named as base images name it: debian 12.

    `kernel` maps an architecture to the least Linux that its glibc starts on, `cpu` one to the CPU
    target that its packages are compiled for, where not every processor of it will do. `python` is
    the Python 3 that its package python3 is of, `pip` the pip that comes with that; empty if they
    are not known.
    """

    distribution: str
    version: str
    glibc: str
    kernel: Mapping[str, str]
    cpu: Mapping[str, str]
    sources: tuple[str, ...]
    notes: str
    where: Where
    python: str = ""
    pip: str = ""
