"""One run of the main job: values that its images share, and folders mounted in build steps."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.manifests import ImageGoal
from builder.artifacts.repack import SharedLayers
from builder.build.base_store import Bootstrapping, StoredBase, sources
from builder.build.engines import DockerfileBuild, Engine, Lent, Tools
from builder.build.engines.protocol import tag
from builder.build.mirror import DebianMirror, find_mirror, mirror_of
from builder.build.native import HOST, is_open
from builder.build.native.tools import NativeTools, ensure_tools, lacking, newest_tools
from builder.model import PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput, counted
from builder.model.measurement import HostFacts
from builder.model.package_indices import IndexState, distinct
from builder.sources.package_proxy import package_cache, pip_configuration
from builder.sources.site_store import SiteStore
from builder.sources.suites import MOST_BEHIND, Suites, state_beside
from builder.system.home import LENT_AT, PIP_AT, Home
from builder.system.terminal import Progress


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSettings(ImageGoal):
    """The settings of a run. Without `cache`, no finished build step or artifact is used again.

    `refresh` makes everything anew, bases included. With `offline`, whatever the home has is used
    without asking a mirror or a registry. `max_index_age` is in days, None for the default. With
    `verbose`, all output of subprocesses is shown.
    """

    project: Path
    out: Path
    jobs: int = 1
    refresh: bool = False
    cache: bool = True
    offline: bool = False
    max_index_age: int | None = None
    verbose: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the main job: its settings, tools and engine.

    `sources` are the files of the store by URL, `declared` the digests of the project's files by
    path, `layers` the layers that its images share, `shared` is the site's store.
    """

    settings: BuildSettings
    tools: Tools
    engine: Engine
    progress: Progress
    host: HostFacts
    mirror: DebianMirror | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    started: str = field(default_factory=now)
    sources: Mapping[str, Path] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    layers: SharedLayers | None = None
    shared: SiteStore = field(default_factory=SiteStore)

    def stop(self) -> None:
        """End its subprocesses and transfers; those who wait for them get `Interrupted`."""
        self.tools.processes.stop()
        self.shared.stop()

    @property
    def not_before(self) -> str:
        """Stored things made before this time are made anew; empty to keep all."""
        return self.started if self.settings.refresh else ""


@dataclass(frozen=True, slots=True)
class Timer:
    """Seconds spent in each step of one image, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a step."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)


MAX_INDEX_AGE = "BUILD_IMAGES_MAX_INDEX_AGE"


def build_dockerfile(
    run: Run,
    image: PlannedImage,
    folder: Path,
    *,
    log: Path,
    name: str = "",
    file: str = "Dockerfile",
    bases: Sequence[StoredBase] = (),
) -> None:
    """Build a Dockerfile on some bases; mount native tools and pip's configuration in its steps.

    `name` is the name of the result in the engine, by default that of the image.
    """
    name = name or tag(image)
    for base in bases:
        run.engine.provide_base(base, log=log)
    lent: list[Lent] = []
    with run.tools.installing():
        if run.engine.lends and (tools := native_tools(run, image, log=log)):
            lent.append(Lent(path=tools.root, at=LENT_AT))
        if run.engine.lends and uses_pip(image) and (pip := run.tools.pip_for(name)):
            lent.append(Lent(path=pip, at=PIP_AT))
        run.engine.build(
            DockerfileBuild(
                image=image,
                context=folder,
                name=name,
                log=log,
                on_line=lambda line: run.progress.detail(image.identifier, line),
                on_output=lambda line: run.progress.output(image.identifier, line),
                file=file,
                cache=run.settings.cache,
                lent=lent,
            )
        )


@contextlib.contextmanager
def downloading(
    tools: Tools,
    home: Home,
    images: Sequence[PlannedImage],
    progress: Progress,
    settings: BuildSettings,
) -> Iterator[Tools]:
    """Yield tools that download through the package cache of a home; report what it saved.

    Their journals list what each build downloaded.
    """
    with contextlib.ExitStack() as held:
        suites = Suites(
            architectures=_archs(images),
            say=progress.say,
            most_behind=_most_behind(settings.max_index_age),
        )
        shared = home.shared / home.packages.name if home.shared else None
        cache = held.enter_context(
            package_cache(home.packages, offline=settings.offline, suites=suites, shared=shared)
        )
        pip = ""
        if any(map(uses_pip, images)):
            pip = held.enter_context(pip_configuration(cache, home.packages, tools.processes))
        yield dataclasses.replace(tools, packages=cache, pip=pip, journals=cache.journals)
    if cache.taken:
        share = f"{cache.taken} of {counted(cache.taken + cache.fetched, 'package')}"
        progress.say(f"{share} came from the cache ({cache.taken_bytes / 1e6:.0f} MB)")
    if cache.suspected:
        suspected = counted(cache.suspected, "package")
        progress.say(f"{suspected} of failed steps will be fetched again")


def _most_behind(days: int | None) -> dt.timedelta:
    """Return how much older an index may be than the index that it replaces."""
    if days is not None:
        return dt.timedelta(days=days)
    text = os.environ.get(MAX_INDEX_AGE, "")
    if text and not text.isdecimal():
        raise BadInput(f"{MAX_INDEX_AGE} is not a number of days: {text}")
    return dt.timedelta(days=int(text)) if text else MOST_BEHIND


def _archs(images: Sequence[PlannedImage]) -> frozenset[str]:
    """Return the architectures whose packages are downloaded, those of native tools included."""
    archs = {image.cell.arch for image in images}
    if archs - {HOST}:
        archs.add(HOST)
    return frozenset(ARCHITECTURES[arch].debian for arch in archs)


def index_states(
    run: Run, image: PlannedImage, name: str, *, asks: bool = True, earlier: bool = True
) -> tuple[IndexState, ...]:
    """Return the states of the package indices that a build used, by the `name` of its downloads.

    With `earlier`, builds of that name in earlier runs count, too: layers may come from them.

    Requests to an https mirror bypass the package cache. A build that `asks` for indices is then
    recorded with the state that the mirror reports right after it.
    """
    states = run.tools.index_states(name, earlier=earlier)
    if states or not asks or run.settings.offline or not image.is_bootstrapped:
        return states
    archives = sources(image.base, mirror_of(image.base, lambda: run.mirror or find_mirror()))
    secure = [archive for archive in archives if archive[0].startswith("https:")]
    return distinct(state for archive in secure if (state := state_beside(*archive)))


def uses_pip(image: PlannedImage) -> bool:
    """Return whether a recipe of the chain has the block `pip`."""
    blocks = (use for stage in image.stages for use in (*stage.development, *stage.runtime))
    return any(use.name == "pip" for use in blocks)


def native_tools(run: Run, image: PlannedImage, *, log: Path) -> NativeTools | None:
    """Return the native tools for an emulated image; fetch them first if they are missing.

    Offline, the newest tools in the store are used, whatever mirror they come from.
    """
    if not run.settings.native_tools or lacking(image.base, image.cell.arch, run.host.arch):
        return None
    if not is_open(image.cell.arch):
        text = "no native tools: the kernel's handler is not from set-up: run 'build-images setup'"
        run.progress.step(image.identifier, text)
        return None
    tools = None
    if run.settings.offline and not run.settings.refresh:
        tools = newest_tools(image.base, image.cell.arch, store=run.tools.home.native)
    if tools is None:
        store, proxy = run.tools.home.native, run.tools.downloading
        way = bootstrapping(run, image, store=store, log=log, environment=proxy)
        tools = ensure_tools(image.base, image.cell.arch, way)
    return tools


def bootstrapping(
    run: Run, image: PlannedImage, *, store: Path, log: Path, environment: Mapping[str, str]
) -> Bootstrapping:
    """Return how mmdebstrap fills a store for an image."""
    return Bootstrapping(
        store=store,
        mirror=mirror_of(image.base, lambda: run.mirror or find_mirror()),
        processes=run.tools.processes,
        log=log,
        say=lambda text: run.progress.step(image.identifier, text),
        not_before=run.not_before,
        environment=environment,
        shared=run.shared,
    )
