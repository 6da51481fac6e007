"""The main job: every selected image made and proven, several at once, failures kept apart."""

from __future__ import annotations

import errno
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.manifests import State
from builder.build.run import Run
from builder.build.schedule import Durations, Schedule, Task, run_all
from builder.build.stages import RunStages, with_log, words_of
from builder.model import Spec
from builder.model.errors import BuildImagesError, MissingPrerequisite, StepFailed
from builder.model.manifest import Manifest
from builder.verify.finished_images import proven_state
from builder.verify.image_job import spec_digests, wanted_by
from builder.verify.tasks import Job, limits_of, tasks_of

_FULL = ("no space left on device", "disk quota exceeded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What a run came to: manifests and errors by image, in build order."""

    manifests: Mapping[str, Manifest]
    errors: Mapping[str, BuildImagesError]

    def reasons(self, *, lacking: bool) -> dict[str, str]:
        """Errors in words, by image: those for want of something on this machine, or the others."""
        return {name: str(error) for name, error in self.errors.items() if _lacks(error) is lacking}

    @property
    def exit_code(self) -> int:
        """0 when all is verified, 4 when the machine gave out, else 1."""
        if any(_lacks(error) for error in self.errors.values()):
            return MissingPrerequisite.exit_code
        bad = [one for one in self.manifests.values() if one.outcome == "failed"]
        return 1 if self.errors or bad else 0


def run_job(run: Run, specs: Sequence[Spec], *, jobs: int) -> Results:
    """Make and prove every image that is not done yet."""
    with run.progress.running([spec.image.identifier for spec in specs]):
        return _all_images(run, specs, jobs)


def _lacks(error: BuildImagesError) -> bool:
    """Whether it is the machine that lacks something, and nothing is wrong with the image."""
    return error.exit_code == MissingPrerequisite.exit_code


def _all_images(run: Run, specs: Sequence[Spec], jobs: int) -> Results:
    found = _Found(run=run)
    todo = [(spec, state) for spec in specs if (state := found.unchanged(spec)).work != "none"]
    if todo:
        _make(run, todo, found, jobs)
    order = [spec.image.identifier for spec in specs]
    return Results(
        manifests={name: found.manifests[name] for name in order if name in found.manifests},
        errors={name: found.errors[name] for name in order if name in found.errors},
    )


def _make(run: Run, todo: Sequence[tuple[Spec, State]], found: _Found, jobs: int) -> None:
    home = run.tools.home
    stages = RunStages(run=run, engine=words_of(home, run.engine))
    durations = Durations.read(home.path)
    job = tasks_of(run, stages, todo, durations)
    limits = limits_of(jobs)
    try:
        run_all(
            Schedule(job.tasks, limits),
            threads=limits.tasks,
            on_end=lambda task, error, dropped: found.end(job, task, error, dropped),
            stop=run.tools.processes.stop,
            free_disk=lambda: max(1, min(_free(home.path), _free(run.out))),  # 0 is no limit
        )
    finally:
        durations.keep(home.path)
        for cell in job.cells.values():
            cell.close()


def _free(folder: Path) -> int:
    """Bytes that are free on the file system of a folder."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What came of the images so far."""

    run: Run
    manifests: dict[str, Manifest] = field(default_factory=dict)
    errors: dict[str, BuildImagesError] = field(default_factory=dict)

    def unchanged(self, spec: Spec) -> State:
        """What there is to do for an image; one that is done is told of at once."""
        run, name = self.run, spec.image.identifier
        if not run.cache:
            return State(work="build", text="")
        state = proven_state(run.out, spec.image, wanted_by(run), spec_digests(spec))
        if state.manifest and state.work == "none":
            self._unchanged(name, state.manifest)
        return state

    def _unchanged(self, name: str, manifest: Manifest) -> None:
        self.manifests[name] = manifest
        self.run.progress.finish(name, "unchanged", manifest.outcome)

    def end(
        self, job: Job, task: Task, error: BaseException | None, dropped: Sequence[Task]
    ) -> None:
        """A task is over: what that means for images."""
        images = job.images[task.name]
        if error:
            self._failed(images, task, error)
            for one in dropped:
                if one.group:
                    job.cells[one.group].close()
        if task.kind == "verify" or error:
            for name in images:
                job.cells[name].close()
        if task.kind == "verify" and not error:
            self._finished(images[0], job)

    def _finished(self, name: str, job: Job) -> None:
        cell = job.cells[name]
        assert cell.manifest is not None
        if cell.was_made:
            self.manifests[name] = cell.manifest
            text = _closing(cell.manifest, cell.seconds())
            self.run.progress.finish(name, cell.manifest.outcome, text)
        else:  # by another builder, meanwhile
            self._unchanged(name, cell.manifest)

    def _failed(self, images: Sequence[str], task: Task, error: BaseException) -> None:
        """The first image has the error in full; others that wait for the task are told of it."""
        first = images[0]
        for name in images:
            if name in self.errors:
                continue
            own = _as_error(self.run, name, error)
            if isinstance(own, StepFailed):
                own = with_log(own, self.run.out / name)
            if name != first:
                own = _because(task, first, own)
            self.errors[name] = own
            self.run.progress.finish(name, "failed", str(own))


def _because(task: Task, first: str, error: BuildImagesError) -> BuildImagesError:
    """The error of an image that waits for a task which failed for another."""
    log = error.log if isinstance(error, StepFailed) else None
    made = StepFailed(f"not built: its {task.label}, shared with {first}, failed", log=log)
    made.exit_code = error.exit_code
    return made


def _as_error(run: Run, name: str, error: BaseException) -> BuildImagesError:
    if isinstance(error, OSError):
        return _system_error(run, name, error)
    if isinstance(error, StepFailed) and any(one in error.said() for one in _FULL):
        return _full(name, error.message)
    if isinstance(error, BuildImagesError):
        return error
    return StepFailed(  # a bug that one image meets must not end the others
        f"unexpected {type(error).__name__}: {error}",
        tail="".join(traceback.format_exception(error)).splitlines()[-10:],
        hint="this is a fault of build-images itself; please report it",
    )


def _system_error(run: Run, name: str, error: OSError) -> BuildImagesError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _full(name, str(error.filename or run.tools.home.path))
    return BuildImagesError(f"{name}: {error}")


def _full(name: str, where: str) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"{name}: the disk is full ({where})",
        hint="free some room and run the same command again: finished steps are kept "
        "('build-images gc' says what nothing refers to)",
    )


def _closing(manifest: Manifest, seconds: float) -> str:
    failed = [
        f"{name}/{one.check}: {one.reason}"
        for name, outcomes in manifest.checks.items()
        for one in outcomes
        if one.outcome == "failed"
    ]
    formats = ", ".join(manifest.artifacts)
    unproven = "; not proven on a GPU" if manifest.proven_on_gpu is False else ""
    return f"{formats} in {seconds:.0f} s{unproven}" + "".join(f"\n    {one}" for one in failed)
