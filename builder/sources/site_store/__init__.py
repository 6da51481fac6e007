"""The site's store: bases, native tools, stages and finished images, shared by several machines."""

from __future__ import annotations

from builder.sources.site_store.entries import SiteStore
from builder.sources.site_store.unused import unused_entries

__all__ = ["SiteStore", "unused_entries"]
