"""Images, their proof and what they are built from as one archive: an OCI image layout in a tar.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

from builder.distribute.bundle.contents import INPUTS, ArchiveContents, releases_of, write_archive
from builder.distribute.bundle.layout import Bundle, opened

__all__ = ["INPUTS", "ArchiveContents", "Bundle", "opened", "releases_of", "write_archive"]
