"""Files with which a site uses an image: batch scripts, a module, manifests.

From planned images to texts by path. The same images give the same texts, and nothing is started.
docs/sites.md shows each file.
"""

from __future__ import annotations

from builder.reports.sites.files import Place, SiteImage, needs_of, site_files

__all__ = ["Place", "SiteImage", "needs_of", "site_files"]
