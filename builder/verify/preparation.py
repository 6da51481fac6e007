"""What builds and proves images, after this machine was found to have all of it."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.settled import epoch_of
from builder.build.base_store import SECURITY, kept_base
from builder.build.engines import ENGINES, VFS, Tools
from builder.build.inputs import project_digests
from builder.build.mirror import SECURITY_VARIABLE, find_mirror
from builder.build.native.tools import lacking
from builder.build.run import Run, downloading
from builder.host import doctor as examination
from builder.model import FORMATS, Plan, PlannedImage
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSettings:
    """How images are built. Without `cache`, every build step runs again.

    `max_index_age` is in days, None for the default. With `verbose`, all subprocess output is
    shown.
    """

    project: Path
    out: Path
    engine: str = "buildah"
    jobs: int = 1
    formats: tuple[str, ...] = FORMATS
    refresh: bool = False
    cache: bool = True
    verify: bool = True
    native_tools: bool = True
    offline: bool = False
    max_index_age: int | None = None
    verbose: bool = False


def prepare(
    options: BuildSettings, progress: Progress, plan: Plan, *, todo: int, held: ExitStack
) -> Run:
    """Return what `todo` images of a plan are built with, if this machine has all of it.

    `held` is to be closed when the run is over. Raises `MissingPrerequisite` with all that is
    missing.
    """
    processes = Processes(echo=progress.echo if options.verbose else None)
    home = Home.of_environment()
    tools = Tools(processes=processes, home=home)
    bootstrapped = any(image.is_bootstrapped for image in plan.images)
    if todo:
        options.out.mkdir(parents=True, exist_ok=True)
        home.path.mkdir(parents=True, exist_ok=True)
        diagnosis = examination.examine(processes, home=home.path, search_path=home.search_path())
        lent = _to_be_lent(options, plan)
        examination.require(
            diagnosis,
            archs=sorted({image.cell.arch for image in plan.images}),
            formats=options.formats,
            engine=options.engine,
            home=home.path,
            out=options.out,
            images=min(todo, options.jobs),
            bases=any(_needs_base(options, home, image) for image in plan.images),
            lent=lent,
        )
        for item in (diagnosis.items[f"native:{arch}"] for arch in lent):
            if not item.ok:
                progress.say(f"{item.title}: {item.text} ({item.remedy})")
        if diagnosis.items["store"].data["driver"] == VFS:
            progress.say(f"the store: {diagnosis.items['store'].text}")
        tools = held.enter_context(
            downloading(
                tools,
                home,
                plan.images,
                progress,
                offline=options.offline,
                max_index_age=options.max_index_age,
            )
        )
    mirror = find_mirror() if bootstrapped and todo and not options.offline else None
    if mirror and mirror.security == "" and any(map(_takes_security, plan.images)):
        progress.say(f"without security updates, as {SECURITY_VARIABLE} says")
    return Run(
        tools=tools,
        engine=ENGINES[options.engine](tools),
        mirror=mirror,
        out=options.out,
        progress=progress,
        host=host_facts(),
        versions=versions_of(tools, options.engine) if todo else {},
        epoch=epoch_of(os.environ),
        formats=options.formats,
        refresh=options.refresh,
        cache=options.cache and not options.refresh,
        verify=options.verify,
        native_tools=options.native_tools,
        offline=options.offline,
        declared=project_digests(options.project) if todo else {},
    )


def _takes_security(image: PlannedImage) -> bool:
    return bool(image.base.bootstrap and SECURITY in image.base.bootstrap.pockets)


def _needs_base(options: BuildSettings, home: Home, image: PlannedImage) -> bool:
    """Return whether the base of an image may have to be made here."""
    if not image.is_bootstrapped:
        return False
    return not (options.offline and kept_base(image.base_image, store=home.bases))


def _to_be_lent(options: BuildSettings, plan: Plan) -> list[str]:
    """The architectures whose build steps are to run native tools."""
    if not (options.native_tools and ENGINES[options.engine].lends):
        return []
    host = platform.machine()
    foreign = (image for image in plan.images if image.cell.arch != host)
    return sorted({one.cell.arch for one in foreign if not lacking(one.base, one.cell.arch, host)})


def versions_of(tools: Tools, engine: str) -> dict[str, str]:
    """The versions of the programs that have a part in the result."""
    names = ["mmdebstrap", "apptainer", "ch-run", "buildah"]
    found = {name: tools.version(name) for name in names if tools.has(name)}
    if engine == "docker":
        found["docker"] = ENGINES["docker"](tools).version()
    if tools.has("qemu-ppc64le"):
        found["qemu"] = tools.version("qemu-ppc64le")
    return found
