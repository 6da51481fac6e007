"""What a site gets ready to use with an image: batch scripts, a module, manifests.

From planned images to texts by path. The same images give the same texts, and nothing is started.
docs/sites.md shows each file.
"""

from __future__ import annotations

from builder.sites.rendering import site_files
from builder.sites.values import Place, SiteImage, site_image

__all__ = ["Place", "SiteImage", "site_files", "site_image"]
