"""The steps of a spec, run one at a time on a stand-in for its base.

A step that passed there may still fail on the base itself, and most that fail there would fail on
the base, too. What the stand-in is known to lack is no failure: the step counts as not tried.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from builder.compile.lint.reading import DockerStage, Instruction, Reading, read
from builder.model import Spec
from builder.verify.rehearse.packages import installed_by, shown
from builder.verify.rehearse.source_urls import URL, Ask
from builder.verify.rehearse.steps import Step, steps_of
from builder.verify.rehearse.trials import PASSED, STEPS, Trial, failed, not_tried, passed

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
# What the engine adds to the output of a step.
_OF_ENGINE = re.compile(
    r"^(?:\[\d+/\d+\] )?STEP \d+/|^--> |^error: |^error building|subprocess exited"
    r"|exit status \d+$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEnd:
    """How a step ended; `tail` is the end of its output if it failed."""

    has_passed: bool
    tail: tuple[str, ...] = ()


class StandIn(Protocol):
    """The base that stands in, and the stages that grow on it, step by step.

    `sources` are the URLs of the locked sources that steps can copy in.
    """

    name: str
    log: str
    sources: Collection[str]

    def begin(self, stage: DockerStage) -> None:
        """Start a stage from the stand-in, or from what an earlier stage has come to."""

    def run(self, stage: str, text: str) -> StepEnd:
        """Run instructions on a stage; what they leave stays in it if they pass."""


@dataclass(slots=True)
class _Stage:
    """What has become of a stage: instructions that wait for a step, lines of steps it lacks."""

    name: str
    waiting: list[str] = field(default_factory=list)
    lacking: tuple[int, ...] = ()


def step_trials(spec: Spec, stand_in: StandIn, ask: Ask) -> Iterator[Trial]:
    """Run every step of a spec that can run on a stand-in; a trial for each.

    Copying is a step, too; it has a trial only where it fails or does not run.
    """
    return _Course(spec, stand_in, ask).trials()


class _Course:
    """The course of one spec's steps on a stand-in."""

    def __init__(self, spec: Spec, stand_in: StandIn, ask: Ask) -> None:
        self._image, self._stand_in, self._ask = spec.image, stand_in, ask
        self._reading = read(spec, locked=False)
        self._steps = _by_layer(self._reading)
        self._sources = [one for one in spec.sources if one.url not in stand_in.sources]
        self._stages: dict[str, _Stage] = {}
        self._where = f"on {stand_in.name} in place of {spec.image.base.name}"

    def trials(self) -> Iterator[Trial]:
        stages = iter(self._reading.docker.stages)
        stage = _Stage("")
        for number, one in enumerate(self._reading.docker.instructions):
            if one.name == "FROM":
                stage = self._begun(next(stages))
            elif one.name in _HELD:
                stage.waiting.append(_text(one))
            elif one.name in _RUN:
                trial = self._tried(stage, one, _subject(one, self._steps.get(number, ())))
                if one.name == "RUN" or trial.outcome != PASSED:
                    yield trial

    def _begun(self, stage: DockerStage) -> _Stage:
        self._stand_in.begin(stage)
        begun = _Stage(stage.name)
        if parent := self._stages.get(stage.source):
            begun.waiting, begun.lacking = [*parent.waiting], parent.lacking
        return self._stages.setdefault(stage.name, begun)

    def _tried(self, stage: _Stage, one: Instruction, subject: str) -> Trial:
        """A step's trial; the stage goes on without a step that did not run, or failed."""
        text = _text(one)
        for name in _COPIED_FROM.findall(one.flags):
            copied = self._stages.get(name)
            stage.lacking = _distinct(stage.lacking, copied.lacking if copied else ())
        if reason := self._lacking(one, text):
            trial = not_tried(STEPS, subject, reason, one.line)
        else:
            end = self._stand_in.run(stage.name, "\n".join([*stage.waiting, text]))
            if end.has_passed:
                stage.waiting.clear()
                return passed(STEPS, subject, self._where, one.line)
            trial = self._failed(stage, subject, end, one.line)
        stage.lacking = _distinct(stage.lacking, (one.line,))
        return trial

    def _lacking(self, one: Instruction, text: str) -> str:
        """What a step needs that is known not to be there; empty if it can run."""
        if one.name != "RUN":
            absent = (source for source in self._sources if source.in_context in one.words)
            return next((f"the store has not fetched {source.url}" for source in absent), "")
        if self._image.cuda and _CUDA.search(text):
            return f"it needs CUDA, which {self._stand_in.name} does not have"
        answers = (self._ask(url) for url in URL.findall(text))
        silent = (answer.text for answer in answers if answer.has is None)
        return next((f"it needs a server: {text}" for text in silent), "")

    def _failed(self, stage: _Stage, subject: str, end: StepEnd, line: int) -> Trial:
        last = _last(end.tail)
        if reason := self._known(end.tail):
            return not_tried(STEPS, subject, reason, line)
        if stage.lacking:
            lines = ", ".join(map(str, stage.lacking))
            text = f"it may rest on steps that did not run (Dockerfile:{lines}): {last}"
            return not_tried(STEPS, subject, text, line)
        hint = f"all of its output: {self._stand_in.log}"
        return failed(STEPS, subject, f"{self._where}: {last}", line, hint)

    def _known(self, tail: Sequence[str]) -> str:
        """Why a step failed, where it is the stand-in or the network that is to blame."""
        text, name = "\n".join(tail), self._stand_in.name
        if found := _NO_PACKAGE.findall(text):
            return f"{name} has no package {', '.join(dict.fromkeys(found))}"
        if wheel := _NO_WHEEL.search(text):
            return f"pip on {name} finds no {wheel['name']}; for the base's own Python see `python`"
        if any(_UNREACHABLE.search(line) for line in tail):
            return f"it needs a server that cannot be reached: {_last(tail)}"
        return ""


def _by_layer(reading: Reading) -> Mapping[int, Sequence[Step]]:
    found: dict[int, list[Step]] = {}
    for step in steps_of(reading):
        found.setdefault(step.layer, []).append(step)
    return found


def _distinct(lines: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*lines, *more]))


def _text(one: Instruction) -> str:
    return "\n".join(text for _, text in one.lines)


def _subject(one: Instruction, steps: Iterable[Step]) -> str:
    """A step in a few words: the packages that it installs, else the programs that it calls."""
    if one.name != "RUN":
        return f"{one.name} {' '.join(one.value.split())}"
    if names := [name for step in steps for name in installed_by(step)]:
        return f"install {shown(names)}"
    return f"RUN {shown([*dict.fromkeys(step.program for step in steps)])}"


def _last(tail: Sequence[str]) -> str:
    """The last line that a step itself printed, or else the engine's."""
    lines = [line.strip() for line in tail if line.strip()]
    if own := [line for line in lines if not _OF_ENGINE.search(line)]:
        return own[-1]
    *_, what, why = ["", *(lines or ["it printed nothing"])[-1].split(": ")]
    return f"{what}: {why}" if what.startswith('"') else why  # a path, or a step's text
