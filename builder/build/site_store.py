"""The site's store that a project or the environment names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from builder.build.engines import Tools
from builder.load.document import Faults
from builder.load.site import STORE, read_site
from builder.model.errors import BadInput
from builder.sources.site_store import SiteStore
from builder.sources.site_store.entries import StorePlace
from builder.sources.site_store.folder import FolderStore
from builder.sources.site_store.repository import RepositoryStore, repository_store
from builder.system.process import Processes
from builder.system.web import without_users

STORE_VARIABLE = "BUILD_IMAGES_STORE"
STORE_HINT = (
    f"set store: in site.yaml, or {STORE_VARIABLE}, to the absolute path of a folder, or to a "
    "repository such as registry.site.example/build-cache"
)


def place_of(project: Path, processes: Processes) -> StorePlace | None:
    """Return the place of the site's store: `$BUILD_IMAGES_STORE`, else `store` of site.yaml.

    Returns None if it is not set, or empty. Raises `BadInput` for neither a folder nor a
    repository.
    """
    named = os.environ.get(STORE_VARIABLE)
    if named is None:
        named = read_site(project, Faults()).store  # its faults are reported with the project's
    if not named:
        return None
    if not STORE.fullmatch(named):
        shown = f"the site's store: {without_users(named)}"
        raise BadInput(f"{shown}: neither an absolute path nor a repository", hint=STORE_HINT)
    if named.startswith("/"):
        return FolderStore(Path(named))
    return repository_store(named, processes)


def site_store(
    project: Path, tools: Tools, say: Callable[[str], object], *, offline: bool = False
) -> SiteStore:
    """Return the site's store; an `offline` run uses none in a registry."""
    place = place_of(project, tools.processes)
    if offline and isinstance(place, RepositoryStore):
        say(f"--offline: the site's store ({place.name}) is not used")
        place = None
    return SiteStore(place, tools.home.temporary, say)
