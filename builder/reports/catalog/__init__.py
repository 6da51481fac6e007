"""The catalogue: a static web site of images, of what their output folders hold.

It proves nothing itself: it shows what was proven, and says where evidence is not of the artifacts
that it lies beside. All texts are escaped; the pages load nothing from elsewhere.
docs/catalog.md describes it.
"""

from __future__ import annotations

from builder.reports.catalog.entries import Entry, read_entry
from builder.reports.catalog.pages import write_catalog

__all__ = ["Entry", "read_entry", "write_catalog"]
