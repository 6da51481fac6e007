"""The verdict on an image and a host, before it is started there: from its host contract."""

from __future__ import annotations

from builder.facts.runtimes import RUNTIMES
from builder.host.records import Host, as_record, read_record
from builder.host.rules import judge
from builder.host.verdict import (
    LAUNCHERS,
    NO,
    UNKNOWN,
    YES,
    Answer,
    HostVerdict,
    as_json,
    as_text,
)
from builder.system.process import Processes

RUNTIME_NAMES = tuple(RUNTIMES)  # container runtimes that a host can have


def this_host(processes: Processes, *, search_path: str) -> Host:
    """See `builder.host.local_host`, which is imported only where a host has no record."""
    from builder.host import local_host  # noqa: PLC0415

    return local_host.this_host(processes, search_path=search_path)


__all__ = [
    "LAUNCHERS",
    "NO",
    "RUNTIME_NAMES",
    "UNKNOWN",
    "YES",
    "Answer",
    "Host",
    "HostVerdict",
    "as_json",
    "as_record",
    "as_text",
    "judge",
    "read_record",
    "this_host",
]
