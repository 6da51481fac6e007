"""Base images that are made here: from a Debian mirror to an OCI archive in the store."""

from __future__ import annotations

from builder.build.bases.mirror import SECURITY_VARIABLE, Mirror, apt_archives, find_mirror
from builder.build.bases.store import (
    SECURITY,
    StoredBase,
    bootstrapping,
    ensure_base,
    kept_base,
    keyring_of,
    source_lines,
    sources,
    staging,
    stored_base,
)

__all__ = [
    "SECURITY",
    "SECURITY_VARIABLE",
    "Mirror",
    "StoredBase",
    "apt_archives",
    "bootstrapping",
    "ensure_base",
    "find_mirror",
    "kept_base",
    "keyring_of",
    "source_lines",
    "sources",
    "staging",
    "stored_base",
]
