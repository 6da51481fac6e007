"""Whether an image runs on a host: said beforehand, from the image's host contract."""

from __future__ import annotations

from builder.host.judging import judge
from builder.host.record import Host
from builder.host.records import as_record, read_record
from builder.host.render import as_json, as_text
from builder.host.verdict import LAUNCHERS, NO, UNKNOWN, YES, Finding, Verdict
from builder.system.process import Processes


def this_host(processes: Processes, *, search_path: str) -> Host:
    """See `builder.host.here`. Whoever has a record of a host need not wait for its imports."""
    from builder.host import here  # noqa: PLC0415

    return here.this_host(processes, search_path=search_path)


__all__ = [
    "LAUNCHERS",
    "NO",
    "UNKNOWN",
    "YES",
    "Finding",
    "Host",
    "Verdict",
    "as_json",
    "as_record",
    "as_text",
    "judge",
    "read_record",
    "this_host",
]
