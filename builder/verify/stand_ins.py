"""Steps of specs, run on bases that stand in for those of registries (`rehearse --steps`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from builder.build.at_work import at_work
from builder.build.engines.protocol import shortened
from builder.build.run import build_dockerfile
from builder.build.stages import RunStages, stage_alone
from builder.build.workspace import remove, stored_sources, write_spec
from builder.compile.lint.reading import DockerStage
from builder.compile.spec import base_archive, block_faults
from builder.load.project import load_project
from builder.model import BaseImage, Plan, PlannedImage, Spec
from builder.model.cells import rehearsal_tag
from builder.model.errors import StepFailed
from builder.model.inputs import base_name
from builder.model.versions import version_order
from builder.system.locks import locked
from builder.system.terminal import Progress
from builder.verify.preparation import BuildSettings, prepare
from builder.verify.rehearse.packages import STAND_INS
from builder.verify.rehearse.servers import Ask
from builder.verify.rehearse.step_trials import StepTrials
from builder.verify.rehearse.trials import STEPS, Trial, not_tried

_WAITING = "waiting for another build-images that runs the same steps"
_STEP = "step"
_SHOWN = 80

# Tries the steps of one spec.
StepsOf = Callable[[Spec], list[Trial]]


@contextlib.contextmanager
def steps_on_stand_ins(
    options: BuildSettings, specs: Sequence[Spec], progress: Progress, ask: Ask
) -> Iterator[StepsOf]:
    """The time in which steps of `specs` can be run: on the store, beside other builders."""
    bases = load_project(options.project, block_faults=block_faults).bases.values()
    chosen = {spec.image.identifier: stand_in_for(spec.image, bases) for spec in specs}
    images = {
        spec.image.identifier: _on(spec.image, base)
        for spec in specs
        if isinstance(base := chosen[spec.image.identifier], BaseImage)
    }
    with contextlib.ExitStack() as held:
        stages = None
        if images:
            plan = Plan(images=tuple(images.values()), left_out=())
            run = prepare(options, progress, plan, todo=1, held=held)
            held.enter_context(at_work(run.tools, options.project, progress.say))
            stages = RunStages(run=run, engine="")

        def steps_of(spec: Spec) -> list[Trial]:
            image = images.get(spec.image.identifier)
            if stages is None or image is None:
                return [not_tried(STEPS, "all steps", str(chosen[spec.image.identifier]))]
            return _trials(stages, spec, image, ask)

        yield steps_of


def _trials(stages: RunStages, spec: Spec, image: PlannedImage, ask: Ask) -> list[Trial]:
    """Return the trials of a spec's steps on the base of `image`, which is made if need be."""
    try:
        stages.make_base(image)
    except StepFailed as error:
        name = f"{image.base.name} for {image.cell.arch}"
        return [not_tried(STEPS, "all steps", f"{name} cannot be made here: {error.message}")]
    run, name = stages.run, f"rehearsal-{image.identifier}"
    home, base = run.tools.home, stages.bases[image.base_image]
    log, context = home.rehearsals / f"{image.identifier}.log", home.work / name
    with locked(
        home.work,
        name,
        waiting=lambda: run.progress.step(image.identifier, _WAITING),
        stopped=lambda: run.tools.processes.stopping,
    ):
        log.unlink(missing_ok=True)
        try:
            sources = stored_sources(spec)
            write_spec(spec, None, context, base_archive(spec.image), sources)
            run.engine.provide_base(base, log=log)
            stand_in = _StandIn(
                name=image.base.name,
                log=str(log),
                sources=sources,
                stages=stages,
                image=image,
                context=context,
                tags=dict.fromkeys(spec.image.registry_bases.values(), base.tag),
            )
            return list(StepTrials(spec, stand_in, ask).trials())
        finally:
            remove(context)


def _on(image: PlannedImage, base: BaseImage) -> PlannedImage:
    """Return an image as if it started from another base, which has no CUDA."""
    name = base_name(base, image.cell.arch)
    return dataclasses.replace(
        image,
        base=base,
        base_image=name,
        runtime_image=name,
        base_reference=name,
        runtime_reference=name,
        cuda=None,
    )


@dataclasses.dataclass(kw_only=True)
class _StandIn:
    """A base of this machine on which a spec's stages grow: `tags` has each one's by its name."""

    name: str
    log: str
    sources: Collection[str]
    stages: RunStages
    image: PlannedImage
    context: Path
    tags: dict[str, str]

    def begin(self, stage: DockerStage) -> None:
        self.tags[stage.name] = self.tags.get(stage.source, stage.source)

    def run(self, stage: str, text: str) -> None:
        """Build a Dockerfile of this step alone, on what the stage has come to."""
        run, image, log = self.stages.run, self.image, Path(self.log)
        run.progress.step(image.identifier, f"on {self.name}: {shortened(text, _SHOWN)}")
        step = f"FROM {stage} AS {_STEP}\n{text}\n"
        alone = stage_alone(step, _STEP, self.tags, native=self.stages.native_of(image))
        (self.context / "Dockerfile").write_text(alone)
        tag = rehearsal_tag(image.identifier, stage)
        build_dockerfile(run, image, self.context, log=log, name=tag)
        self.tags[stage] = tag


_FAMILY = frozenset({"debian", "ubuntu"})


def stand_in_for(image: PlannedImage, bases: Iterable[BaseImage]) -> BaseImage | str:
    """Return the base of a project's that stands in for an image's; else why none does.

    It is the Debian release that the Ubuntu release was made from, or the oldest that is made here:
    the nearest one.
    """
    base, arch = image.base, image.cell.arch
    if image.is_bootstrapped:
        return f"{base.name} is made here, so the image can be built"
    if base.distribution not in _FAMILY:
        return f"no base of the family of {base.name} is made here"
    candidates = [
        each
        for each in bases
        if each.bootstrap and each.distribution in _FAMILY and arch in each.architectures
    ]
    if not candidates:
        return f"no base of Debian's family is made here for {arch}"
    near = STAND_INS.get(base.version, ())

    def distance(each: BaseImage) -> tuple[object, ...]:
        is_far = not each.bootstrap or each.bootstrap.suite not in near
        return is_far, version_order(each.version), each.name

    return min(candidates, key=distance)
