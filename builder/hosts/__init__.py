"""Whether an image runs on a host: said beforehand, from the image's host contract."""

from __future__ import annotations

from builder.hosts.here import this_host
from builder.hosts.images import contract_in
from builder.hosts.judging import judge
from builder.hosts.record import Host
from builder.hosts.records import as_record, read_record
from builder.hosts.render import as_json, as_text
from builder.hosts.verdict import LAUNCHERS, NO, UNKNOWN, YES, Finding, Verdict

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
    "contract_in",
    "judge",
    "read_record",
    "this_host",
]
