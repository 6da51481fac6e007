"""Images, their proof and what they are built from as one archive: an OCI image layout in a tar.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

from builder.distribute.bundle.contents import INPUTS, Contents, releases_of
from builder.distribute.bundle.layout import Bundle, opened
from builder.distribute.bundle.writing import write_archive

__all__ = ["INPUTS", "Bundle", "Contents", "opened", "releases_of", "write_archive"]
