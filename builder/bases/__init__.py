"""Base images that are made here: from a Debian mirror to an OCI archive in the store."""

from __future__ import annotations

from builder.bases.mirror import Mirror, find_mirror
from builder.bases.store import (
    StoredBase,
    ensure_base,
    kept_base,
    keyring_of,
    source_lines,
    staging,
    stored_base,
)

__all__ = [
    "Mirror",
    "StoredBase",
    "ensure_base",
    "find_mirror",
    "kept_base",
    "keyring_of",
    "source_lines",
    "staging",
    "stored_base",
]
