"""What a site gets ready to use with an image: batch scripts, a module, manifests.

From planned images to texts by path. The same images give the same texts, and nothing is started.
docs/sites.md shows each file.
"""

from __future__ import annotations

from builder.reports.sites.files import (
    Place,
    SiteImage,
    needs_of,
    site_files,
    site_image,
    tag_of_identifier,
)

__all__ = [
    "Place",
    "SiteImage",
    "needs_of",
    "site_files",
    "site_image",
    "tag_of_identifier",
]
