"""One spec as the rules see it: both texts read, and all of their commands in one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.compile.lint import definition as _definition
from builder.compile.lint import dockerfile as _dockerfile
from builder.compile.lint.commands import Command
from builder.compile.lint.definition import Definition, exported, read_definition
from builder.compile.lint.dockerfile import Dockerfile, read_dockerfile
from builder.compile.lint.findings import DEFINITION, DOCKERFILE, Hit
from builder.model import Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable that a stage of an image sets; `kind` is ENV, ARG or %environment."""

    file: str
    line: int
    name: str
    value: str
    kind: str
    stage: int
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What the rules look at.

    `locked`: the project pins its bases and sources by digest. `files` are the paths of what the
    spec's folder holds beside the two texts.
    """

    arch: str
    locked: bool
    docker: Dockerfile
    definition: Definition
    singularity: str
    files: frozenset[str]
    commands: tuple[Command, ...]
    variables: tuple[Variable, ...]

    def of_kind(self, *kinds: str) -> Iterator[Command]:
        return (command for command in self.commands if command.kind in kinds)

    def layers(self, kind: str) -> list[list[Command]]:
        """The commands of one kind, those that end in one layer together."""
        found: dict[tuple[str, int], list[Command]] = {}
        for command in self.of_kind(kind):
            found.setdefault((command.file, command.layer), []).append(command)
        return list(found.values())


def read(spec: Spec, *, locked: bool) -> Reading:
    """Read both texts of a spec."""
    docker, definition = read_dockerfile(spec.dockerfile), read_definition(spec.singularity)
    return Reading(
        arch=spec.image.cell.arch,
        locked=locked,
        docker=docker,
        definition=definition,
        singularity=spec.singularity,
        files=frozenset([*spec.files, *(source.in_context for source in spec.sources)]),
        commands=(*_dockerfile.commands_of(docker), *_definition.commands_of(definition)),
        variables=(*_docker_variables(docker), *_definition_variables(definition)),
    )


def hit(command: Command, text: str, hint: str = "") -> Hit:
    """A hit at a command."""
    return Hit(file=command.file, line=command.line, text=text, hint=hint)


def _docker_variables(docker: Dockerfile) -> Iterator[Variable]:
    for one in docker.named("ENV", "ARG"):
        for name, value in one.pairs:
            yield Variable(
                file=DOCKERFILE,
                line=_line_of(one.lines, name),
                name=name,
                value=value,
                kind=one.name,
                stage=one.stage,
                final=one.final,
            )


def _line_of(lines: tuple[tuple[int, str], ...], name: str) -> int:
    return next((number for number, text in lines if f"{name}=" in text), lines[0][0])


def _definition_variables(definition: Definition) -> Iterator[Variable]:
    for section in definition.named("environment"):
        for line, name, value in exported(section):
            yield Variable(
                file=DEFINITION,
                line=line,
                name=name,
                value=value,
                kind="%environment",
                stage=section.stage,
                final=section.final,
            )
