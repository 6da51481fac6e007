"""`build-images`: the main job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.artifacts.manifests import ImageState, epoch_of, judged_manifests
from builder.artifacts.repack import shared_layers
from builder.build import listings
from builder.build.at_work import at_work
from builder.build.inputs import fetch_sources, look_for_registries
from builder.build.planning import compile_images, image_states, load_plan, states_of_stages
from builder.build.run import BuildSettings
from builder.build.site_store import site_store
from builder.cli.lint import check
from builder.cli.options import Parser, SelectorOptions
from builder.model import FORMATS, Outcome, Plan, Selection, Spec
from builder.model.errors import BadInput, BuildImagesError
from builder.model.manifest import LOG, Manifest
from builder.reports.report import BuildRun, report_files, report_of_run
from builder.system.files import write_texts
from builder.system.terminal import Progress, progress_for
from builder.verify.checks import notes_on
from builder.verify.evidence import host_of_checks
from builder.verify.image_job import state_of_image
from builder.verify.main_job import run_job
from builder.verify.preparation import prepare
from builder.verify.shared_images import take_images

MANY = 20  # images, minutes each; `--arch ppc64le --cuda 10.1` selects 16
MOST_WITH_STAGES = 50  # images; for more, no stages are shown
_HINT = "use --all to build them all, --dry-run to list them, --arch, --recipe or --image for fewer"


class BuildOptions(SelectorOptions):
    engine: str
    format: Sequence[str]
    jobs: int
    refresh: bool
    no_cache: bool
    no_native_tools: bool
    max_index_age: int | None
    no_verify: bool
    no_lint: bool
    offline: bool
    dry_run: bool
    json: bool
    on: str

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats in their usual order, with OCI: the others are made from it."""
        return tuple(name for name in FORMATS if name == "oci" or name in (self.format or FORMATS))


def declare(parser: Parser) -> None:
    parser.add_output("folder for images and report (default: PROJECT/out)")
    parser.add_argument(
        "--engine", choices=("buildah", "docker"), default="buildah", help="default: buildah"
    )
    text = "pack only this format and the OCI image (may be repeated; default: all)"
    parser.add_list("--format", text, choices=FORMATS)
    text = "images to work on at once (default: the number of cores, at most 4)"
    parser.add_number("--jobs", text, default=min(4, os.cpu_count() or 1))
    parser.add_flag("--refresh", "build everything again, bases included, with today's packages")
    parser.add_flag("--no-cache", "run every build step again, on the existing bases")
    parser.add_no_native_tools()
    parser.add_max_index_age()
    parser.add_flag("--no-verify", "build and pack only")
    parser.add_no_lint()
    parser.add_offline()
    parser.add_flag("--dry-run", "show what would be done, and do nothing")
    parser.add_json("print the report as JSON")
    text = (
        "build and verify on the workers of a Dask scheduler (tcp://login1:8786), or on "
        "workers that are started for this run (slurm); docs/scale-out.md"
    )
    parser.add_argument("--on", metavar="SCHEDULER", default="", help=text)


def run(options: BuildOptions) -> int:
    """Build and verify the selected images, and print the results."""
    plan = load_plan(options.project, options.selection)
    specs = compile_images(options.project, plan.images)
    settings = _settings(options)
    _check_on(options, settings)
    states = image_states(options.out, plan.images, settings if settings.cache else None)
    if options.dry_run:
        _show(options, plan, states)
        return 0
    asked = [
        image for image, state in zip(plan.images, states, strict=True) if state.work != "none"
    ]
    foreign = {image.cell.arch for image in asked} - {platform.machine()}
    check_number(options.selection, len(asked), () if options.on else sorted(foreign))
    known = {spec.image.identifier: state_of_image(settings, spec) for spec in specs}
    todo = [spec for spec in specs if known[spec.image.identifier].work != "none"]
    to_build = [spec for spec in todo if known[spec.image.identifier].work == "build"]
    progress = progress_for(options.level)
    is_offline = options.offline or bool(options.on)  # then workers ask the registries
    lost = look_for_registries(to_build, options.out, offline=is_offline)
    if not options.no_lint:
        check(options.project, to_build, progress.say, cached=not options.no_cache)
    specs = [spec for spec in specs if spec not in lost.specs]
    todo = [spec for spec in todo if spec not in lost.specs]
    plan = dataclasses.replace(plan, images=tuple(spec.image for spec in specs))
    code = _build(options, progress, plan, specs, todo, lost.reasons(), known)
    if lost.specs:
        raise lost.error(_shown(options.out))
    return code


def _show(options: BuildOptions, plan: Plan, states: Sequence[ImageState]) -> None:
    """Print what would be done, by image and stage."""
    stages = states_of_stages(plan.images, _settings(options))
    if options.json:
        options.stream(listings.plan_json(plan, states, stages))
    else:
        print(listings.plan_text(plan, states, stages if len(stages) <= MOST_WITH_STAGES else ()))


def _build(
    options: BuildOptions,
    progress: Progress,
    plan: Plan,
    specs: Sequence[Spec],
    todo: Sequence[Spec],
    lacking: Mapping[str, str],
    states: Mapping[str, ImageState],
) -> int:
    """Build and verify the images that are not done yet, and print the results."""
    with contextlib.ExitStack() as held:
        needed = 0 if options.on else len(todo)  # then the workers need the engine, and the rest
        run = prepare(_settings(options), progress, plan.images, todo=needed, held=held)
        elsewhere = None
        if todo and options.on:
            from builder.verify.cluster import run as on_workers  # noqa: PLC0415 - slow to import

            run = held.enter_context(on_workers.with_store(run))
            todo = take_images(run, todo, jobs=options.jobs)
            if todo:
                elsewhere = held.enter_context(on_workers.workers_of(options.on, run, todo))
        elif todo:
            held.enter_context(at_work(run.tools, options.project, progress.say))
            layers = held.enter_context(shared_layers(run.tools.home.work))
            shared = site_store(options.project, run.tools, progress.say, offline=options.offline)
            run = dataclasses.replace(run, layers=layers, shared=shared)
            todo = take_images(run, todo, jobs=options.jobs)
        if not options.on:  # all sources are fetched before the first image is built
            sources = fetch_sources(options.project, todo, progress, offline=options.offline)
            run = dataclasses.replace(run, sources=sources)
        start = time.monotonic()
        results = run_job(run, specs, jobs=options.jobs, elsewhere=elsewhere, states=states)
        took_s = round(time.monotonic() - start, 1)
        out = run.settings.out
        evidence = [
            out / name / file
            for name, manifest in results.manifests.items()
            for file in manifest.evidence
        ]
        host = host_of_checks(evidence) or dataclasses.asdict(run.host)
        report = report_of_run(
            judged_manifests(out),
            plan,
            results.reasons(lacking=False),
            {**results.reasons(lacking=True), **lacking},
            BuildRun(started=run.started, duration_s=took_s, host=host),
        )
        write_texts(options.out, report_files(report, options.out.resolve().name))
    if options.json:
        options.print_json((options.out / "report.json").read_text().rstrip("\n"))
    elif specs:
        print(_closing(options.out, specs, results.manifests, results.errors))
    return results.exit_code


def _check_on(options: BuildOptions, settings: BuildSettings) -> None:
    """Raise `BadInput` for what a run on workers cannot have."""
    if not options.on:
        return
    from builder.verify.cluster.run import check_on  # noqa: PLC0415 - slow to import

    check_on(options.on, settings)
    refused = {"--refresh": options.refresh, "--no-cache": options.no_cache}
    if names := [name for name, is_set in refused.items() if is_set]:
        raise BadInput(
            f"{' and '.join(names)}: not with --on: workers take what others made from the store",
            hint="remove entries with 'build-images gc --store', or build on one machine",
        )


def _settings(options: BuildOptions) -> BuildSettings:
    return BuildSettings(
        project=options.project,
        out=options.out,
        engine=options.engine,
        jobs=options.jobs,
        formats=options.formats,
        refresh=options.refresh,
        cache=not (options.no_cache or options.refresh),
        epoch=epoch_of(os.environ),
        verify=not options.no_verify,
        native_tools=not options.no_native_tools,
        offline=options.offline,
        max_index_age=options.max_index_age,
        verbose=options.level > 1,
    )


def check_number(selection: Selection, number: int, emulated: Sequence[str] = ()) -> None:
    """Ask for confirmation of what a selector may not mean; raise `BadInput` if it is denied.

    These are many images, since `--arch x86_64` selects every recipe; without a terminal the answer
    is no. And `emulated`, the foreign architectures of images that are selected without `--arch`;
    they are asked about on a terminal alone.
    """
    is_chosen = selection.patterns or selection.images
    if selection.everything or not is_chosen:
        return
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    question = f"{number} images are to be built"
    if number <= MANY:
        if not (emulated and is_terminal) or "arch" in selection.patterns or selection.images:
            return
        question += f", some under emulation ({', '.join(emulated)}: no --arch was given)"
    if not is_terminal:
        raise BadInput(f"{question}, but there is no terminal to confirm that", hint=_HINT)
    print(f"{question}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise BadInput("nothing was built", hint=_HINT)


def _closing(
    out: Path,
    specs: Iterable[Spec],
    manifests: Mapping[str, Manifest],
    errors: Mapping[str, BuildImagesError],
) -> str:
    """Return the last lines of a run: each image with its artifacts, and the report's path."""
    lines = list[str]()
    for spec in specs:
        name = spec.image.identifier
        if name in errors:
            log = out / name / LOG
            lines.append(f"✗ {name}  failed{f': see {_shown(log)}' if log.exists() else ''}")
            continue
        manifest = manifests[name]
        mark = "✗" if manifest.outcome == "failed" else "✓"
        lines.append(f"{mark} {name}  {manifest.outcome}{notes_on(manifest)}")
        for artifact_format in [fmt for fmt in FORMATS if fmt in manifest.artifacts]:
            artifact = manifest.artifacts[artifact_format]
            size, digest = artifact.size / 1e6, artifact.digest[:19]
            counts = _counts(manifest.checks.get(artifact_format, ()))
            lines.append(f"    {artifact_format:12} {size:7.1f} MB  {digest}  {counts}")
    lines.append(f"report: {_shown(out / 'report.html')}")
    return "\n".join(lines)


def _shown(path: Path) -> Path:
    """Return a path for messages: relative if it lies below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _counts(outcomes: Sequence[Outcome]) -> str:
    names = [check.outcome for check in outcomes]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
