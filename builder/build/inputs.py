"""The inputs of a build: the project's files, its lock, locked sources, registries of bases."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.build.at_work import store_in_use
from builder.build.mirror import find_mirror
from builder.build.planning import own_images
from builder.build.stages import imported_bases
from builder.build.workspace import write_spec
from builder.compile.spec import base_archive, downloads_of
from builder.compile.spec.downloads import Downloads
from builder.load.document import Faults
from builder.load.project import CHECKS
from builder.load.site import SITE_FILE, layers_of, read_site
from builder.model import (
    Layer,
    Lock,
    LockedSource,
    PlannedImage,
    Project,
    Selection,
    Site,
    Spec,
)
from builder.model.digests import digest_of_file, sha256_of_file
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, counted
from builder.model.inputs import DEBIAN_SOURCE, INDEX_SOURCES, LOCK
from builder.model.site import PACKED, RUN_CHECKS, SHIPPED, layer_of
from builder.sources.base_digests import (
    MIRROR_HINT,
    Key,
    Registries,
    SilentRegistry,
    pin_references,
    registry_of,
    unreachable,
)
from builder.sources.debian import DebianSources
from builder.sources.download import Downloader
from builder.sources.locking import (
    Locking,
    SourceRequest,
    lock_changes,
    lock_sources,
    lock_text,
    merged,
    mismatches,
    needed,
)
from builder.sources.package_index import PackageIndex
from builder.sources.store import MIRROR_HINT as SOURCE_HINT
from builder.sources.store import UPDATE_HINT, Changed, SourceStore, Unfetched, fetch_all
from builder.system.files import write_atomically
from builder.system.home import Home
from builder.system.host_facts import own_index
from builder.system.process import Processes
from builder.system.terminal import Progress

_LARGE = 20_000_000  # bytes; progress shows each quarter of larger files


def sources_of(specs: Iterable[Spec]) -> tuple[LockedSource, ...]:
    """Return the source files that specs copy in, each once, sorted by URL."""
    sources = {source.url: source for spec in specs for source in spec.sources}
    return tuple(sources[url] for url in sorted(sources))


def fetch_sources(
    project: Path, specs: Iterable[Spec], progress: Progress, *, offline: bool
) -> dict[str, Path]:
    """Return specs' source files by URL, verified and stored; raises what `fetch_all` raises."""
    sources = sources_of(specs)
    if not sources:
        return {}
    return fetch_all(
        store_of(project, read_site(project, Faults()), [source.url for source in sources]),
        sources,
        downloader=Downloader(),
        offline=offline,
        on_progress=DownloadProgress(progress),
    )


def store_of(project: Path, site: Site, urls: Iterable[str]) -> SourceStore:
    """Return the store in the builder's home, with this machine's mirror and index if needed."""
    kinds = {url.partition(":")[0] + ":" for url in urls}
    return SourceStore(
        path=Home.of_environment().sources,
        mirrors=site.sources,
        debian=find_mirror().main if DEBIAN_SOURCE in kinds else "",
        index=own_index(Processes()) if kinds.intersection(INDEX_SOURCES) else "",
        layers=layers_of(project),
    )


class DownloadProgress:
    """Progress of downloads: each start, each end, and quarters of large files."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._quarters: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, source: LockedSource, size: int) -> None:
        quarter = 4 * size // source.size if source.size > _LARGE or size >= source.size else 0
        with self._lock:
            if quarter <= self._quarters.get(source.url, -1):
                return
            self._quarters[source.url] = quarter
        percent = f"{min(25 * quarter, 100)} % of {source.size / 1e6:.1f} MB"
        self._progress.say(f"{source.file}: {percent}")


_PROGRAM = Path(__file__).parents[1]
_FILES = ("matrix.yaml", "lock.yaml", "tests/images/checks.yaml")
_NAMED = ("recipes/", "base-images/")  # a file here replaces the one of that name in a lower layer
_FOLDERS = (*_NAMED, "facts", "files")  # the checks' scripts are part of specs


def project_digests(project: Path) -> dict[str, str]:
    """Return `sha256:…` of each file that declares images, by its name in messages."""
    files: dict[str, tuple[str, Path]] = {}
    for layer in (layers := layers_of(project)).each:
        for name in (*_declaring(layer), *([SITE_FILE] if layer == layers.own else [])):
            shown = layer.shown(name)
            key = re.sub(r"\.ya?ml$", "", name) if name.startswith(_NAMED) else shown
            files[key] = shown, layer.folder / name
    return {shown: digest_of_file(path) for shown, path in files.values() if path.is_file()}


def packed_files(project: Path, local: Collection[str] = ()) -> dict[str, Path]:
    """Return the files of all layers by their paths in a copy of the project for other machines.

    `local` are paths of sources that lie in the project, or are linked from it. A site's settings
    are left out. Raises `BadInput` for another link to a file outside of its layer.
    """
    layers = layers_of(project)
    files = {} if layers.holders(RUN_CHECKS) else {RUN_CHECKS: layers.run_checks}
    for layer in layers.each:
        inside = "" if layer == layers.own else f"{PACKED}/{layer.name}/"
        scripts = _below(layer, Path(CHECKS).parent.as_posix())
        for name in (*_declaring(layer), *scripts, *local):
            path, is_own = layer.folder / name, layer.name != SHIPPED and name not in local
            if path.is_file():
                if is_own and not path.resolve().is_relative_to(layer.folder.resolve()):
                    raise BadInput(f"{path}: a link out of the project", hint="copy its target")
                files[f"{inside}{name}"] = path
    return files


def _declaring(layer: Layer) -> list[str]:
    """Return the paths of a layer's files that declare images."""
    return [*_FILES, *(name for folder in _FOLDERS for name in _below(layer, folder))]


def _below(layer: Layer, folder: str) -> Iterator[str]:
    """Yield the files below a layer's folder, but none that is hidden beside recipes and bases."""
    for path in sorted((layer.folder / folder).rglob("*")):
        name = path.relative_to(layer.folder).as_posix()
        is_hidden = name.startswith(_NAMED) and "/." in name
        if path.is_file() and "__pycache__" not in path.parts and not is_hidden:
            yield name


def program_digest(program: Path = _PROGRAM) -> str:
    """Return one `sha256:…` over all files of this program, wherever and whenever installed.

    Each file counts with its relative path and its SHA-256; compiled Python is left out.
    """
    digest = hashlib.sha256()
    for path in sorted(program.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            name = path.relative_to(program).as_posix()
            digest.update(f"{sha256_of_file(path)}  {name}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def files_of(
    declared: Mapping[str, str], recipes: Sequence[str], bases: Sequence[str]
) -> dict[str, str]:
    """Return the files of a project that declare one image, by the names of its recipes and bases.

    Files are named after what they declare. If a project names them otherwise, all are returned.
    """
    files = dict(declared)
    for folder, names in {"recipes/": {*recipes}, "base-images/": {*bases}}.items():
        stems = {
            path: PurePosixPath(path).stem
            for path in declared
            if path.removeprefix(f"{layer_of(path)}:").startswith(folder)
        }
        if names <= {*stems.values()}:
            files = {
                path: text for path, text in files.items() if stems.get(path, "") in {"", *names}
            }
    return files


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreachableBases:
    """Registries that do not answer, and the specs that cannot be built without them."""

    registries: tuple[SilentRegistry, ...] = ()
    specs: tuple[Spec, ...] = ()

    def reasons(self) -> Mapping[str, str]:
        """Return which registries each image lacks, by identifier."""
        return {
            spec.image.identifier: "; ".join(
                str(one) for one in self.registries if one.registry in _registries(spec)
            )
            for spec in self.specs
        }

    def error(self, out: Path) -> MissingPrerequisite:
        """Return the error: the registries, the images not built, and how to name a mirror."""
        count = "1 image was" if len(self.specs) == 1 else f"{len(self.specs)} images were"
        lines = [str(one) for one in self.registries]
        lines += [f"{count} not built for that reason; their specs are in:"]
        lines += [f"  {out / spec.image.identifier}" for spec in self.specs]
        hint = MIRROR_HINT.format(registry=self.registries[0].registry)
        return MissingPrerequisite("\n".join(lines), hint=hint)


def look_for_registries(specs: Sequence[Spec], out: Path, *, offline: bool) -> UnreachableBases:
    """Write those of the specs to build that start from a registry, and test whether it answers.

    With `offline`, no registry is tested: the engine has the images or reports that it lacks them.
    Registries of images in the store are not tested either.
    """
    remote = [spec for spec in specs if not spec.image.is_bootstrapped]
    if not remote:
        return UnreachableBases()
    for spec in remote:
        write_spec(spec, None, out / spec.image.identifier, base_archive(spec.image))
    if offline:
        return UnreachableBases()
    lost = tuple(unreachable({name for spec in remote for name in _names(spec)}, Registries()))
    silent = {registry.registry for registry in lost}
    specs = tuple(spec for spec in remote if _registries(spec) & silent)
    return UnreachableBases(registries=lost, specs=specs)


def _registries(spec: Spec) -> set[str]:
    return {registry_of(name) for name in _names(spec)}


def _names(spec: Spec) -> set[str]:
    """Return the images that stages start from and the store lacks, by this site's names."""
    stored = {base.name for base in imported_bases(spec.image, Home.of_environment())}
    return {*spec.image.registry_bases.values()} - stored


@dataclass(frozen=True, kw_only=True, slots=True)
class Lockable:
    """The downloads and bases of images; `retained` are the pins that other images need."""

    images: Sequence[PlannedImage]
    retained: Lock
    downloads: Downloads
    sources: Sequence[SourceRequest]
    references: Sequence[Key]

    @classmethod
    def of(cls, project: Project, selection: Selection) -> Lockable:
        """Return what the images of a selection download; without a selector, the project's own."""
        images, others = own_images(project, selection)
        downloads, retained = downloads_of(images), project.lock
        if others is not None:
            retained = needed(retained, _requests(downloads_of(others)), _references(others))
        return cls(
            images=images,
            retained=retained,
            downloads=downloads,
            sources=_requests(downloads),
            references=_references(images),
        )

    def check(self, project: Project) -> tuple[list[str], list[str]]:
        """Return the URLs and base images that the project's lock lacks.

        Raises `BadInput` for entries of the lock that do not match the project.
        """
        files = {name: recipe.where.file for name, recipe in project.recipes.items()}
        faults = mismatches(
            project.lock,
            self.sources,
            self.references,
            files,
            own=project.lock.beyond(project.inherited),
            retained=self.retained,
        )
        if faults:
            raise BadInput.of(faults)
        locked, pinned = set(project.lock.sources), project.lock.references
        unlocked = [source.urls[0] for source in self.sources if not set(source.urls) & locked]
        return unlocked, [" for ".join(key) for key in self.references if key not in pinned]

    def lock(
        self, folder: Path, project: Project, progress: Progress, *, update: bool
    ) -> tuple[Lock, BuildImagesError | None]:
        """Write the lock of a project's folder; return it, and an error if it is incomplete.

        Entries that could be locked are written, except inherited ones; the error names the others.
        """
        urls = [url for source in self.sources for url in source.urls]
        store = store_of(folder, project.site, urls)
        locking = _locking(project, store, progress, update=update)
        with store_in_use(Home.of_environment(), folder, progress.say):
            sources, unlocked = lock_sources(self.sources, project.lock, locking)
        registries = Registries(mirrors=project.site.registries)
        references, unpinned = pin_references(
            self.references, project.lock.references, registries, update=update
        )
        lock = merged(
            self.retained,
            Lock(sources={source.url: source for source in sources}, references=references),
            recipes={stage.name for image in self.images for stage in image.stages},
        ).over(project.inherited)
        own, path = lock.beyond(project.inherited), folder / LOCK
        if own.sources or own.references or path.exists():
            write_atomically(path, lock_text(own))
        failures = (*unlocked, *unpinned)
        return lock, _not_locked(failures, store) if failures else None

    @staticmethod
    def changes(project: Project, lock: Lock) -> Iterator[str]:
        """Yield a line each on the sources and the base images of a project's new lock."""
        return lock_changes(project.lock, lock, project.inherited)


def _requests(downloads: Downloads) -> list[SourceRequest]:
    """Return the source files that blocks request, each once, with all recipes that do."""
    recipes: dict[tuple[str, ...], set[str]] = {}
    for asked in downloads.asked:
        recipes.setdefault(asked.urls, set()).add(asked.recipe)
    pairs = sorted(recipes.items())
    return [SourceRequest(urls=urls, recipes=tuple(sorted(names))) for urls, names in pairs]


def _references(images: Iterable[PlannedImage]) -> list[Key]:
    """Return the registry images that images start from, under the project's names."""
    keys: set[Key] = set()
    for image in images:
        arch = image.cell.arch
        if image.cuda and image.cuda.images:
            keys |= {(name, arch) for name in image.cuda.images}
        elif not image.is_bootstrapped:
            keys.add((image.base.references[arch], arch))
    return sorted(keys)


def _locking(project: Project, store: SourceStore, progress: Progress, *, update: bool) -> Locking:
    bootstraps = [base.bootstrap for base in project.bases.values() if base.bootstrap]
    downloader = Downloader()
    debian = DebianSources(
        store=store,
        suites=tuple(dict.fromkeys(one.suite for one in reversed(bootstraps))),
        downloader=downloader,
        processes=Processes(),
        say=progress.say,
    )
    index = PackageIndex(url=store.index, downloader=downloader, folder=store.path)
    return Locking(
        store=store,
        downloader=downloader,
        resolve=lambda url: (index if url.startswith(INDEX_SOURCES) else debian).resolve(url),
        update=update,
        say=progress.say,
    )


def _not_locked(failures: Sequence[BuildImagesError], store: SourceStore) -> BuildImagesError:
    """Return one error for all entries that could not be locked, with the worst exit code."""
    texts = [str(failure) for failure in failures]
    count = f"{counted(len(texts), 'thing')} could not be locked; the rest is written:"
    text = "\n".join([count, *texts])
    if any(isinstance(failure, Changed) for failure in failures):
        return Changed(text, hint=UPDATE_HINT)
    sources = any(isinstance(failure, Unfetched) for failure in failures)
    return MissingPrerequisite(text, hint=SOURCE_HINT.format(store=store.path) if sources else "")
