"""Rules on the syntax of the two formats, and what a second parser makes of a definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from builder.compile.lint.commands import logical_lines
from builder.compile.lint.definition import Section
from builder.compile.lint.dockerfile import INSTRUCTIONS
from builder.compile.lint.findings import (
    DEFINITION,
    DOCKERFILE,
    ERROR,
    WARNING,
    Hit,
    Rule,
    shortened,
)
from builder.compile.lint.reading import Reading, hit

_SCRIPTS = ("post", "environment", "runscript", "test", "startscript", "setup", "pre")
_BUILDKIT = re.compile(r"--mount=type=|^COPY --|--chown=\S+ \S+ \S+$")
_TEMPLATE = re.compile(r"\{\{\s*\w+\s*\}\}")
# Commands that do not fail where a spec uses them, so that nothing is lost if `sh -e` looks away.
_CANNOT_FAIL = re.compile(
    r"(?:cd|mkdir -p|echo|export|umask|set|:|test|\[|true|command -v)(?:\s|$)"
)


def dockerfile_syntax(reading: Reading) -> Iterator[Hit]:
    yield from reading.docker.hits
    if not reading.docker.stages:
        yield Hit(file=DOCKERFILE, line=1, text="there is no FROM")
    known: set[str] = set()
    for stage in reading.docker.stages:
        if stage.name in known:
            yield Hit(file=DOCKERFILE, line=stage.line, text=f"a second stage {stage.name}")
        known |= {stage.name} - {""}


def definition_syntax(reading: Reading) -> Iterator[Hit]:
    yield from reading.definition.hits


def docker_syntax(reading: Reading) -> Iterator[Hit]:
    for section in reading.definition.sections:
        if section.name in _SCRIPTS:
            yield from _docker_words(section)
        elif section.name == "files":
            for number, line in section.filled:
                if line.startswith("--"):
                    text = f"Docker's options in %files: {shortened(line)}"
                    yield Hit(file=DEFINITION, line=number, text=text)


def _docker_words(section: Section) -> Iterator[Hit]:
    for logical in logical_lines(section.lines):
        number, first = logical[0]
        text = " ".join(part for _, part in logical)
        if first.split()[0] in INSTRUCTIONS or _BUILDKIT.search(text):
            text = f"Docker's syntax in %{section.name}: {shortened(text)}"
            yield Hit(file=DEFINITION, line=number, text=text, hint="the shell would run it")


def template_braces(reading: Reading) -> Iterator[Hit]:
    for number, line in enumerate(reading.singularity.splitlines(), start=1):
        if found := _TEMPLATE.search(line):
            text = f"Apptainer takes {found.group()} for a build argument, and has no such"
            yield Hit(file=DEFINITION, line=number, text=text)


def unseen_failure(reading: Reading) -> Iterator[Hit]:
    for command in reading.commands:
        if command.file != DEFINITION or not command.chained or command.kind != "shell":
            continue
        if not _CANNOT_FAIL.match(command.text):
            text = f"if this fails, %post goes on: {shortened(command.text)} && ..."
            yield hit(command, text, "a line of its own: sh -e sees the last command of && only")


def read_by_spython(reading: Reading) -> Iterator[Hit]:
    if reading.definition.hits:
        return
    try:
        found = _spython_stages(reading.singularity)
    except Exception as error:  # whatever ails the parser, the definition does not suit it
        yield Hit(file=DEFINITION, line=1, text=f"spython cannot read it: {error}")
        return
    names = [stage.name for stage in reading.definition.stages]
    if [name for name in found if name != _UNNAMED] != [name for name in names if name]:
        text = f"spython reads the stages {', '.join(found)}, not {', '.join(names)}"
        yield Hit(file=DEFINITION, line=1, text=text)
        return
    for section in reading.definition.named("post"):
        read = found.get(names[section.stage] or _UNNAMED, frozenset())
        for number, line in section.filled:
            if line not in read:
                yield Hit(file=DEFINITION, line=number, text=f"spython does not read: {line}")


_UNNAMED = "spython-base"


def _spython_stages(text: str) -> dict[str, frozenset[str]]:
    """The stages that spython finds, with the lines of their %post."""
    parser, logger = _spython()
    level, logger.level = logger.level, -5  # it warns of what a Dockerfile could not have
    try:
        made = parser(None)
        made.lines = text.splitlines()
        return {name: frozenset(stage.install) for name, stage in made.parse().items()}
    finally:
        logger.level = level


def _spython() -> tuple[Any, Any]:
    """spython's parser, without its refusal of any base that is not in a registry."""
    from spython.logger import bot  # noqa: PLC0415 - only a spec that is not cached needs it
    from spython.main.parse.parsers import SingularityParser  # noqa: PLC0415

    class Parser(SingularityParser):  # type: ignore[misc]  # spython has no types
        def _check_bootstrap(self, line: str) -> None:
            """An OCI archive or a local image is a base as well."""

    return Parser, bot


RULES = (
    Rule(
        name="dockerfile-syntax",
        level=ERROR,
        what="every line of a Dockerfile is an instruction that Docker, Buildah and ch-image know",
        why="a here-document or a misspelt word fails only when it is built",
        check=dockerfile_syntax,
    ),
    Rule(
        name="definition-syntax",
        level=ERROR,
        what="headers, sections and stages of a definition are as Apptainer reads them",
        why="`apptainer build` stops at it, or reads something else",
        check=definition_syntax,
    ),
    Rule(
        name="docker-syntax",
        level=ERROR,
        what="no Docker instruction and no option of Docker's in a definition",
        why="`%post` would run `COPY` as a program, or ignore what was asked for",
        check=docker_syntax,
    ),
    Rule(
        name="template-braces",
        level=ERROR,
        what="no `{{ name }}` in a definition",
        why="Apptainer 1.2 and later take it for a build argument and stop",
        check=template_braces,
    ),
    Rule(
        name="unseen-failure",
        level=WARNING,
        what="in `a && b` of a `%post`, `a` is a command that does not fail",
        why="`%post` runs under `sh -e`, which ignores a failure before `&&`: the build goes on",
        check=unseen_failure,
    ),
    Rule(
        name="read-by-spython",
        level=ERROR,
        what="spython's parser finds the same stages and the same `%post` lines",
        why="what two parsers read differently, a third may read wrongly",
        check=read_by_spython,
    ),
)
