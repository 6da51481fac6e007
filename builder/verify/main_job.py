"""The main job: build and verify all selected images in parallel, each failing on its own."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from builder.artifacts.manifests import ImageState, judged_manifest, read_manifest
from builder.build.engines import Buildah
from builder.build.executor import Executor, ThreadExecutor, run_all
from builder.build.run import Run
from builder.build.schedule import Schedule
from builder.build.stages import RunStages, engine_description, with_log
from builder.build.tasks import Durations, Task, TaskLimits
from builder.build.workers import ANYWHERE, Pool, Requirement, requirement_of
from builder.build.workspace import announce_run, note_failure
from builder.model import RUNTIME, KeyedStage, PlannedImage, Spec
from builder.model.errors import BuildImagesError, MissingPrerequisite, StepFailed, UnfitMachine
from builder.model.manifest import Manifest
from builder.verify.checks import failures_of
from builder.verify.image_job import ImageJob, state_of_image
from builder.verify.preparation import is_disk_full

_GIB = 1 << 30
# Estimated seconds of a task that was never measured; emulated builds take longer.
_EXPECTED_S = {"base": 30.0, "stage": 60.0, "image": 30.0, "pack": 25.0, "verify": 20.0}
_EMULATED = 5.0
# Estimated bytes that a task needs at most, unless it compiles unusually much.
_MEMORY = {"base": _GIB // 2, "stage": _GIB, "image": _GIB, "pack": _GIB // 2, "verify": _GIB // 2}
_DISK = {"base": _GIB, "stage": 2 * _GIB, "image": 3 * _GIB, "pack": 2 * _GIB, "verify": _GIB}


class RemoteExecutor(Executor, Protocol):
    """An executor whose workers make images, and which fills the output folders with them."""

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools that workers may join."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """The durations of tasks that ended, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The results of a run: manifests and errors by image, in build order."""

    manifests: Mapping[str, Manifest]
    errors: Mapping[str, BuildImagesError]

    def reasons(self, *, lacking: bool) -> dict[str, str]:
        """Return error texts by image: those where this machine lacks something, or the others."""
        return {name: str(error) for name, error in self.errors.items() if _lacks(error) is lacking}

    @property
    def exit_code(self) -> int:
        """0 if all images are verified, 4 if this machine lacked something, else 1."""
        if any(_lacks(error) for error in self.errors.values()):
            return MissingPrerequisite.exit_code
        has_failed = any(manifest.outcome == "failed" for manifest in self.manifests.values())
        return 1 if self.errors or has_failed else 0


def run_job(
    run: Run,
    specs: Sequence[Spec],
    *,
    jobs: int,
    elsewhere: RemoteExecutor | None = None,
    states: Mapping[str, ImageState] | None = None,
) -> Results:
    """Build and verify every image that is not finished, on this machine or on workers.

    `states` are those that `state_of_image` returned before: a finished image is not read again.
    """
    names = [spec.image.identifier for spec in specs]
    job = _MainJob(run, elsewhere, states or {})
    with run.progress.running(names):
        todo = [(spec, state) for spec in specs if (state := job.state(spec)).work != "none"]
        if todo:
            job.make(todo, limits_of(jobs))
    return Results(
        manifests={name: job.manifests[name] for name in names if name in job.manifests},
        errors={name: job.errors[name] for name in names if name in job.errors},
    )


def limits_of(jobs: int) -> TaskLimits:
    """Return the limits on parallel tasks for `jobs` parallel builds.

    Half as many tasks more may pack and verify, since builds wait for the network and the disk.
    More emulated builds than cores would only slow each other down.
    """
    return TaskLimits(
        tasks=jobs + jobs // 2,
        builds=jobs,
        emulated=min(jobs, os.cpu_count() or 1),
        groups=max(8, 4 * jobs),
        memory=_free_memory() * 9 // 10,
    )


def _free_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of available memory; 0 if the kernel does not report them."""
    text = meminfo.read_text() if meminfo.exists() else ""
    match = re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _lacks(error: BuildImagesError) -> bool:
    """Return whether an error is about this machine, and not about the image."""
    return error.exit_code == MissingPrerequisite.exit_code


class _MainJob:
    """The images of a run, the tasks that make them, and the results so far."""

    def __init__(
        self,
        run: Run,
        elsewhere: RemoteExecutor | None,
        states: Mapping[str, ImageState],
    ) -> None:
        self._elsewhere = elsewhere
        self._states_before = states
        # The last task of an image: a worker that only builds writes the manifest, too.
        self._last = "image" if elsewhere and not run.settings.verify else "verify"
        self.manifests: dict[str, Manifest] = {}
        self.errors: dict[str, BuildImagesError] = {}
        self._run = run
        self._jobs: dict[str, ImageJob] = {}
        self._tasks: dict[str, Task] = {}
        self._labels: dict[str, str] = {}  # of tasks, in the durations
        self._images: dict[str, list[str]] = {}  # images that wait for a task, in build order
        self._runtimes: dict[str, str] = {}  # tasks by the keys of the last development stages
        self._durations = Durations.read(run.tools.home.path)

    def state(self, spec: Spec) -> ImageState:
        """Return the remaining work for an image; a finished image is reported immediately."""
        state = self._states_before.get(spec.image.identifier)
        if state is None or state.work == "build":  # the site's store may have had the image
            state = state_of_image(self._run.settings, spec)
        if state.manifest and state.work == "none":
            note_failure(self._run.settings.out / spec.image.identifier, None)
            self._unchanged(spec.image.identifier, state.manifest)
        return state

    def make(self, todo: Sequence[tuple[Spec, ImageState]], limits: TaskLimits) -> None:
        """Make images that are not finished. `todo` is in build order."""
        run, home = self._run, self._run.tools.home
        # Workers have engines of their own; here the name keeps apart what has other stages.
        engine = run.engine.name if self._elsewhere else engine_description(home, run.engine)
        stages = RunStages(run=run, engine=engine)
        declared = stages.declared([spec.image for spec, _ in todo])
        for (spec, state), keyed in zip(todo, declared, strict=True):
            self._add_image(stages, spec, state, keyed)
        builds = [spec.image.identifier for spec, state in todo if state.work == "build"]
        with announce_run(run.settings.out, self._states(builds), run.progress.say):
            self._run_tasks(limits)

    def _states(self, builds: Sequence[str]) -> dict[str, str]:
        """Return the state of each build before it begins; show what is made for another image."""
        states = dict.fromkeys(builds, "not begun")
        for name, (first, *others) in self._images.items():
            for other in others:  # the last is the latest of its stages
                needed = f"{self._tasks[name].label}, with {first}"
                states[other] = f"not begun; it needs {needed}"
                if self._tasks[name].kind == "stage":
                    self._run.progress.detail(other, f"for {needed}")
        return dict.fromkeys(builds, "its log comes at its end") if self._elsewhere else states

    def _run_tasks(self, limits: TaskLimits) -> None:
        run, home = self._run, self._run.tools.home
        tasks, elsewhere = self._tasks.values(), self._elsewhere
        try:
            if elsewhere:
                schedule = Schedule(tasks, workers=(), pools=elsewhere.pools)
                run_all(schedule, elsewhere, on_end=self._end, say=run.progress.say)
                for machine, lost in schedule.aside.items():
                    run.progress.say(f"{machine} got no more tasks; lost there: {', '.join(lost)}")
            else:
                run_all(
                    Schedule(tasks, limits),
                    ThreadExecutor(threads=limits.tasks, stop=run.stop),
                    on_end=self._end,
                    free_disk=lambda: max(
                        1,  # 0 is no limit
                        min(shutil.disk_usage(one).free for one in (home.path, run.settings.out)),
                    ),
                )
        finally:
            for name, seconds in elsewhere.seconds.items() if elsewhere else ():
                self._durations.measured[self._labels[name]] = seconds
            self._durations.keep(home.path)
            for job in self._jobs.values():
                job.close()

    # ---- The tasks: bases, stages that images share, then each image's own steps ----

    def _add_image(
        self, stages: RunStages, spec: Spec, state: ImageState, keyed: Sequence[KeyedStage]
    ) -> None:
        image, name = spec.image, spec.image.identifier
        job = self._jobs[name] = ImageJob(self._run, spec, stages)
        add = partial(self._add, image)
        if state.work == "verify":
            add("verify", name, job.prove_again, group=name)
            return
        needs: tuple[str, ...] = ()
        if image.is_bootstrapped:
            about = f"{image.base.name} {image.cell.arch}"
            needs = add("base", about, job.make_base, unique=image.base_image)
        for number, stage in enumerate(keyed[:-1]):
            make = partial(job.make_stage, number)
            needs = add("stage", stage.name, make, needs=needs, unique=stage.key, number=number)
        after = self._ancestor(image, keyed)
        needs = add("image", name, job.build, needs=needs, after=after, group=name)
        if not self._elsewhere:  # a worker packs what it builds
            needs = add("pack", name, job.pack, needs=needs, group=name)
        if self._last == "verify":
            add("verify", name, job.prove, needs=needs, group=name)

    def _ancestor(self, image: PlannedImage, keyed: Sequence[KeyedStage]) -> tuple[str, ...]:
        """Return the tasks that build a run-time image's ancestors, if this run does.

        A run-time stage begins with its parent's steps, which the engine then has in its cache.
        """
        if image.cell.flavour != RUNTIME:
            return ()
        *ancestors, own = [stage.key for stage in keyed[:-1]]
        self._runtimes[own] = f"image {image.identifier}"
        return tuple(self._runtimes[key] for key in ancestors if key in self._runtimes)

    def _add(
        self,
        image: PlannedImage,
        kind: str,
        about: str,
        work: Callable[[], object],
        *,
        needs: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        group: str = "",
        unique: str = "",
        number: int = 0,
    ) -> tuple[str, ...]:
        name = f"{kind} {unique or about}"
        self._images.setdefault(name, []).append(image.identifier)
        if name not in self._tasks:
            measured = self._labels[name] = f"{self._run.engine.name} {kind} {about}"
            emulated = image.cell.arch != self._run.host.arch
            slower = _EMULATED if emulated and kind in {"base", "stage", "image"} else 1
            self._tasks[name] = Task(
                name=name,
                kind=kind,
                label=f"{kind} {about}",
                work=partial(self._measure, measured, image.identifier, work),
                needs=needs,
                after=after,
                group=group,
                emulated=emulated,
                seconds=self._durations.known.get(measured) or _EXPECTED_S[kind] * slower,
                memory=_MEMORY[kind] * (2 if emulated else 1),
                disk=_DISK[kind],
                requires=self._requirement(kind, image),
                image=image.identifier,
                number=number,
            )
        return (name,)

    def _requirement(self, kind: str, image: PlannedImage) -> Requirement:
        """Return the workers for a task; on this machine all are alike."""
        if not self._elsewhere:
            return ANYWHERE
        return requirement_of(kind, image.cell.arch, gpus=int(bool(image.cuda)))

    def _measure(self, label: str, image: str, work: Callable[[], object]) -> None:
        start = time.monotonic()
        try:
            if work() is not False:
                self._durations.measured[label] = round(time.monotonic() - start, 2)
        finally:
            self._run.progress.pause(image)

    # ---- Results of tasks for images ----

    def _end(self, task: Task, error: BaseException | None, dropped: Sequence[Task]) -> None:
        images = self._images[task.name]
        if error:
            self._failed(images, task, error)
            for name in (*images, *(other.group for other in dropped if other.group)):
                self._jobs[name].close()
        elif task.kind == self._last:
            self._finished(images[0])

    def _finished(self, name: str) -> None:
        job, folder = self._jobs[name], self._run.settings.out / name
        note_failure(folder, None)
        written = read_manifest(folder) if self._elsewhere else job.manifest
        assert written is not None
        manifest = judged_manifest(folder, written)
        if job.was_made:
            self.manifests[name] = manifest
            durations = manifest.durations_s.values()
            seconds = sum(durations) if self._elsewhere else job.seconds()
            text = _closing(manifest, seconds, folder)
            self._run.progress.finish(name, manifest.outcome, text)
        else:  # another builder made it in the meantime
            self._unchanged(name, manifest)

    def _unchanged(self, name: str, manifest: Manifest) -> None:
        self.manifests[name] = manifest
        self._run.progress.finish(name, "unchanged", manifest.outcome)

    def _failed(self, images: Sequence[str], task: Task, error: BaseException) -> None:
        """Give the full error to the first image, and a reference to others that wait for it."""
        first = images[0]
        for name in images:
            own = _as_error(self._run, name, error)
            if isinstance(own, StepFailed):
                if self._run.settings.verbose and not self._elsewhere:
                    own.tail = ()  # it was shown as it came; the first error may be far above
                own = with_log(own, self._run.settings.out / name)
            step = own.step if isinstance(own, StepFailed) else None
            if step and step.engine == Buildah.name:
                shell = f"a shell before this step: build-images shell {name}"
                own.hint = "; ".join(filter(None, [own.hint, shell]))
            note_failure(self._run.settings.out / name, step)
            if name != first:
                text = f"not built: its {task.label}, shared with {first}, failed"
                log, code = own.log if isinstance(own, StepFailed) else None, own.exit_code
                own = StepFailed(text, log=log)
                own.exit_code = code
            self.errors[name] = own
            self._run.progress.finish(name, "failed", str(own))


def _as_error(run: Run, name: str, error: BaseException) -> BuildImagesError:
    if isinstance(error, OSError):
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return _full(name, str(error.filename or run.tools.home.path))
        return BuildImagesError(f"{name}: {error}")
    if isinstance(error, StepFailed) and is_disk_full(error):
        return _full(name, error.message)
    if isinstance(error, BuildImagesError):
        return error
    return StepFailed(  # a bug in one image's task must not stop the others
        f"unexpected {type(error).__name__}: {error}",
        tail="".join(traceback.format_exception(error)).splitlines()[-10:],
        hint="this is a fault of build-images itself; please report it",
    )


def _full(name: str, place: str) -> UnfitMachine:
    return UnfitMachine(
        f"{name}: the disk is full ({place})",
        hint="free disk space and run the same command again: finished steps are kept "
        "('build-images gc' lists unused data)",
    )


def _closing(manifest: Manifest, seconds: float, folder: Path) -> str:
    failed = [f"\n    {line}" for line in failures_of(manifest, folder)]
    unproven = "; not proven on a GPU" if manifest.proven_on_gpu is False else ""
    return f"{', '.join(manifest.artifacts)} in {seconds:.0f} s{unproven}{''.join(failed)}"
