"""The choice of proof for releases: signed with a key, or unsigned.

What signs is slow to import, so that it is imported if a key is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.distribute.publish import Attest, Prove, Release
from builder.distribute.publish.unsigned import unsigned, unsigned_statements
from builder.system.process import Processes


def prove_with(key: str, releases: Sequence[Release], processes: Processes) -> Prove:
    """Return what makes the proof: signed with a key, if one is named."""
    if not key:
        return unsigned
    from builder.distribute.publish.signing import signed  # noqa: PLC0415

    return signed(key, releases, processes)


def attest_with(key: str, processes: Processes) -> Attest:
    """Return what makes the evidence of failures: signed with a key, if one is named."""
    if not key:
        return unsigned_statements
    from builder.distribute.publish.signing import attesting  # noqa: PLC0415

    return attesting(key, processes)
