"""The engines behind one Protocol: they build a spec once, and export it for `artifacts.repack`.

`apptainer` and `charliecloud` are not engines: they pack the OCI layout as SIF and tarball.
"""

from __future__ import annotations

from builder.build.engines.buildah import Buildah
from builder.build.engines.docker import Docker
from builder.build.engines.protocol import DockerfileBuild, Engine, Lent, Tools
from builder.system.storage_drivers import VFS

__all__ = ["ENGINES", "VFS", "Buildah", "Docker", "DockerfileBuild", "Engine", "Lent", "Tools"]

ENGINES: dict[str, type[Buildah] | type[Docker]] = {"buildah": Buildah, "docker": Docker}
