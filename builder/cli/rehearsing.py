"""The command `rehearse`: what can be tried of cells without building them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from builder.build.bases import apt_archives, find_mirror
from builder.cli.commands import compiled, load_plan
from builder.load.faults import Faults
from builder.load.site import read_site
from builder.model import LockedSource, Spec
from builder.model.errors import MissingPrerequisite, counted
from builder.registry.web import innermost, server_of
from builder.sources import Store
from builder.sources.pip_index import own_index
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.progress import Progress
from builder.verify.rehearse import FAILED, NOT_TRIED, PASSED, CellTrials, Rehearsal, Trial, records
from builder.verify.rehearse.conda_pins import CondaTrials
from builder.verify.rehearse.copies import copied_texts
from builder.verify.rehearse.index import Index, remote_index
from builder.verify.rehearse.libraries import LibraryTrials
from builder.verify.rehearse.lists import UBUNTU_SUITES, Archives, PackageLists
from builder.verify.rehearse.package_names import PackageTrials
from builder.verify.rehearse.python_pins import PythonTrials
from builder.verify.rehearse.repository_files import read_url
from builder.verify.rehearse.resolution import Resolver, pip_of_this_machine
from builder.verify.rehearse.servers import Servers
from builder.verify.rehearse.source_urls import SourceTrials
from builder.verify.rehearse.trees import Clones, Tree, archive_tree
from builder.verify.rehearse.workspace import Workspace

if TYPE_CHECKING:
    from builder.cli.options import Options

_TIMEOUT_S = 120.0
_INDENT = " " * 4


def command(options: Options) -> int:
    """Rehearse the selected cells, and print what was tried; 1 if anything failed."""
    home = Home.of_environment()
    specs = compiled(options, load_plan(options))
    progress, servers = Progress(level=options.level), Servers()
    rehearsal = _rehearsal(options, home, servers)
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    cells = []
    with contextlib.ExitStack() as held:
        steps_of = _steps(options, specs, progress, servers, held)
        for number, spec in enumerate(specs, start=1):
            progress.say(f"{number} of {len(specs)}: {spec.image.identifier}")
            cells.append(rehearsal.of(spec).with_more(steps_of(spec)))
            records.keep(home.rehearsals, cells[-1], today)
    if options.json:
        print(json.dumps(as_json(cells), indent=1))
    else:
        print("\n".join(as_text(cells, with_passed=options.level > 1)))
    return 1 if any(cell.has_failed for cell in cells) else 0


def as_json(cells: Sequence[CellTrials]) -> dict[str, object]:
    """The rehearsal for programs."""
    return {
        "schema": "build-images/rehearsal/v1",
        "cells": [
            {
                "image": cell.image,
                "content_key": cell.content_key,
                "asked": cell.asked,
                "trials": [dataclasses.asdict(trial) for trial in cell.trials],
            }
            for cell in cells
        ],
    }


def as_text(cells: Sequence[CellTrials], *, with_passed: bool) -> Iterator[str]:
    """What failed and what was not tried in each cell, and what passed if that is asked for."""
    for cell in cells:
        yield f"{cell.image}: {_counts(cell.trials)}"
        for outcome in (FAILED, NOT_TRIED, *((PASSED,) if with_passed else ())):
            for trial in cell.of(outcome):
                yield from _lines(trial)
    failed = sum(cell.has_failed for cell in cells)
    yield f"{counted(len(cells), 'cell')} rehearsed, {failed} with failures"


def _lines(trial: Trial) -> Iterator[str]:
    place = f" (Dockerfile:{trial.line})" if trial.line else ""
    yield f"{_INDENT}{trial.outcome}: {trial.kind}: {trial.subject}{place}"
    yield f"{_INDENT * 2}{trial.text}"
    if trial.hint:
        yield f"{_INDENT * 2}hint: {trial.hint}"


def _counts(trials: Sequence[Trial]) -> str:
    outcomes = [trial.outcome for trial in trials]
    return ", ".join(f"{outcomes.count(name)} {name}" for name in (PASSED, FAILED, NOT_TRIED))


def _steps(
    options: Options,
    specs: list[Spec],
    progress: Progress,
    servers: Servers,
    held: contextlib.ExitStack,
) -> Callable[[Spec], list[Trial]]:
    """Tries the steps of a spec on a stand-in, if that is asked for."""
    if not options.steps:
        return lambda _: []
    from builder.cli.standing_in import steps_on_stand_ins  # noqa: PLC0415 - builds, others do not

    return held.enter_context(steps_on_stand_ins(options, specs, progress, servers.ask))


def _rehearsal(options: Options, home: Home, servers: Servers) -> Rehearsal:
    processes = Processes()
    index_url = own_index(processes)
    if not index_url:
        raise MissingPrerequisite(
            "this machine's pip names no package index", hint="pip config set global.index-url URL"
        )
    index = remote_index(index_url)
    store = Store(path=home.sources)
    clones = Clones(processes, (*options.clones, home.path / "clones"))
    resolver = Resolver(index=index, run_pip=pip_of_this_machine(processes, index_url))
    return Rehearsal(
        python=PythonTrials(resolver, servers.ask),
        conda=CondaTrials(functools.cache(_read_channel)),
        sources=SourceTrials(servers.ask, lambda source: store.place(source.sha256)),
        packages=PackageTrials(PackageLists(read_url, package_archives(options.project))),
        libraries=LibraryTrials(index.read, _size_of(index)),
        new_workspace=functools.partial(_workspace, processes, clones, store),
    )


def _workspace(processes: Processes, clones: Clones, store: Store, spec: Spec) -> Workspace:
    stored = {source.file: path for source in spec.sources if (path := _stored(store, source))}
    read, copied = functools.cache(archive_tree), copied_texts(spec)

    def archive(name: str) -> Tree | None:
        return read(stored[name]) if name in stored else None

    def text(path: str) -> str | None:
        file = stored.get(posixpath.basename(path))
        return copied.get(path) or (file.read_text(errors="replace") if file else None)

    return Workspace(clones=clones.tree, archives=archive, texts=text, processes=processes)


def _stored(store: Store, source: LockedSource) -> Path | None:
    path = store.place(source.sha256)
    return path if path.exists() else None


def _size_of(index: Index) -> Callable[[str], int]:
    """How large a file of the index is, by its URL; 0 where the index does not say."""

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
