"""The locked sources of images, brought into the store of the builder's home."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.build.mirror import find_mirror
from builder.build.stages import brought_bases
from builder.build.workspace import write_spec
from builder.compile.spec import base_archive
from builder.model import LockedSource, Site, Spec
from builder.model.digests import sha256_of_file
from builder.model.errors import MissingPrerequisite
from builder.model.inputs import DEBIAN_SOURCE
from builder.sources.base_digests import MIRROR_HINT, SilentRegistry, registry_of, unreachable
from builder.sources.download import Downloader
from builder.sources.locking import SourceRequest
from builder.sources.store import SourceStore, fetch_all
from builder.system.home import Home
from builder.system.terminal import Progress

_LARGE = 20_000_000  # bytes; of such a file each quarter is told


def sources_of(specs: Iterable[Spec]) -> tuple[LockedSource, ...]:
    """The files that some specs copy in, each once."""
    found = {one.url: one for spec in specs for one in spec.sources}
    return tuple(found[url] for url in sorted(found))


def fetched(
    sources: Collection[LockedSource], store: SourceStore, progress: Progress, *, offline: bool
) -> dict[str, Path]:
    """Their files in the store, verified, by URL; see `builder.sources.fetch_all` for errors."""
    return fetch_all(
        store,
        sources,
        downloader=Downloader(),
        offline=offline,
        on_progress=DownloadProgress(progress),
    )


def store_of(
    project: Path, site: Site, sources: Collection[LockedSource] | Collection[SourceRequest] = ()
) -> SourceStore:
    """The store in the builder's home; with this machine's Debian mirror if one is needed."""
    groups = (one.urls if isinstance(one, SourceRequest) else (one.url,) for one in sources)
    urls = [url for group in groups for url in group]
    debian = find_mirror().main if any(url.startswith(DEBIAN_SOURCE) for url in urls) else ""
    home = Home.of_environment().sources
    return SourceStore(path=home, mirrors=site.sources, debian=debian, project=project)


class DownloadProgress:
    """Progress of downloads: each start, each end, and quarters of large files."""

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


_PROGRAM = Path(__file__).parents[1]
_FILES = ("matrix.yaml", "lock.yaml", "site.yaml", "tests/images/checks.yaml")
_FOLDERS = ("recipes", "base-images", "facts", "files")  # the checks' scripts count with the specs


def project_digests(project: Path) -> dict[str, str]:
    """`sha256:…` of each file that declares images, by its path in the project."""
    return {
        path.relative_to(project).as_posix(): f"sha256:{sha256_of_file(path)}"
        for path in _declaring(project)
    }


def _declaring(project: Path) -> Iterator[Path]:
    yield from (path for name in _FILES if (path := project / name).is_file())
    for name in _FOLDERS:
        yield from sorted(one for one in (project / name).rglob("*") if one.is_file())


def program_digest(program: Path = _PROGRAM) -> str:
    """One `sha256:…` over all files of this program, whatever the time or the place they have.

    Each counts with its path and its SHA-256; compiled Python does not.
    """
    whole = hashlib.sha256()
    for path in sorted(one for one in program.rglob("*") if one.is_file()):
        if path.suffix != ".pyc":
            name = path.relative_to(program).as_posix()
            whole.update(f"{sha256_of_file(path)}  {name}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def files_of(
    declared: Mapping[str, str], recipes: Sequence[str], bases: Sequence[str]
) -> dict[str, str]:
    """Those of a project's files that declare one image, by the names of its recipes and bases.

    A file has the name of what it declares. In a project that has it otherwise, all are kept.
    """
    wanted = {"recipes/": set(recipes), "base-images/": set(bases)}
    kept = dict(declared)
    for folder, names in wanted.items():
        others = [path for path in declared if path.startswith(folder)]
        own = [path for path in others if PurePosixPath(path).stem in names]
        if {PurePosixPath(path).stem for path in own} == names:
            for path in set(others) - set(own):
                del kept[path]
    return kept


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfReach:
    """The registries without an answer, and the specs that cannot be built without them."""

    registries: tuple[SilentRegistry, ...] = ()
    specs: tuple[Spec, ...] = ()

    def reasons(self) -> Mapping[str, str]:
        """Return which registry each image waits for, by identifier."""
        return {
            spec.image.identifier: "; ".join(
                str(one) for one in self.registries if one.registry in _registries(spec)
            )
            for spec in self.specs
        }

    def error(self, out: Path) -> MissingPrerequisite:
        """What to tell: which registry, what was not built, how to name a mirror."""
        count = "1 image was" if len(self.specs) == 1 else f"{len(self.specs)} images were"
        lines = [str(one) for one in self.registries]
        lines += [f"{count} not built for that; the specs are there:"]
        lines += [f"  {out / spec.image.identifier}" for spec in self.specs]
        hint = MIRROR_HINT.format(registry=self.registries[0].registry)
        return MissingPrerequisite("\n".join(lines), hint=hint)


def look_for_registries(
    specs: Sequence[Spec], states: Sequence[str], out: Path, *, offline: bool
) -> OutOfReach:
    """Write the specs that start from a registry and are to be built, then knock there.

    With `offline` nobody knocks: the engine has the images, or says that it lacks them. Nobody
    is asked for what the store has.
    """
    wanted = [
        spec
        for spec, state in zip(specs, states, strict=True)
        if state.startswith("to build") and not spec.image.is_bootstrapped
    ]
    if not wanted:
        return OutOfReach()
    for spec in wanted:
        write_spec(spec, None, out / spec.image.identifier, base_archive(spec.image))
    if offline:
        return OutOfReach()
    lost = unreachable({name for spec in wanted for name in _names(spec)}, {})
    silent = {one.registry for one in lost}
    return OutOfReach(
        registries=tuple(lost),
        specs=tuple(spec for spec in wanted if _registries(spec) & silent),
    )


def _registries(spec: Spec) -> set[str]:
    return {registry_of(name) for name in _names(spec)}


def _names(spec: Spec) -> set[str]:
    """The images that its stages start from and that the store lacks, as this site names them."""
    here = {one.name for one in brought_bases(spec.image, Home.of_environment())}
    return {*spec.image.registry_bases.values()} - here
