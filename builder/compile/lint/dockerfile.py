"""A Dockerfile as the rules read it, cut into instructions by dockerfile-parse."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from builder.compile.lint.commands import (
    COPY,
    ENVIRONMENT,
    LABEL,
    OTHER,
    SHELL,
    SOURCE,
    Command,
    Line,
    logical_lines,
    parts,
    words_of,
)
from builder.compile.lint.findings import DOCKERFILE, Hit

INSTRUCTIONS = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_KINDS = {"RUN": SHELL, "ENV": ENVIRONMENT, "COPY": COPY, "FROM": SOURCE, "LABEL": LABEL}
_FROM = re.compile(
    r"(?:--platform=(?P<platform>\S+)\s+)?(?P<image>\S+)(?:\s+[Aa][Ss]\s+(?P<as>\S+))?"
)
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?[A-Za-z_]")
_FLAGS = re.compile(r"^(?:--[a-z]+(?:=\S+)?\s+)+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One instruction; `value` is what follows its name, with continuation lines joined."""

    name: str
    value: str
    line: int
    lines: tuple[Line, ...]
    stage: int
    final: bool

    @property
    def flags(self) -> str:
        """The options before the value: `--from=development`, `--mount=type=cache,...`."""
        found = _FLAGS.match(self.value + " ")
        return found.group().strip() if found else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The value's words without its flags."""
        return words_of(self.value[len(self.flags) :])

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The names and values of an ENV, LABEL or ARG; values keep their `$`."""
        return _pairs(self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerStage:
    """One FROM: `name` is empty where it has none."""

    name: str
    source: str
    platform: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """What was read; `hits` are what no Dockerfile may hold."""

    stages: tuple[DockerStage, ...]
    instructions: tuple[Instruction, ...]
    hits: tuple[Hit, ...]

    def named(self, *names: str) -> Iterator[Instruction]:
        return (one for one in self.instructions if one.name in names)


def _pairs(value: str) -> tuple[tuple[str, str], ...]:
    from dockerfile_parse.util import extract_key_values  # noqa: PLC0415 - see read_dockerfile

    try:
        found = extract_key_values(env_replace=False, args={}, envs={}, instruction_value=value)
    except ValueError:
        return ()
    return tuple((str(name), str(text)) for name, text in found)


def read_dockerfile(text: str) -> Dockerfile:
    """Read a Dockerfile; what is wrong with its syntax is in `hits`."""
    from dockerfile_parse import DockerfileParser  # noqa: PLC0415 - specs in the cache need none

    raw = DockerfileParser(
        fileobj=io.BytesIO(text.encode()),  # type: ignore[arg-type]  # it reads bytes, as it says
        env_replace=False,
    ).structure
    found = [one for one in raw if one["instruction"] != "COMMENT"]
    count = sum(one["instruction"] == "FROM" for one in found)
    physical = text.splitlines()
    stages: list[DockerStage] = []
    instructions = []
    for one in found:
        if one["instruction"] == "FROM":
            stages.append(_stage(one["value"], one["startline"] + 1))
        begin, end = one["startline"], one["endline"] + 1
        instructions.append(
            Instruction(
                name=one["instruction"],
                value=one["value"].strip(),
                line=begin + 1,
                lines=tuple(enumerate(physical[begin:end], start=begin + 1)),
                stage=len(stages) - 1,
                final=len(stages) == count,
            )
        )
    hits = (*_syntax(instructions), *_lost_lines(physical, instructions))
    return Dockerfile(stages=tuple(stages), instructions=tuple(instructions), hits=hits)


def _stage(value: str, line: int) -> DockerStage:
    found = _FROM.match(value.strip())
    parts_ = found.groupdict() if found else {}
    return DockerStage(
        name=parts_.get("as") or "",
        source=parts_.get("image") or "",
        platform=parts_.get("platform") or "",
        line=line,
    )


def commands_of(dockerfile: Dockerfile) -> Iterator[Command]:
    """Every RUN cut into its commands, and every other instruction as one line."""
    for number, one in enumerate(dockerfile.instructions):
        make = functools.partial(
            Command,
            file=DOCKERFILE,
            kind=_KINDS.get(one.name, OTHER),
            stage=one.stage,
            final=one.final,
            layer=number,
        )
        if one.name != "RUN":
            yield make(line=one.line, text=" ".join(one.value.split()))
            continue
        for logical in logical_lines(_without_name(one)):
            for line, text, chained in parts(logical):
                yield make(line=line, text=text, chained=chained)


def _without_name(run: Instruction) -> Iterator[Line]:
    (number, first), *rest = run.lines
    yield number, _FLAGS.sub("", first.strip()[len(run.name) :].lstrip())
    yield from rest


def _syntax(instructions: list[Instruction]) -> Iterator[Hit]:
    for one in instructions:
        if one.name not in INSTRUCTIONS:
            text = f"{one.name} is no instruction"
            yield Hit(
                file=DOCKERFILE, line=one.line, text=text, hint=", ".join(sorted(INSTRUCTIONS))
            )
        elif not one.value:
            yield Hit(file=DOCKERFILE, line=one.line, text=f"{one.name} says nothing")
        elif one.name not in {"FROM", "ARG"} and one.stage < 0:
            yield Hit(file=DOCKERFILE, line=one.line, text=f"{one.name} comes before any FROM")
        elif one.name in {"RUN", "COPY"} and _HEREDOC.search(one.value):
            yield Hit(
                file=DOCKERFILE,
                line=one.line,
                text="a here-document: only BuildKit reads one, and a definition has none",
                hint="put the text into a file under files/ and copy it",
            )


def _lost_lines(physical: list[str], instructions: list[Instruction]) -> Iterator[Hit]:
    """Lines of which the parser made nothing, such as an instruction without a value."""
    read = {number for one in instructions for number, _ in one.lines}
    for number, line in enumerate(physical, start=1):
        if number not in read and line.strip() and not line.lstrip().startswith("#"):
            text = f"no instruction can be read from: {line.strip()}"
            yield Hit(file=DOCKERFILE, line=number, text=text)
