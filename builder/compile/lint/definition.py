"""A Singularity definition as the rules read it, by Apptainer's rules.

Apptainer cuts the text at each `Bootstrap:`, and each stage into sections at lines that begin
with `%`; sections of one name are joined. See
https://github.com/apptainer/apptainer/blob/main/pkg/build/types/parser/deffile.go
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from builder.compile.lint.commands import (
    COPY,
    ENVIRONMENT,
    HOST,
    LABEL,
    OTHER,
    SCRIPT,
    SHELL,
    SOURCE,
    Command,
    Line,
    logical_lines,
    parts,
    words_of,
)
from builder.compile.lint.findings import DEFINITION, Hit

SECTIONS = frozenset(
    [
        "help",
        "setup",
        "files",
        "labels",
        "environment",
        "pre",
        "post",
        "runscript",
        "test",
        "startscript",
        "arguments",
    ]
)
HEADERS = frozenset(
    [
        "bootstrap",
        "from",
        "stage",
        "includecmd",
        "mirrorurl",
        "updateurl",
        "osversion",
        "include",
        "registry",
        "namespace",
        "library",
        "fingerprints",
        "setopt",
        "arch",
        "product",
        "user",
        "regcode",
    ]
)
_KINDS = {
    "post": SHELL,
    "environment": ENVIRONMENT,
    "files": COPY,
    "labels": LABEL,
    "runscript": SCRIPT,
    "test": SCRIPT,
    "startscript": SCRIPT,
    "setup": HOST,
    "pre": HOST,
}
_BOOTSTRAP = re.compile(r"bootstrap:", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One section as it is written; `lines` are those below its name."""

    name: str
    argument: str
    line: int
    lines: tuple[Line, ...]
    stage: int
    final: bool

    @property
    def filled(self) -> list[Line]:
        """Its lines that are neither empty nor a comment, stripped."""
        stripped = [(number, line.strip()) for number, line in self.lines]
        return [(number, line) for number, line in stripped if line and line[0] != "#"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DefinitionStage:
    """The header of one stage: `values` by key in lower case, `lines` of the keys."""

    values: dict[str, str]
    lines: dict[str, int]

    @property
    def name(self) -> str:
        return self.values.get("stage", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """What was read; `hits` are what no definition may hold."""

    stages: tuple[DefinitionStage, ...]
    sections: tuple[Section, ...]
    hits: tuple[Hit, ...]

    def named(self, *names: str) -> Iterator[Section]:
        return (one for one in self.sections if one.name in names)


def read_definition(text: str) -> Definition:
    """Read a definition; what is wrong with its syntax is in `hits`."""
    lines = list(enumerate(text.splitlines(), start=1))
    begins = [index for index, (_, line) in enumerate(lines) if _BOOTSTRAP.match(line)]
    stages: list[DefinitionStage] = []
    sections: list[Section] = []
    hits = [_stray(line) for line in _filled(lines[: begins[0] if begins else len(lines)])]
    for number, begin in enumerate(begins):
        end = begins[number + 1] if number + 1 < len(begins) else len(lines)
        header, chunks = _chunks(lines[begin:end])
        stage, wrong = _header(header)
        stages.append(stage)
        hits += wrong
        for (line, title), body in chunks:
            name, _, argument = title.strip().lstrip("%").partition(" ")
            sections.append(
                Section(
                    name=name.lower(),
                    argument=argument.strip(),
                    line=line,
                    lines=tuple(body),
                    stage=number,
                    final=number + 1 == len(begins),
                )
            )
    return Definition(
        stages=tuple(stages),
        sections=tuple(sections),
        hits=(*hits, *_syntax(stages, sections)),
    )


def commands_of(definition: Definition) -> Iterator[Command]:
    """Every script cut into its commands, and every other line by itself."""
    for number, stage in enumerate(definition.stages):
        final = number + 1 == len(definition.stages)
        make = functools.partial(
            Command, file=DEFINITION, kind=SOURCE, stage=number, final=final, layer=number
        )
        yield from (make(line=stage.lines[key], text=text) for key, text in stage.values.items())
    for section in definition.sections:
        make = functools.partial(
            Command,
            file=DEFINITION,
            kind=_KINDS.get(section.name, OTHER),
            stage=section.stage,
            final=section.final,
            layer=section.stage,
        )
        if section.name in {"post", "setup", "pre", "runscript", "test", "startscript"}:
            for logical in logical_lines(section.lines):
                for line, text, chained in parts(logical):
                    yield make(line=line, text=text, chained=chained)
        else:
            yield from (make(line=line, text=text) for line, text in section.filled)


def exported(section: Section) -> list[tuple[int, str, str]]:
    """The variables of an %environment: line, name, value."""
    found = []
    for number, line in section.filled:
        pairs = [word.partition("=") for word in words_of(line) if "=" in word]
        found += [(number, name, value) for name, _, value in pairs]
    return found


def _filled(lines: list[Line]) -> list[Line]:
    return [(number, line) for number, line in lines if line.strip() and line.strip()[0] != "#"]


def _chunks(lines: list[Line]) -> tuple[list[Line], list[tuple[Line, list[Line]]]]:
    """The header, and each section's title with its lines."""
    header: list[Line] = []
    chunks: list[tuple[Line, list[Line]]] = []
    for number, line in lines:
        if line.lstrip().startswith("%"):
            chunks.append(((number, line), []))
        else:
            (chunks[-1][1] if chunks else header).append((number, line))
    return header, chunks


def _header(lines: list[Line]) -> tuple[DefinitionStage, list[Hit]]:
    values: dict[str, str] = {}
    places: dict[str, int] = {}
    hits = []
    for number, line in _filled(lines):
        key, colon, value = line.split("#")[0].partition(":")
        name = key.strip().lower()
        if not colon or name.rstrip("0123456789") not in HEADERS:
            hits.append(_stray((number, line)))
            continue
        values[name], places[name] = value.strip(), number
    return DefinitionStage(values=values, lines=places), hits


def _stray(line: Line) -> Hit:
    text = f"neither a header nor in a section: {line[1].strip()}"
    return Hit(file=DEFINITION, line=line[0], text=text)


def _syntax(stages: list[DefinitionStage], sections: list[Section]) -> Iterator[Hit]:
    if not stages:
        yield Hit(file=DEFINITION, line=1, text="there is no Bootstrap: line")
    for number, stage in enumerate(stages):
        line = stage.lines.get("bootstrap", 1)
        if not stage.values.get("from"):
            yield Hit(file=DEFINITION, line=line, text="the stage has no From: line")
        if stage.name and stage.name in {one.name for one in stages[:number]}:
            yield Hit(file=DEFINITION, line=line, text=f"a second stage {stage.name}")
    for section in sections:
        known = {one.name for one in stages[: section.stage]}
        yield from _section_syntax(section, known)


def _section_syntax(section: Section, known: set[str]) -> Iterator[Hit]:
    if section.name not in SECTIONS and not section.name.startswith("app"):
        text = f"%{section.name} is no section"
        yield Hit(file=DEFINITION, line=section.line, text=text, hint=", ".join(sorted(SECTIONS)))
    if section.name != "files":
        return
    word, _, stage = section.argument.partition(" ")
    if word == "from" and stage.strip() not in known:
        text = f"%files from {stage.strip()}: there is no such stage before this one"
        yield Hit(file=DEFINITION, line=section.line, text=text)
    for number, line in section.filled:
        if len(words_of(line)) > 2:  # noqa: PLR2004 - source and destination
            text = f"more than a source and a destination: {line}"
            yield Hit(file=DEFINITION, line=number, text=text, hint="one pair on each line")
