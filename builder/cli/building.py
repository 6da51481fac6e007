"""The command that works: the main job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.artifacts.settled import epoch_of
from builder.artifacts.sharing import shared_layers
from builder.build import native
from builder.build.at_work import at_work
from builder.build.bases import SECURITY, SECURITY_VARIABLE, find_mirror, kept_base
from builder.build.declared import project_digests
from builder.build.engines import ENGINES, VFS, Tools
from builder.build.lending import downloading
from builder.build.run import Run, now
from builder.cli import linting
from builder.cli.asking import check_number
from builder.cli.commands import compiled, image_states, load_plan, show_plan
from builder.cli.options import Options
from builder.cli.reaching import look_for_registries
from builder.cli.sourcing import fetched, sources_of, store_of
from builder.host import doctor as examination
from builder.load.faults import Faults
from builder.load.site import read_site
from builder.model import FORMATS, Outcome, Plan, PlannedImage, Spec
from builder.model.errors import BuildImagesError, counted
from builder.model.manifest import Manifest, ProvenImage
from builder.reports.report.folder import report_folder
from builder.reports.report.view import BuildRun
from builder.sources.package_indices import days_behind
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.progress import Progress, progress_for
from builder.verify import host_facts
from builder.verify.main_job import run_job

_COUNTS = {2: "two", 3: "three"}


def build(options: Options) -> int:
    """The main job."""
    made = load_plan(options)
    specs = compiled(options, made)
    if options.dry_run:
        show_plan(options, made)
        return 0
    states = image_states(options, made.images)
    check_number(options.selection, _to_do(states))
    progress = progress_for(options.level)
    lost = look_for_registries(options, specs, states)
    linting.check(options, _to_build(specs, states), progress.say)
    if not lost.specs:
        return _build(options, progress, made, specs, {})
    within = [spec for spec in specs if spec not in lost.specs]
    if within:
        images = tuple(spec.image for spec in within)
        rest = dataclasses.replace(made, images=images)
        _build(options, progress, rest, within, lost.reasons())
    else:
        about = BuildRun(started=now(), host=dataclasses.asdict(host_facts()))
        report_folder(options.out, made, {}, lost.reasons(), about)
    raise lost.error(_shown(options.out))


def _build(
    options: Options,
    progress: Progress,
    made: Plan,
    specs: Sequence[Spec],
    lacking: Mapping[str, str],
) -> int:
    """Build and prove what is not done yet, and say what came of it."""
    states = image_states(options, made.images)
    todo = _to_do(states)
    with contextlib.ExitStack() as held:
        run = run_for(options, progress, made, todo=todo, held=held)
        if todo:
            held.enter_context(at_work(run.tools, options.project, progress.say))
            layers = held.enter_context(shared_layers(run.tools.home.work))
            run = dataclasses.replace(run, layers=layers)
        run = dataclasses.replace(run, sources=_sources(options, progress, specs, states))
        start = time.monotonic()
        results = run_job(run, specs, jobs=options.jobs)
        took_s = round(time.monotonic() - start, 1)
        report_folder(
            run.out,
            made,
            results.reasons(lacking=False),
            {**results.reasons(lacking=True), **lacking},
            BuildRun(started=run.started, duration_s=took_s, host=dataclasses.asdict(run.host)),
        )
    if options.json:
        print((options.out / "report.json").read_text(), end="")
    else:
        print(_closing(options.out, specs, results.manifests, results.errors))
    return results.exit_code


def _to_build(specs: Sequence[Spec], states: Sequence[str]) -> list[Spec]:
    pairs = zip(specs, states, strict=True)
    return [spec for spec, state in pairs if state.startswith("to build")]


def _to_do(states: Sequence[str]) -> int:
    return sum(state.startswith("to ") for state in states)


def _sources(
    options: Options, progress: Progress, specs: Sequence[Spec], states: Sequence[str]
) -> dict[str, Path]:
    """The sources of all images that are to be built, in the store before the first of them is."""
    wanted = sources_of(
        spec for spec, state in zip(specs, states, strict=True) if state.startswith("to ")
    )
    if not wanted:
        return {}
    store = store_of(options.project, read_site(options.project, Faults()), wanted)
    return fetched(wanted, store, progress, offline=options.offline)


def run_for(
    options: Options, progress: Progress, made: Plan, *, todo: int, held: contextlib.ExitStack
) -> Run:
    """What the run needs, after this machine was found to have all of it.

    `held` is to be closed when the run is over.
    """
    processes = Processes(echo=progress.echo if options.level > 1 else None)
    home = Home.of_environment()
    tools = Tools(processes=processes, home=home)
    bootstrapped = any(image.is_bootstrapped for image in made.images)
    if todo:
        options.out.mkdir(parents=True, exist_ok=True)
        home.path.mkdir(parents=True, exist_ok=True)
        diagnosis = examination.examine(processes, home=home.path, search_path=home.search_path())
        lent = _to_be_lent(options, made)
        examination.require(
            diagnosis,
            archs=sorted({image.cell.arch for image in made.images}),
            formats=options.formats,
            engine=options.engine,
            home=home.path,
            out=options.out,
            images=min(todo, options.jobs),
            bases=any(_needs_base(options, home, image) for image in made.images),
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
                made.images,
                progress,
                offline=options.offline,
                max_index_age=options.max_index_age,
            )
        )
    mirror = find_mirror() if bootstrapped and todo and not options.offline else None
    if mirror and mirror.security == "" and any(map(_takes_security, made.images)):
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


def _needs_base(options: Options, home: Home, image: PlannedImage) -> bool:
    """Whether the base of an image may have to be made here."""
    if not image.is_bootstrapped:
        return False
    return not (options.offline and kept_base(image.base_image, store=home.bases))


def _to_be_lent(options: Options, made: Plan) -> list[str]:
    """The architectures whose build steps are to run native tools."""
    if not (options.native_tools and ENGINES[options.engine].lends):
        return []
    host = platform.machine()
    foreign = (image for image in made.images if image.cell.arch != host)
    return sorted(
        {one.cell.arch for one in foreign if not native.lacking(one.base, one.cell.arch, host)}
    )


def versions_of(tools: Tools, engine: str) -> dict[str, str]:
    """The versions of the programs that have a part in the result."""
    names = ["mmdebstrap", "apptainer", "ch-run", "buildah"]
    found = {name: tools.version(name) for name in names if tools.has(name)}
    if engine == "docker":
        found["docker"] = ENGINES["docker"](tools).version()
    if tools.has("qemu-ppc64le"):
        found["qemu"] = tools.version("qemu-ppc64le")
    return found


def _closing(
    out: Path,
    specs: Iterable[Spec],
    manifests: Mapping[str, Manifest],
    errors: Mapping[str, BuildImagesError],
) -> str:
    """The table that ends a run: one line an image, then where the report is."""
    lines = []
    for spec in specs:
        name = spec.image.identifier
        if name in errors:
            lines.append(f"✗ {name}  failed: see {_shown(out / name / 'build.log')}")
            continue
        manifest = manifests[name]
        mark = "✗" if manifest.outcome == "failed" else "✓"
        lines.append(f"{mark} {name}  {manifest.outcome}{notes_on(manifest)}")
        for artifact_format in [one for one in FORMATS if one in manifest.artifacts]:
            artifact = manifest.artifacts[artifact_format]
            size, digest = artifact.size / 1e6, artifact.digest[:19]
            counts = _counts(manifest.checks.get(artifact_format, ()))
            lines.append(f"    {artifact_format:12} {size:7.1f} MB  {digest}  {counts}")
    lines.append(f"report: {_shown(out / 'report.html')}")
    return "\n".join(lines)


def _shown(path: Path) -> Path:
    """A path as a person would write it: relative, where it lies below the present folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def notes_on(manifest: ProvenImage) -> str:
    """What a line about an image says besides its outcome."""
    notes = []
    if manifest.formats_equal:
        notes.append(
            f"{_COUNTS[len(manifest.artifacts)]} formats equal ({manifest.tree_digest[:19]})"
        )
    if manifest.emulated:
        notes.append("emulated")
    if manifest.proven_on_gpu is False:
        notes.append("not proven on a GPU")
    behind = days_behind(manifest.inputs) if isinstance(manifest, Manifest) else 0
    if behind:
        notes.append(f"packages {counted(behind, 'day')} behind")
    return f"  {', '.join(notes)}" if notes else ""


def _counts(outcomes: Sequence[Outcome]) -> str:
    found = [one.outcome for one in outcomes]
    return ", ".join(f"{found.count(name)} {name}" for name in dict.fromkeys(found))
