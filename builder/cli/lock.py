"""`build-images lock`: the checksum of each source, the digest of each base of a registry."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from builder.build.at_work import using
from builder.build.fetching import store_of
from builder.cli.options import (
    Parser,
    ProgressOptions,
    SelectorOptions,
    add_progress,
    add_project,
    add_selectors,
)
from builder.compile.spec import COMPILER, block_faults, downloads_of
from builder.compile.spec.downloads import Downloads
from builder.load.project import load_project
from builder.model import Lock, Plan, PlannedImage, Project, Selection
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, counted
from builder.model.locked import LOCK
from builder.plan import make_plan
from builder.registry import Credentials
from builder.sources import Downloader, Store
from builder.sources.debian import DebianSources
from builder.sources.locking import Locking, Wanted, lock_sources, lock_text, merged
from builder.sources.pins import Key, mismatches, pin_references
from builder.sources.registry import Registries
from builder.sources.store import MIRROR_HINT, UPDATE_HINT, Changed, Unfetched
from builder.system.atomic import write_atomically
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.progress import Progress


class LockOptions(SelectorOptions, ProgressOptions):
    """The options of `lock`."""

    check: bool
    update: bool
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `lock`."""
    add_selectors(parser)
    add_project(parser)
    add_progress(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say whether it matches the recipes")
    how.add_argument(
        "--update", action="store_true", help="look up anew what is locked, and accept changes"
    )
    parser.add_argument("--json", action="store_true", help="print the lock as JSON")


def run(options: LockOptions) -> int:
    """Write lock.yaml: the checksum of each source, the digest of each base from a registry.

    With `check`, nothing is written: whether the lock matches the recipes. What could be locked
    is written also when something else could not.
    """
    project = load_project(options.project, block_faults=block_faults, stale_lock=True)
    made, everything = planned(project, options.selection)
    found = downloads_of(made.images)
    wanted, references = wanted_of(found), references_of(made.images)
    if options.check:
        return _checked(options, project, wanted, references, everything=everything)
    progress = Progress(level=options.level)
    store = store_of(options.project, project.site, wanted)
    locking = _locking(project, store, progress, update=options.update)
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


def planned(project: Project, selection: Selection) -> tuple[Plan, bool]:
    """The plan, and whether it is of everything: without a selector a lock is of all images."""
    everything = not selection.patterns and not selection.images
    if everything:
        selection = dataclasses.replace(selection, everything=True)
    return make_plan(project, selection, compiler=COMPILER), everything


def _locking(project: Project, store: Store, progress: Progress, *, update: bool) -> Locking:
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
        update=update,
        say=progress.say,
    )


def _checked(
    options: LockOptions,
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


def _tell(options: LockOptions, before: Lock, written: Lock, found: Downloads) -> None:
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
