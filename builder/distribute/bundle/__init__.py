"""One archive of images, their proof and their inputs: an OCI image layout in a tar file.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

from builder.distribute.bundle.contents import INPUTS, ArchiveContents, releases_of, write_archive
from builder.distribute.bundle.layout import Bundle, opened

__all__ = ["INPUTS", "ArchiveContents", "Bundle", "opened", "releases_of", "write_archive"]
