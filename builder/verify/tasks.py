"""The main job as tasks: bases, stages that images share, then each image's own steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from builder.artifacts.manifests import State
from builder.build.run import Run
from builder.build.schedule import Durations, Task, TaskLimits
from builder.build.stages import RunStages
from builder.model import RUNTIME, KeyedStage, Spec
from builder.model.errors import BadInput
from builder.verify.finished_images import prove_again
from builder.verify.image_job import Cell, spec_digests, target_of
from builder.verify.machine_faults import not_tried

_GIB = 1 << 30
# Seconds that a task takes before one was ever measured; what runs emulated takes longer.
EXPECTED_S = {"base": 30.0, "stage": 60.0, "image": 30.0, "pack": 25.0, "verify": 20.0}
EMULATED = 5.0
# Bytes that a task takes at most, unless it compiles more than recipes mostly do.
MEMORY = {"base": _GIB // 2, "stage": _GIB, "image": _GIB, "pack": _GIB // 2, "verify": _GIB // 2}
DISK = {"base": _GIB, "stage": 2 * _GIB, "image": 3 * _GIB, "pack": 2 * _GIB, "verify": _GIB}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The tasks of a run, and the images that wait for each of them, in build order."""

    tasks: tuple[Task, ...]
    cells: Mapping[str, Cell]
    images: Mapping[str, tuple[str, ...]]


def tasks_of(
    run: Run, stages: RunStages, todo: Sequence[tuple[Spec, State]], durations: Durations
) -> Job:
    """The tasks that make images which are not done yet. `todo` is in build order."""
    maker = _Maker(run=run, stages=stages, durations=durations)
    declared = stages.declared([spec.image for spec, _ in todo])
    for (spec, state), keyed in zip(todo, declared, strict=True):
        maker.add(spec, state, keyed)
    maker.tell()
    return Job(
        tasks=tuple(maker.tasks.values()),
        cells=maker.cells,
        images={name: tuple(some) for name, some in maker.images.items()},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Maker:
    run: Run
    stages: RunStages
    durations: Durations
    tasks: dict[str, Task] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)
    images: dict[str, list[str]] = field(default_factory=dict)
    runtimes: dict[str, str] = field(default_factory=dict)

    def add(self, spec: Spec, state: State, keyed: Sequence[KeyedStage]) -> None:
        name = spec.image.identifier
        cell = self.cells[name] = Cell(self.run, spec, self.stages)
        if state.work == "verify":
            again = _Again(maker=self, spec=spec, cell=cell)
            self._task(spec, "verify", name, again.work, group=name)
            return
        before = self._before(spec, keyed, cell)
        after = self._ancestor(spec, keyed)
        before = self._task(spec, "image", name, cell.build, needs=before, after=after, group=name)
        before = self._task(spec, "pack", name, cell.pack, needs=before, group=name)
        self._task(spec, "verify", name, cell.prove, needs=before, group=name)

    def _ancestor(self, spec: Spec, keyed: Sequence[KeyedStage]) -> tuple[str, ...]:
        """The task that builds the nearest ancestor of a run-time image, if this run does.

        A run-time stage begins with the steps of its parent's, which the engine then has.
        """
        if spec.image.cell.flavour != RUNTIME:
            return ()
        development = [stage.key for stage in keyed[:-1]]
        found = [self.runtimes[key] for key in development[:-1] if key in self.runtimes]
        self.runtimes[development[-1]] = f"image {spec.image.identifier}"
        return tuple(found[-1:])

    def tell(self) -> None:
        """Say of each image that waits for a stage which another one has built."""
        for name, images in self.images.items():
            if name in self.tasks and self.tasks[name].kind == "stage":
                for one in images[1:]:
                    self.run.progress.detail(one, f"for {self.tasks[name].label}, with {images[0]}")

    def _before(self, spec: Spec, keyed: Sequence[KeyedStage], cell: Cell) -> tuple[str, ...]:
        """The tasks for the base and for all stages but the last; what the last waits for."""
        image = spec.image
        needs: tuple[str, ...] = ()
        if image.is_bootstrapped:
            label = f"{image.base.name} {image.cell.arch}"
            make = partial(self.stages.make_base, image)
            work = _Timed(cell=cell, step="base", do=make)
            needs = self._task(spec, "base", label, work, unique=image.base_image)
        for number, stage in enumerate(keyed[:-1]):
            work = _Timed(cell=cell, step="stages", do=partial(self.stages.make, spec, number))
            needs = self._task(spec, "stage", stage.name, work, needs=needs, unique=stage.key)
        return needs

    def _task(
        self,
        spec: Spec,
        kind: str,
        about: str,
        work: Callable[[], object],
        *,
        needs: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        group: str = "",
        unique: str = "",
    ) -> tuple[str, ...]:
        """Add a task, unless another image has brought it already; its name, for what follows."""
        name = f"{kind} {unique or about}"
        self.images.setdefault(name, []).append(spec.image.identifier)
        if name not in self.tasks:
            label, measured = f"{kind} {about}", f"{self.run.engine.name} {kind} {about}"
            emulated = spec.image.cell.arch != self.run.host.arch
            self.tasks[name] = Task(
                name=name,
                kind=kind,
                label=label,
                work=_Measured(durations=self.durations, label=measured, work=work),
                needs=needs,
                after=after,
                group=group,
                emulated=emulated,
                seconds=self.durations.known.get(measured) or expected(kind, emulated=emulated),
                memory=MEMORY[kind] * (2 if emulated else 1),
                disk=DISK[kind],
            )
        return (name,)


def expected(kind: str, *, emulated: bool) -> float:
    """Seconds that a task takes that was never measured."""
    builds = kind in {"base", "stage", "image"}
    return EXPECTED_S[kind] * (EMULATED if emulated and builds else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """A task's work; its duration is kept if it did something."""

    durations: Durations
    label: str
    work: Callable[[], object]

    def __call__(self) -> None:
        start = time.monotonic()
        if self.work() is not False:
            self.durations.measured[self.label] = round(time.monotonic() - start, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Timed:
    """What is made for several images, its time counted for the one that brought it."""

    cell: Cell
    step: str
    do: Callable[[], bool]

    def __call__(self) -> bool:
        self.cell.begin()
        with self.cell.timer.step(self.step):
            return self.do()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Again:
    """An image that is only to be verified; if an artifact was altered, all of it is made."""

    maker: _Maker
    spec: Spec
    cell: Cell

    def work(self) -> None:
        run, name = self.maker.run, self.spec.image.identifier
        self.cell.begin()
        try:
            expected = target_of(self.spec.image, {}, specs=spec_digests(self.spec))
            done = prove_again(run, run.out / name, expected=expected)
        except BadInput as error:
            run.progress.step(name, f"building anew: {error}")
            self._all()
        else:
            if done.untried:
                raise not_tried(name, done.untried)
            self.cell.manifest = done.found

    def _all(self) -> None:
        stages = self.maker.stages
        stages.make_base(self.spec.image)
        for number in range(len(self.spec.image.stages)):
            stages.make(self.spec, number)
        for step in (self.cell.build, self.cell.pack, self.cell.prove):
            step()


def limits_of(jobs: int) -> TaskLimits:
    """Return how much goes on at once, for so many builds.

    Half as many tasks again may pack and verify meanwhile: builds wait for the network and the
    disk. More emulated builds than there are cores only take each other's time.
    """
    return TaskLimits(
        tasks=jobs + jobs // 2,
        builds=jobs,
        emulated=min(jobs, os.cpu_count() or 1),
        groups=max(8, 4 * jobs),
        memory=_free_memory() * 9 // 10,
    )


def _free_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of memory that programs can still have; 0 if the kernel does not say."""
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError:
        return
