"""The site's store that a project or the environment names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.build.engines import Tools
from builder.build.inputs import packed_files
from builder.load.document import Faults
from builder.load.site import SITE_FILE, STORE, VARIABLE, read_site
from builder.model import Site, Spec
from builder.model.digests import sha256_of_file, sha256_of_json
from builder.model.errors import BadInput
from builder.model.inputs import LOCAL_SOURCE
from builder.sources.site_store import SiteStore
from builder.sources.site_store.entries import StorePlace
from builder.sources.site_store.places import FolderStore, RepositoryStore, repository_store
from builder.system.files import note_use, remove_tree
from builder.system.locks import locked
from builder.system.process import Processes
from builder.system.web import without_users

STORE_VARIABLE = "BUILD_IMAGES_STORE"
STORE_HINT = (
    f"set store: in site.yaml, or {STORE_VARIABLE}, to the absolute path of a folder, or to a "
    "repository such as registry.site.example/build-cache"
)


def store_name(project: Path) -> str:
    """Return the name of the site's store: `$BUILD_IMAGES_STORE`, else `store` of site.yaml."""
    named = os.environ.get(STORE_VARIABLE)
    return site_of(project).store if named is None else named


def site_of(project: Path) -> Site:
    """Return what site.yaml says; its faults are reported with the project's."""
    return read_site(project, Faults())


def place_of(project: Path, processes: Processes) -> StorePlace | None:
    """Return the place of the site's store; None if it is not set, or empty.

    Raises `BadInput` for neither a folder nor a repository.
    """
    return place_named(store_name(project), processes)


def place_named(named: str, processes: Processes) -> StorePlace | None:
    """Return the place of a store by its name; see `place_of`."""
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


def store_named(
    name: str, tools: Tools, say: Callable[[str], object], *, tags: bool = True
) -> SiteStore:
    """Return the store of a name; unless it `tags`, entries get no tag. Raises as `place_of`."""
    return SiteStore(place_named(name, tools.processes), tools.home.temporary, say, tags=tags)


# ---- The project, for workers on other machines ----


def add_project(store: SiteStore, project: Path, specs: Sequence[Spec] = ()) -> str:
    """Add the files of a project's layers to the site's store; return the digest of the entry.

    Sources that lie in the project are among them, if specs need them.

    Raises `MissingPrerequisite` or `TemporaryFailure` if they cannot be added.
    """
    site = Path(os.environ.get(VARIABLE) or project / SITE_FILE)
    urls = [source.url for spec in specs for source in spec.sources]
    local = [url.removeprefix(LOCAL_SOURCE) for url in urls if url.startswith(LOCAL_SOURCE)]
    with TemporaryDirectory(prefix="build-images-") as folder:
        copy = Path(folder)
        for name, path in packed_files(project, local).items():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        if site.is_file():
            shutil.copyfile(site, copy / SITE_FILE)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        digests = {str(path.relative_to(copy)): sha256_of_file(path) for path in files}
        tag = f"project-{sha256_of_json(digests)}"
        if digest := store.digest(tag):
            return digest
        store.put(tag, copy, f"project {project.name}", packed=True)
    if tag not in store.added:
        raise store.error(
            "the project's files could not be added to the site's store",
            hint="workers take them, and all that they build on, from there",
        )
    return store.added[tag]


def take_project(name: str, digest: str, project: Path, say: Callable[[str], object]) -> None:
    """Fill the folder of a project from the store of a name, unless it is there.

    Raises `MissingPrerequisite` or `TemporaryFailure` if the store does not give it.
    """
    project.parent.mkdir(parents=True, exist_ok=True)
    with locked(project.parent, project.name):
        if project.is_dir():
            note_use(project)
            return
        partial = project.with_name(f".{project.name}.partial")
        remove_tree(partial)  # of a process that was killed
        partial.mkdir()
        # No builder uses the home yet, so that another one may clean its temporary files.
        store = SiteStore(place_named(name, Processes()), project.parent, say)
        if not store.take(digest, partial):
            raise store.error(
                "the site's store did not give the project",
                hint="all workers need access to the store that the run names",
            )
        partial.rename(project)
