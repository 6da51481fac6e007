"""A rehearsal with the servers, stores and clones of this machine."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import requests

from builder.build.mirror import apt_archives, find_mirror
from builder.load.faults import Faults
from builder.load.site import read_site
from builder.model import LockedSource, Spec
from builder.model.errors import MissingPrerequisite
from builder.sources.package_proxy import own_index
from builder.sources.store import SourceStore
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.web import innermost, server_of
from builder.verify.rehearse import Rehearsal
from builder.verify.rehearse.conda_pins import CondaTrials
from builder.verify.rehearse.imports import LibraryTrials
from builder.verify.rehearse.index import Index, remote_index
from builder.verify.rehearse.packages import UBUNTU_SUITES, Archives, PackageLists, PackageTrials
from builder.verify.rehearse.pip_commands import copied_texts
from builder.verify.rehearse.python_pins import PythonTrials
from builder.verify.rehearse.repository_files import read_url
from builder.verify.rehearse.resolution import Resolver, pip_of_this_machine
from builder.verify.rehearse.source_urls import Servers, SourceTrials
from builder.verify.rehearse.trees import Clones, Tree, archive_tree
from builder.verify.rehearse.workspace import Workspace

_TIMEOUT_S = 120.0


def rehearsal_here(
    project: Path, clones_in: Sequence[Path], home: Home, servers: Servers
) -> Rehearsal:
    """Return a rehearsal that asks the servers which this machine and the site name.

    Raises `MissingPrerequisite` where pip names no package index.
    """
    processes = Processes()
    index_url = own_index(processes)
    if not index_url:
        raise MissingPrerequisite(
            "this machine's pip names no package index", hint="pip config set global.index-url URL"
        )
    index = remote_index(index_url)
    store = SourceStore(path=home.sources)
    clones = Clones(processes, (*clones_in, home.path / "clones"))
    resolver = Resolver(index=index, run_pip=pip_of_this_machine(processes, index_url))
    return Rehearsal(
        python=PythonTrials(resolver, servers.ask),
        conda=CondaTrials(functools.cache(_read_channel)),
        sources=SourceTrials(servers.ask, lambda source: store.place(source.sha256)),
        packages=PackageTrials(PackageLists(read_url, package_archives(project))),
        libraries=LibraryTrials(index.read, _size_of(index)),
        new_workspace=functools.partial(_workspace, processes, clones, store),
    )


def _workspace(processes: Processes, clones: Clones, store: SourceStore, spec: Spec) -> Workspace:
    stored = {source.file: path for source in spec.sources if (path := _stored(store, source))}
    read, copied = functools.cache(archive_tree), copied_texts(spec)

    def archive(name: str) -> Tree | None:
        return read(stored[name]) if name in stored else None

    def text(path: str) -> str | None:
        file = stored.get(posixpath.basename(path))
        return copied.get(path) or (file.read_text(errors="replace") if file else None)

    return Workspace(clones=clones.tree, archives=archive, texts=text, processes=processes)


def _stored(store: SourceStore, source: LockedSource) -> Path | None:
    path = store.place(source.sha256)
    return path if path.exists() else None


def _size_of(index: Index) -> Callable[[str], int]:
    """Return how large a file of the index is, by its URL; 0 where the index does not say."""

    def size(url: str) -> int:
        project = url.rpartition("/")[2].split("-")[0].replace("_", "-").lower()
        return next((file.size for file in index.files(project) if file.url == url), 0)

    return size


def package_archives(project: Path) -> Archives:
    """The repositories that the site names, and those that this machine's own apt uses."""
    try:
        debian = find_mirror().main
    except MissingPrerequisite:
        debian = ""
    ubuntu = apt_archives({*UBUNTU_SUITES.values()})
    return Archives(named=read_site(project, Faults()).packages, debian=debian, ubuntu=ubuntu)


def _read_channel(channel: str, subdir: str) -> Mapping[str, object] | str:
    """A channel's index; its name alone stands for one of Anaconda's."""
    url = channel if "://" in channel else f"https://conda.anaconda.org/{channel}"
    try:
        answer = requests.get(f"{url.rstrip('/')}/{subdir}/repodata.json", timeout=_TIMEOUT_S)
        answer.raise_for_status()
        found: Mapping[str, object] = answer.json()
    except (requests.RequestException, ValueError) as error:
        return f"{server_of(url)} cannot be asked: {innermost(error)}"
    return found
