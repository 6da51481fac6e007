"""Sources: files that builds need from elsewhere, pinned by checksum and kept in a store."""

from __future__ import annotations

from builder.sources.download import Downloader
from builder.sources.store import Store, fetch_all

__all__ = ["Downloader", "Store", "fetch_all"]
