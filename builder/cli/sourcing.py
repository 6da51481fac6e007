"""The commands for what images need from elsewhere: `lock` and `fetch`."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from builder.build.at_work import using
from builder.build.bases import find_mirror
from builder.cli.commands import compiled
from builder.compile.spec import COMPILER, block_faults, downloads_of
from builder.compile.spec.downloads import Downloads
from builder.load.project import load_project
from builder.model import Lock, LockedSource, Plan, PlannedImage, Project, Site, Spec
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, counted
from builder.model.locked import DEBIAN_SOURCE, LOCK
from builder.plan import make_plan
from builder.registry import Credentials
from builder.sources import Downloader, Store, fetch_all
from builder.sources.debian import DebianSources
from builder.sources.locking import Locking, Wanted, lock_sources, lock_text, merged
from builder.sources.pins import Key, mismatches, pin_references
from builder.sources.registry import Registries
from builder.sources.store import MIRROR_HINT, UPDATE_HINT, Changed, Unfetched
from builder.system.atomic import write_atomically
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.progress import Progress

if TYPE_CHECKING:
    from builder.cli.options import Options

_LARGE = 20_000_000  # bytes; of such a file each quarter is told


def lock(options: Options) -> int:
    """Write lock.yaml: the checksum of each source, the digest of each base from a registry.

    With `check`, nothing is written: whether the lock matches the recipes. What could be locked
    is written also when something else could not.
    """
    project = load_project(options.project, block_faults=block_faults, stale_lock=True)
    made, everything = _selected(options, project)
    found = downloads_of(made.images)
    wanted, references = wanted_of(found), references_of(made.images)
    if options.check:
        return _checked(options, project, wanted, references, everything=everything)
    progress = Progress(level=options.level)
    store = store_of(options.project, project.site, wanted)
    locking = _locking(options, project, store, progress)
    with using(Home.of_environment(), options.project, progress.say):
        sources = lock_sources(wanted, project.lock, locking)
    registries = Registries(mirrors=project.site.registries, credentials=Credentials())
    pinned = pin_references(references, project.lock.references, registries, update=options.update)
    written = merged(
        project.lock,
        Lock(sources={one.url: one for one in sources.sources}, references=pinned.references),
        everything=everything,
        recipes={stage.name for image in made.images for stage in image.stages},
    )
    _write(options.project / LOCK, written)
    _tell(options, project.lock, written, found)
    if failures := (*sources.failures, *pinned.failures):
        raise not_locked(failures, store)
    return 0


def fetch(options: Options) -> int:
    """Bring every locked source of the selected images into the store."""
    project = load_project(options.project, block_faults=block_faults)
    made, _ = _selected(options, project)
    sources = sources_of(compiled(options, made))
    store = store_of(options.project, project.site, sources)
    progress = Progress(level=options.level)
    with using(Home.of_environment(), options.project, progress.say):
        paths = fetched(sources, store, progress, offline=options.offline)
    if options.json:
        print(json.dumps({url: str(path) for url, path in sorted(paths.items())}, indent=1))
    else:
        size = sum(one.size for one in sources) / 1e6
        print(f"{counted(len(sources), 'source')}, {size:.1f} MB, in {store.path}")
    return 0


def sources_of(specs: Iterable[Spec]) -> tuple[LockedSource, ...]:
    """The files that some specs copy in, each once."""
    found = {one.url: one for spec in specs for one in spec.sources}
    return tuple(found[url] for url in sorted(found))


def fetched(
    sources: Collection[LockedSource], store: Store, progress: Progress, *, offline: bool
) -> dict[str, Path]:
    """Their files in the store, verified, by URL; see `builder.sources.fetch_all` for errors."""
    return fetch_all(
        store, sources, downloader=Downloader(), offline=offline, on_progress=Told(progress)
    )


def store_of(
    project: Path, site: Site, sources: Collection[LockedSource] | Collection[Wanted] = ()
) -> Store:
    """The store in the builder's home; with this machine's Debian mirror if one is needed."""
    urls = [url for one in sources for url in (one.urls if isinstance(one, Wanted) else (one.url,))]
    debian = find_mirror().main if any(url.startswith(DEBIAN_SOURCE) for url in urls) else ""
    home = Home.of_environment().sources
    return Store(path=home, mirrors=site.sources, debian=debian, project=project)


def wanted_of(found: Downloads) -> list[Wanted]:
    """What was asked for, each file once, with all of the recipes that ask."""
    recipes: dict[tuple[str, ...], set[str]] = {}
    for one in found.asked:
        recipes.setdefault(one.urls, set()).add(one.recipe)
    return [Wanted(urls=urls, recipes=tuple(sorted(recipes[urls]))) for urls in sorted(recipes)]


def references_of(images: Iterable[PlannedImage]) -> list[Key]:
    """The images in registries that some images are made from, as the project names them."""
    found: set[Key] = set()
    for image in images:
        if image.cuda and image.cuda.images:
            found |= {(name, image.cell.arch) for name in image.cuda.images}
        elif not image.is_bootstrapped:
            found.add((image.base.references[image.cell.arch], image.cell.arch))
    return sorted(found)


def not_locked(failures: Sequence[BuildImagesError], store: Store) -> BuildImagesError:
    """One error for all that could not be locked; its exit code is the gravest."""
    texts = [str(one) for one in failures]
    count = f"{counted(len(texts), 'thing')} could not be locked; the rest is written:"
    text = "\n".join([count, *texts])
    if any(isinstance(one, Changed) for one in failures):
        return Changed(text, hint=UPDATE_HINT)
    sources = any(isinstance(one, Unfetched) for one in failures)
    return MissingPrerequisite(text, hint=MIRROR_HINT.format(store=store.path) if sources else "")


class Told:
    """Says how far downloads have come: each start, each end, and quarters of large files."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._quarters: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, source: LockedSource, there: int) -> None:
        quarter = 4 * there // source.size if source.size > _LARGE or there >= source.size else 0
        with self._lock:
            before = self._quarters.get(source.url, -1)
            self._quarters[source.url] = max(quarter, before)
        if quarter > before:
            done = f"{min(25 * quarter, 100)} % of {source.size / 1e6:.1f} MB"
            self._progress.say(f"{source.file}: {done}")


def _selected(options: Options, project: Project) -> tuple[Plan, bool]:
    """The plan, and whether it is of everything: without a selector a lock is of all images."""
    selection = options.selection
    everything = not selection.patterns and not selection.images
    if everything:
        selection = dataclasses.replace(selection, everything=True)
    return make_plan(project, selection, compiler=COMPILER), everything


def _locking(options: Options, project: Project, store: Store, progress: Progress) -> Locking:
    bootstraps = [base.bootstrap for base in project.bases.values() if base.bootstrap]
    downloader = Downloader()
    debian = DebianSources(
        store=store,
        suites=tuple(dict.fromkeys(one.suite for one in reversed(bootstraps))),
        downloader=downloader,
        processes=Processes(),
        say=progress.say,
    )
    return Locking(
        store=store,
        downloader=downloader,
        resolve=debian.resolve,
        update=options.update,
        say=progress.say,
    )


def _checked(
    options: Options,
    project: Project,
    wanted: Sequence[Wanted],
    references: Sequence[Key],
    *,
    everything: bool,
) -> int:
    files = {name: recipe.where.file for name, recipe in project.recipes.items()}
    faults = mismatches(project.lock, wanted, references, files, everything=everything)
    if faults:
        raise BadInput.of(faults)
    unlocked = [want for want in wanted if not set(want.urls) & set(project.lock.sources)]
    unpinned = [key for key in references if key not in project.lock.references]
    if options.json:
        texts = [" for ".join(key) for key in unpinned]
        print(json.dumps({"unlocked": [one.urls[0] for one in unlocked], "unpinned": texts}))
        return 0
    print(f"{LOCK} matches the recipes{_lacking(unlocked, unpinned)}")
    return 0


def _lacking(unlocked: Sequence[Wanted], unpinned: Sequence[Key]) -> str:
    if not unlocked and not unpinned:
        return ""
    sources, bases = counted(len(unlocked), "source"), counted(len(unpinned), "base image")
    return f"; {sources} and {bases} are not locked yet"


def _write(path: Path, written: Lock) -> None:
    if written.sources or written.references or path.exists():
        write_atomically(path, lock_text(written))


def _tell(options: Options, before: Lock, written: Lock, found: Downloads) -> None:
    if options.json:
        print(lock_json(written))
        return
    print(f"{LOCK}: {_counts('source', before.sources, written.sources)}")
    print(f"{LOCK}: {_counts('base image', before.references, written.references)}")
    for recipe, repository, commit in found.clones:
        how = f"at commit {commit}" if commit else "at no commit: it can change from day to day"
        print(f"not lockable: {recipe} clones {repository} {how}")


K = TypeVar("K")


def _counts(what: str, before: Mapping[K, object], after: Mapping[K, object]) -> str:
    new, gone = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    return f"{counted(len(after), what)}; {new} new, {changed} changed, {gone} gone"


def lock_json(written: Lock) -> str:
    """The lock for programs."""
    sources = [dataclasses.asdict(one) for _, one in sorted(written.sources.items())]
    references = [
        {"reference": reference, "arch": arch, "digest": digest}
        for (reference, arch), digest in sorted(written.references.items())
    ]
    return json.dumps({"sources": sources, "references": references}, indent=1)
