"""Prepare a run that builds and verifies images, if this machine has what it needs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from builder.build.base_store import kept_base
from builder.build.engines import ENGINES, VFS, Tools
from builder.build.engines.storage import try_storage
from builder.build.inputs import project_digests
from builder.build.mirror import (
    SECURITY_VARIABLE,
    DebianMirror,
    find_mirror,
    mirror_of,
    takes_security,
)
from builder.build.native import is_lent
from builder.build.native.tools import lacking
from builder.build.run import BuildSettings, Run, downloading
from builder.host import doctor as examination
from builder.model import BaseImage, Plan, PlannedImage
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class ExaminedMachine:
    """A machine as it was examined, and the versions of its programs for an engine, if known."""

    engine: str
    diagnosis: examination.Diagnosis
    versions: Mapping[str, str] = field(default_factory=dict)


def prepare(
    options: BuildSettings,
    progress: Progress,
    plan: Plan,
    *,
    todo: int,
    held: ExitStack,
    bases: bool = True,
    machine: ExaminedMachine | None = None,
) -> Run:
    """Return the run for `todo` images of a plan, if this machine has all that it needs.

    The caller closes `held` after the run. Without `bases`, no base is made. A `machine` that is
    known is not examined. Raises `MissingPrerequisite` with everything that is missing.
    """
    processes = Processes(echo=progress.echo if options.verbose else None)
    home = Home.of_environment()
    tools = Tools(processes=processes, home=home)
    mirror, versions = None, {}
    if todo:
        options.out.mkdir(parents=True, exist_ok=True)
        home.path.mkdir(parents=True, exist_ok=True)
        local = [image for image in plan.images if image.is_bootstrapped] if bases else []
        diagnosis = machine.diagnosis if machine else examined(tools)
        number = min(todo, options.jobs)
        _require(options, progress, plan, diagnosis, home, images=number, local=local)
        tools = held.enter_context(downloading(tools, home, plan.images, progress, options))
        if not options.offline:
            mirror = _machine_mirror([image.base for image in local], progress)
        examined_before = dict(machine.versions) if machine else {}
        versions = examined_before or versions_of(tools, options.engine, diagnosis)
    return Run(
        settings=options,
        tools=tools,
        engine=ENGINES[options.engine](tools),
        mirror=mirror,
        progress=progress,
        host=host_facts(),
        versions=versions,
        declared=project_digests(options.project) if todo else {},
    )


def _machine_mirror(bases: Sequence[BaseImage], progress: Progress) -> DebianMirror | None:
    """Return this machine's mirror, if a base needs it; say if a base gets no security updates."""
    mirror = None if all(base.mirrors for base in bases) else find_mirror()
    secured = [base for base in bases if takes_security(base)]
    if any(mirror_of(base, find_mirror).security == "" for base in secured):
        progress.say(f"{SECURITY_VARIABLE} turns security updates off")
    return mirror


def _require(
    options: BuildSettings,
    progress: Progress,
    plan: Plan,
    diagnosis: examination.Diagnosis,
    home: Home,
    *,
    images: int,
    local: Sequence[PlannedImage],
) -> None:
    """Raise `MissingPrerequisite` with all that is missing; `local` are images on local bases."""
    host = platform.machine()
    lent = set()  # architectures whose build steps run native tools
    if options.native_tools and ENGINES[options.engine].lends:
        foreign = [image for image in plan.images if image.cell.arch != host]
        lent = {
            image.cell.arch for image in foreign if not lacking(image.base, image.cell.arch, host)
        }
    examination.require(
        diagnosis,
        archs=sorted({image.cell.arch for image in plan.images}),
        formats=options.formats,
        engine=options.engine,
        home=home.path,
        out=options.out,
        images=images,
        bases=any(
            not (options.offline and kept_base(image.base_image, store=home.bases))
            for image in local
        ),
        lent=sorted(lent),
    )
    for item in (diagnosis.items[f"native:{arch}"] for arch in sorted(lent)):
        if not item.ok:
            progress.say(f"{item.title}: {item.text} ({item.remedy})")
    if diagnosis.items["store"].data["driver"] == VFS:
        progress.say(f"the store: {diagnosis.items['store'].text}")


def examined(tools: Tools) -> examination.Diagnosis:
    """Examine this machine, with its storage and its native tools."""
    return examination.examine(
        tools.processes,
        home=tools.home.path,
        search_path=tools.home.search_path(),
        try_storage=try_storage,
        is_lent=is_lent,
    )


def versions_of(
    tools: Tools, engine: str, diagnosis: examination.Diagnosis | None = None
) -> dict[str, str]:
    """Return the versions of the programs that affect the result; a diagnosis knows most."""
    names = ["mmdebstrap", "apptainer", "ch-run", "buildah"]
    known = diagnosis.items if diagnosis else {}
    versions = {
        name: str(known[name].data["version"]) if name in known else tools.version(name)
        for name in names
        if tools.has(name)
    }
    if engine == "docker":
        versions["docker"] = ENGINES["docker"](tools).version()
    if tools.has("qemu-ppc64le"):
        versions["qemu"] = tools.version("qemu-ppc64le")
    return versions
