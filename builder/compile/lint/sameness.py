"""The Dockerfile and the definition say the same: nothing is in the one and not in the other.

Compared are the commands, copies, variables and labels of the stages before the last one (a
Dockerfile has one for each recipe of the chain, a definition one for all) and of the last. A
definition with one stage is compared with the whole Dockerfile: in it, the image of the
development flavour is a stage upon another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from builder.compile.lint.commands import SHELL, words_of
from builder.compile.lint.definition import Section, exported
from builder.compile.lint.findings import DEFINITION, DOCKERFILE, ERROR, Hit, Rule, shortened
from builder.compile.lint.reading import Reading

# Differences that are meant, each with the reason. The first are commands of a definition alone.
KNOWN_COMMANDS = {
    ". /.singularity.d/env/10-docker*.sh": "a Dockerfile has the base's variables by itself",
    "cd /": "a RUN begins in the working directory, a %post where the one before it ended",
    "export NAME=VALUE": "%environment sets a variable for running, %post again for building",
}
KNOWN_INSTRUCTIONS = {
    "FROM": "a stage upon a stage of the Dockerfile goes on in the definition's one stage",
    "CMD": "%runscript",
    "ENTRYPOINT": "%runscript",
    "EXPOSE": "Apptainer and ch-run share the host's network",
    "MAINTAINER": "a label is the way to say it",
    "STOPSIGNAL": "no service runs in these images",
}
_COMPARED = frozenset({"RUN", "COPY", "ADD", "ENV", "LABEL", "WORKDIR"})
_SOURCED, _ROOT = list(KNOWN_COMMANDS)[:2]

# (last stage or not, kind, what) with the lines where it is.
Items = dict[tuple[bool, str, str], list[int]]


def missing_from_definition(reading: Reading) -> Iterator[Hit]:
    docker, definition = _both(reading)
    yield from _missing(docker, definition, DOCKERFILE, "not in the definition")
    yield from _without_counterpart(reading)


def missing_from_dockerfile(reading: Reading) -> Iterator[Hit]:
    docker, definition = _both(reading)
    yield from _missing(definition, docker, DEFINITION, "not in the Dockerfile")


def _both(reading: Reading) -> tuple[Items, Items]:
    docker, definition = _docker_items(reading), _definition_items(reading)
    if len(reading.definition.stages) > 1:
        return docker, definition
    return _as_one_stage(docker), _as_one_stage(definition)


def _as_one_stage(items: Items) -> Items:
    merged: Items = {}
    for (_final, kind, text), lines in items.items():
        merged.setdefault((True, kind, text), []).extend(lines)
    return merged


def _missing(here: Items, there: Items, file: str, what: str) -> Iterator[Hit]:
    for key, lines in here.items():
        _final, kind, text = key
        for line in lines[len(there.get(key, [])) :]:
            yield Hit(file=file, line=line, text=f"{kind} {shortened(text)}: {what}")


def _docker_items(reading: Reading) -> Items:
    items: Items = {}
    for command in reading.of_kind(SHELL):
        if command.file == DOCKERFILE and command.text != _ROOT:
            _add(items, command.final, "command", command.text, command.line)
    stages = {stage.name for stage in reading.docker.stages}
    for one in reading.docker.instructions:
        if one.name == "WORKDIR":
            for text in (f"mkdir -p {one.value}", f"cd {one.value}"):
                _add(items, one.final, "command", text, one.line)
        elif one.name in {"COPY", "ADD"}:
            source = _stage_of(one.flags, stages)
            for path in one.words[:-1]:
                _add(items, one.final, "copy", f"{source}{path} {one.words[-1]}", one.line)
        elif one.name in {"ENV", "LABEL"}:
            kind = "variable" if one.name == "ENV" else "label"
            for name, value in one.pairs:
                _add(items, one.final, kind, f"{name}={value}", one.line)
    return items


def _stage_of(flags: str, stages: Iterable[str]) -> str:
    """Return which image a COPY takes from: another stage of this file is like any other."""
    for flag in flags.split():
        if flag.startswith("--from="):
            name = flag.removeprefix("--from=")
            return "a stage: " if name in stages else f"{name}: "
    return ""


def _definition_items(reading: Reading) -> Items:
    items: Items = {}
    for section in reading.definition.sections:
        for kind, text, line in _written(section):
            _add(items, section.final, kind, text, line)
    repeated = _repeated(reading)
    for command in reading.of_kind(SHELL):
        if command.file != DEFINITION or command.text in {_SOURCED, _ROOT}:
            continue
        if repeated[command.stage, command.text] > 0:
            repeated[command.stage, command.text] -= 1
            continue
        _add(items, command.final, "command", command.text, command.line)
    return items


def _written(section: Section) -> Iterator[tuple[str, str, int]]:
    """What a section that is no script says: kind, what, line."""
    if section.name == "environment":
        for line, name, value in exported(section):
            yield "variable", f"{name}={value}", line
    elif section.name == "files":
        source = "a stage: " if section.argument.startswith("from ") else ""
        for line, text in section.filled:
            path, *target = words_of(text)
            yield "copy", f"{source}{path} {(target or [path])[0]}", line
    elif section.name == "labels":
        for line, text in section.filled:
            name, _, value = text.partition(" ")
            yield "label", f"{name}={value.strip()}", line


def _repeated(reading: Reading) -> Counter[tuple[int, str]]:
    """The lines of each stage's %environment, which its %post says again."""
    return Counter(
        (section.stage, " ".join(line.split()))
        for section in reading.definition.named("environment")
        for _, line in section.filled
    )


def _add(items: Items, final: bool, kind: str, text: str, line: int) -> None:
    items.setdefault((final, kind, text), []).append(line)


def _without_counterpart(reading: Reading) -> Iterator[Hit]:
    for one in reading.docker.instructions:
        if one.name not in _COMPARED and one.name not in KNOWN_INSTRUCTIONS:
            text = f"{one.name} {shortened(one.value)}: a definition has no counterpart"
            yield Hit(file=DOCKERFILE, line=one.line, text=text)
        flags = [
            flag for flag in one.flags.split() if not flag.startswith(("--from=", "--platform="))
        ]
        if one.name in {"RUN", "COPY"} and flags:
            text = f"{one.name} {' '.join(flags)}: a definition has no counterpart"
            yield Hit(file=DOCKERFILE, line=one.line, text=text)
    starts = [one for one in reading.docker.named("CMD", "ENTRYPOINT") if one.final]
    if starts and not any(one.final for one in reading.definition.named("runscript")):
        text = f"{starts[0].name} {starts[0].value}: the definition has no %runscript"
        yield Hit(file=DOCKERFILE, line=starts[0].line, text=text)


RULES = (
    Rule(
        name="missing-from-definition",
        level=ERROR,
        what="every command, copy, variable and label of the Dockerfile is in the definition",
        why="options that one format honours and the other drops make two different images",
        check=missing_from_definition,
    ),
    Rule(
        name="missing-from-dockerfile",
        level=ERROR,
        what="every command, copy, variable and label of the definition is in the Dockerfile",
        why="the same, the other way round",
        check=missing_from_dockerfile,
    ),
)
