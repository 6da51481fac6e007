"""Run the steps of specs on stand-ins for the bases of registries (`rehearse --steps`).

A step that passes there may still fail on the real base, and most steps that fail there would fail
on it, too. A step that needs what the stand-in is known to lack counts as not tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from builder.build.at_work import at_work
from builder.build.run import BuildSettings, build_dockerfile
from builder.build.stages import RunStages, stage_alone
from builder.build.workspace import remove, stored_sources, write_spec
from builder.compile.lint.reading import SpecPart, SpecStage, read
from builder.compile.spec import base_archive, block_faults
from builder.load.project import load_project
from builder.model import BaseImage, PlannedImage, Spec
from builder.model.cells import rehearsal_tag
from builder.model.errors import StepFailed, shortened
from builder.model.inputs import base_name
from builder.model.versions import version_order
from builder.system.locks import locked
from builder.system.terminal import Progress
from builder.verify.preparation import prepare
from builder.verify.rehearse.packages import STAND_INS, installed_by, shown
from builder.verify.rehearse.servers import URL, Ask
from builder.verify.rehearse.steps import Step, steps_of
from builder.verify.rehearse.trials import PASSED, STEPS, Trial, failed, not_tried, passed

_STEP = "step"
_SHOWN = 80

# Tries the steps of one spec.
StepsOf = Callable[[Spec], list[Trial]]


@contextlib.contextmanager
def steps_on_stand_ins(
    options: BuildSettings, specs: Sequence[Spec], progress: Progress, ask: Ask
) -> Iterator[StepsOf]:
    """Yield a function that tries the steps of a spec, in the store shared with other builders."""
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
            run = prepare(options, progress, [*images.values()], todo=1, held=held)
            held.enter_context(at_work(run.tools, options.project, progress.say))
            stages = RunStages(run=run, engine="")

        def tried(spec: Spec) -> list[Trial]:
            image = images.get(spec.image.identifier)
            if stages is None or image is None:
                return [not_tried(STEPS, "all steps", str(chosen[spec.image.identifier]))]
            return _trials(stages, spec, image, ask)

        yield tried


def _trials(stages: RunStages, spec: Spec, image: PlannedImage, ask: Ask) -> list[Trial]:
    """Return the trials of a spec's steps on the base of `image`, which is made if necessary."""
    try:
        stages.make_base(image)
    except StepFailed as error:
        name = f"{image.base.name} for {image.cell.arch}"
        return [not_tried(STEPS, "all steps", f"{name} cannot be made: {error.message}")]
    run, name = stages.run, f"rehearsal-{image.identifier}"
    home, base = run.tools.home, stages.bases[image.base_image]
    log, context = home.rehearsals / f"{image.identifier}.log", home.work / name
    with locked(
        home.work,
        name,
        waiting=lambda holder: run.progress.step(
            image.identifier, f"waiting for {holder}, which runs the same steps"
        ),
        stopped=lambda: run.tools.processes.stopping,
    ):
        log.unlink(missing_ok=True)
        try:
            sources = stored_sources(spec)
            write_spec(spec, None, context, base_archive(spec.image), sources)
            run.engine.provide_base(base, log=log)
            stand_in = StandIn(
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
class StandIn:
    """A local base on which a spec's stages are built, step by step.

    `sources` are the URLs of the locked sources that steps can copy in; `tags` has the image of
    each stage by the stage's name.
    """

    name: str
    log: str
    sources: Collection[str]
    stages: RunStages
    image: PlannedImage
    context: Path
    tags: dict[str, str]

    def begin(self, stage: SpecStage) -> None:
        """Start a stage from the stand-in, or from the current image of an earlier stage."""
        self.tags[stage.name] = self.tags.get(stage.source, stage.source)

    def run(self, stage: str, text: str) -> None:
        """Build a Dockerfile with only this step, on the current image of the stage.

        Raises `StepFailed`.
        """
        run, image, log = self.stages.run, self.image, Path(self.log)
        line = shortened(" ".join(text.split()), _SHOWN)
        run.progress.step(image.identifier, f"on {self.name}: {line}")
        step = f"FROM {stage} AS {_STEP}\n{text}\n"
        alone = stage_alone(step, _STEP, self.tags, native=self.stages.native_of(image))
        (self.context / "Dockerfile").write_text(alone)
        tag = rehearsal_tag(image.identifier, stage)
        build_dockerfile(run, image, self.context, log=log, name=tag)
        self.tags[stage] = tag


_FAMILY = frozenset({"debian", "ubuntu"})


def stand_in_for(image: PlannedImage, bases: Iterable[BaseImage]) -> BaseImage | str:
    """Return the project's base that replaces an image's base, or the reason why none does.

    It is the nearest one: the Debian release that the Ubuntu release was made from, or else the
    oldest release that is made here.
    """
    base, arch = image.base, image.cell.arch
    if image.is_bootstrapped:
        return f"{base.name} needs no stand-in: the image can be built"
    if base.distribution not in _FAMILY:
        return f"the project makes no base of the family of {base.name}"
    candidates = [
        each
        for each in bases
        if each.bootstrap and each.distribution in _FAMILY and arch in each.architectures
    ]
    if not candidates:
        return f"the project makes no base of Debian's family for {arch}"
    near = STAND_INS.get(base.version, ())

    def distance(each: BaseImage) -> tuple[object, ...]:
        is_far = not each.bootstrap or each.bootstrap.suite not in near
        return is_far, version_order(each.version), each.name

    return min(candidates, key=distance)


# ---- Steps, one at a time ----

_RUN = frozenset({"RUN", "COPY", "ADD"})
_HELD = frozenset({"ARG", "ENV", "SHELL", "USER", "WORKDIR"})  # they hold for the steps after them
_CUDA = re.compile(r"cuda|cudnn|cublas|nccl|nvcc|nvidia", re.IGNORECASE)
_COPIED_FROM = re.compile(r"--from=(\S+)")
_UNREACHABLE = re.compile(
    r"could not resolve|unable to resolve|name or service not known"
    r"|temporary failure in name resolution|network is unreachable",
    re.IGNORECASE,
)
_NO_PACKAGE = re.compile(
    r"E: (?:Unable to locate package |Package '|Version '.*' for '|Couldn't find any package by"
    r" (?:glob|regex) ')(?P<name>[^'\s]+)"
)
_NO_WHEEL = re.compile(r"No matching distribution found for (?P<name>\S+)")
# Lines that the engine adds to the output of a step.
_OF_ENGINE = re.compile(
    r"^(?:\[\d+/\d+\] )?STEP \d+/|^--> |^error: |^error building|subprocess exited"
    r"|exit status \d+$",
    re.IGNORECASE,
)


@dataclasses.dataclass(slots=True)
class _Stage:
    """The state of a stage: instructions that wait for a step, lines of steps that it lacks."""

    name: str
    waiting: list[str] = dataclasses.field(default_factory=list)
    lacking: dict[int, None] = dataclasses.field(default_factory=dict)


class StepTrials:
    """Runs every step of a spec that can run on a stand-in."""

    def __init__(self, spec: Spec, stand_in: StandIn, ask: Ask) -> None:
        self._image, self._stand_in, self._ask = spec.image, stand_in, ask
        self._reading = read(spec)
        self._steps = steps_of(self._reading)
        self._missing = [source for source in spec.sources if source.url not in stand_in.sources]
        self._stages: dict[str, _Stage] = {}
        self._where = f"on {stand_in.name} in place of {spec.image.base.name}"

    def trials(self) -> Iterator[Trial]:
        """Yield a trial for each step; for a copy, only if it fails or does not run."""
        stages = iter(self._reading.docker.stages)
        stage = _Stage("")
        for number, instruction in enumerate(self._reading.docker.parts):
            if instruction.name == "FROM":
                stage = self._begin(next(stages))
            elif instruction.name in _HELD:
                stage.waiting.append(_text(instruction))
            elif instruction.name in _RUN:
                steps = [step for step in self._steps if step.layer == number]
                trial = self._trial(stage, instruction, _subject(instruction, steps))
                if instruction.name == "RUN" or trial.outcome != PASSED:
                    yield trial

    def _begin(self, docker_stage: SpecStage) -> _Stage:
        self._stand_in.begin(docker_stage)
        stage = _Stage(docker_stage.name)
        if parent := self._stages.get(docker_stage.source):
            stage.waiting, stage.lacking = [*parent.waiting], {**parent.lacking}
        return self._stages.setdefault(docker_stage.name, stage)

    def _trial(self, stage: _Stage, instruction: SpecPart, subject: str) -> Trial:
        """Try a step; the stage continues without a step that failed or did not run."""
        text, line = _text(instruction), instruction.line
        for name in _COPIED_FROM.findall(instruction.flags):
            if name in self._stages:
                stage.lacking |= self._stages[name].lacking
        try:
            if reason := self._lacks(instruction, text):
                trial = not_tried(STEPS, subject, reason, line)
            else:
                self._stand_in.run(stage.name, "\n".join([*stage.waiting, text]))
                stage.waiting.clear()
                return passed(STEPS, subject, self._where, line)
        except StepFailed as error:
            trial = self._failed(stage, subject, error.tail, line)
        stage.lacking[line] = None
        return trial

    def _lacks(self, instruction: SpecPart, text: str) -> str:
        if instruction.name != "RUN":
            missing = (each for each in self._missing if each.in_context in instruction.words)
            return next((f"{each.url} is not in the store" for each in missing), "")
        if self._image.cuda and _CUDA.search(text):
            return f"it needs CUDA, which {self._stand_in.name} does not have"
        answers = (self._ask(url) for url in URL.findall(text))
        silent = (answer.text for answer in answers if answer.has is None)
        return next((f"it needs a server: {text}" for text in silent), "")

    def _failed(self, stage: _Stage, subject: str, tail: Sequence[str], line: int) -> Trial:
        last = _last(tail)
        if reason := self._known(tail):
            return not_tried(STEPS, subject, reason, line)
        if stage.lacking:
            lines = ", ".join(map(str, stage.lacking))
            text = f"it may depend on steps that did not run (Dockerfile:{lines}): {last}"
            return not_tried(STEPS, subject, text, line)
        hint = f"complete output: {self._stand_in.log}"
        return failed(STEPS, subject, f"{self._where}: {last}", line, hint)

    def _known(self, tail: Sequence[str]) -> str:
        """Return why a step failed, if the stand-in or the network is the cause; else empty."""
        text, name = "\n".join(tail), self._stand_in.name
        if packages := _NO_PACKAGE.findall(text):
            return f"{name} has no package {', '.join(dict.fromkeys(packages))}"
        if wheel := _NO_WHEEL.search(text):
            return f"pip on {name} finds no {wheel['name']}; for the base's own Python see `python`"
        if _UNREACHABLE.search(text):
            return f"it needs a server that cannot be reached: {_last(tail)}"
        return ""


def _text(instruction: SpecPart) -> str:
    return "\n".join(text for _, text in instruction.lines)


def _subject(instruction: SpecPart, steps: Sequence[Step]) -> str:
    """Return a short name for a step: the packages that it installs, else its programs."""
    if instruction.name != "RUN":
        return f"{instruction.name} {' '.join(instruction.value.split())}"
    if names := [name for step in steps for name in installed_by(step)]:
        return f"install {shown(names)}"
    return f"RUN {shown([*dict.fromkeys(step.program for step in steps)])}"


def _last(tail: Sequence[str]) -> str:
    """Return the last line that the step itself printed, or else that of the engine."""
    lines = [line.strip() for line in tail if line.strip()]
    if own := [line for line in lines if not _OF_ENGINE.search(line)]:
        return own[-1]
    *_, subject, reason = ["", *(lines or ["it printed nothing"])[-1].split(": ")]
    return f"{subject}: {reason}" if subject.startswith('"') else reason
