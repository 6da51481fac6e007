"""The lock of a project: what its images download, and the bases of registries that they use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.at_work import using
from builder.build.inputs import store_of
from builder.compile.spec import COMPILER, downloads_of
from builder.compile.spec.downloads import Downloads
from builder.model import Lock, Plan, PlannedImage, Project, Selection
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, counted
from builder.model.inputs import LOCK
from builder.plan import make_plan
from builder.sources.base_digests import Key, Registries, mismatches, pin_references
from builder.sources.debian import DebianSources
from builder.sources.download import Downloader
from builder.sources.locking import Locking, SourceRequest, lock_sources, lock_text, merged
from builder.sources.store import MIRROR_HINT, UPDATE_HINT, Changed, Store, Unfetched
from builder.system.files import write_atomically
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Lockable:
    """What images need from elsewhere; `everything` if they are all of the project."""

    images: Sequence[PlannedImage]
    everything: bool
    downloads: Downloads
    sources: Sequence[SourceRequest]
    references: Sequence[Key]

    @classmethod
    def of(cls, project: Project, selection: Selection) -> Lockable:
        """Find it in the plan of a selection."""
        plan, everything = planned(project, selection)
        downloads = downloads_of(plan.images)
        return cls(
            images=plan.images,
            everything=everything,
            downloads=downloads,
            sources=wanted_of(downloads),
            references=references_of(plan.images),
        )

    def check(self, project: Project) -> tuple[list[str], list[str]]:
        """Return the URLs and base images that the project's lock lacks.

        Raises `BadInput` for what the lock has otherwise.
        """
        files = {name: recipe.where.file for name, recipe in project.recipes.items()}
        faults = mismatches(
            project.lock, self.sources, self.references, files, everything=self.everything
        )
        if faults:
            raise BadInput.of(faults)
        locked, pinned = set(project.lock.sources), project.lock.references
        unlocked = [source.urls[0] for source in self.sources if not set(source.urls) & locked]
        return unlocked, [" for ".join(key) for key in self.references if key not in pinned]

    def lock(
        self, folder: Path, project: Project, progress: Progress, *, update: bool
    ) -> tuple[Lock, BuildImagesError | None]:
        """Write the lock of a project's folder.

        What could be locked is written also when something else could not, which the error names.
        """
        store = store_of(folder, project.site, self.sources)
        locking = _locking(project, store, progress, update=update)
        with using(Home.of_environment(), folder, progress.say):
            sources = lock_sources(self.sources, project.lock, locking)
        registries = Registries(mirrors=project.site.registries)
        pinned = pin_references(self.references, project.lock.references, registries, update=update)
        lock = merged(
            project.lock,
            Lock(sources={one.url: one for one in sources.sources}, references=pinned.references),
            everything=self.everything,
            recipes={stage.name for image in self.images for stage in image.stages},
        )
        path = folder / LOCK
        if lock.sources or lock.references or path.exists():
            write_atomically(path, lock_text(lock))
        failures = (*sources.failures, *pinned.failures)
        return lock, not_locked(failures, store) if failures else None


def planned(project: Project, selection: Selection) -> tuple[Plan, bool]:
    """The plan, and whether it is of everything: without a selector a lock is of all images."""
    everything = not selection.patterns and not selection.images
    if everything:
        selection = dataclasses.replace(selection, everything=True)
    return make_plan(project, selection, compiler=COMPILER), everything


def wanted_of(found: Downloads) -> list[SourceRequest]:
    """What was asked for, each file once, with all of the recipes that ask."""
    recipes: dict[tuple[str, ...], set[str]] = {}
    for one in found.asked:
        recipes.setdefault(one.urls, set()).add(one.recipe)
    pairs = sorted(recipes.items())
    return [SourceRequest(urls=urls, recipes=tuple(sorted(names))) for urls, names in pairs]


def references_of(images: Iterable[PlannedImage]) -> list[Key]:
    """The images in registries that some images are made from, as the project names them."""
    found: set[Key] = set()
    for image in images:
        if image.cuda and image.cuda.images:
            found |= {(name, image.cell.arch) for name in image.cuda.images}
        elif not image.is_bootstrapped:
            found.add((image.base.references[image.cell.arch], image.cell.arch))
    return sorted(found)


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


def not_locked(failures: Sequence[BuildImagesError], store: Store) -> BuildImagesError:
    """One error for all that could not be locked; its exit code is the gravest."""
    texts = [str(one) for one in failures]
    count = f"{counted(len(texts), 'thing')} could not be locked; the rest is written:"
    text = "\n".join([count, *texts])
    if any(isinstance(one, Changed) for one in failures):
        return Changed(text, hint=UPDATE_HINT)
    sources = any(isinstance(one, Unfetched) for one in failures)
    return MissingPrerequisite(text, hint=MIRROR_HINT.format(store=store.path) if sources else "")
