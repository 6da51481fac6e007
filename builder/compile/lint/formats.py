"""Rules on the syntax of the Dockerfile and of the definition, and on their agreement.

The commands, copies, variables and labels of the last stage are compared, and those of all stages
before it (a Dockerfile has one for each recipe of the chain, a definition one for all). A
definition with one stage is compared with the whole Dockerfile, where the image of the development
flavour is a stage that starts from another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from builder.compile.lint.findings import ERROR, WARNING, Hit, hit, rule
from builder.compile.lint.reading import (
    COPY,
    DEFINITION,
    DOCKERFILE,
    LABEL,
    SCRIPTS,
    SHELL,
    SOURCE,
    TABLES,
    VARIABLE,
    Reading,
    SpecPart,
    SpecText,
    logical_lines,
    words_of,
)
from builder.model.errors import shortened

# Only definitions need these commands: a Dockerfile has the base's variables anyway, and its RUN
# begins in the working directory; a %post begins where the previous one ended.
_SOURCED, _ROOT = ". /.singularity.d/env/10-docker*.sh", "cd /"
_COMPARED = frozenset({"RUN", "COPY", "ADD", "ENV", "LABEL", "WORKDIR"})
_KNOWN_FLAGS = re.compile(r"--(?:from|platform)=")
INSTRUCTIONS = frozenset(TABLES["instructions"].split())
SECTIONS = frozenset(TABLES["sections"].split())
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?[A-Za-z_]")
_BUILDKIT = re.compile(r"--mount=type=|^COPY --|--chown=\S+ \S+ \S+$")
_TEMPLATE = re.compile(r"\{\{\s*\w+\s*\}\}")
# Commands that cannot fail as specs use them, so that `sh -e` need not check them.
_CANNOT_FAIL = re.compile(
    r"(?:cd|mkdir -p|echo|export|umask|set|:|test|\[|true|command -v)(?:\s|$)"
)

# The lines of each item; its key is (in the last stage, kind, text).
Items = dict[tuple[bool, str, str], list[int]]


@rule(ERROR)
def missing_from_definition(reading: Reading) -> Iterator[Hit]:
    """Every command, copy, variable and label of the Dockerfile is in the definition."""
    yield from _missing(reading, DOCKERFILE, DEFINITION, "not in the definition")
    for instruction in reading.docker.parts:
        name = instruction.name
        lacks = ""
        if name not in _COMPARED and name not in TABLES["without_counterpart"]:
            lacks = f"{name} {shortened(instruction.value)}"
        elif name in {"RUN", "COPY"}:
            flags = [flag for flag in instruction.flags.split() if not _KNOWN_FLAGS.match(flag)]
            lacks = f"{name} {' '.join(flags)}" if flags else ""
        if lacks:
            text = f"{lacks}: a definition has no counterpart"
            yield Hit(DOCKERFILE, instruction.line, text)
    docker, definition = reading.docker, reading.definition
    starts = list(filter(docker.is_final, docker.named("CMD", "ENTRYPOINT")))
    if starts and not any(map(definition.is_final, definition.named("runscript"))):
        text = f"{starts[0].name} {starts[0].value}: the definition has no %runscript"
        yield Hit(DOCKERFILE, starts[0].line, text)


@rule(ERROR)
def missing_from_dockerfile(reading: Reading) -> Iterator[Hit]:
    """Every command, copy, variable and label of the definition is in the Dockerfile."""
    yield from _missing(reading, DEFINITION, DOCKERFILE, "not in the Dockerfile")


def _missing(reading: Reading, file: str, other: str, problem: str) -> Iterator[Hit]:
    others = _items(reading, other)
    for key, lines in _items(reading, file).items():
        _final, kind, text = key
        for line in lines[len(others.get(key, [])) :]:
            yield Hit(file, line, f"{kind} {shortened(text)}: {problem}")


def _items(reading: Reading, file: str) -> Items:
    """Return the items of a text, all in one stage if the definition has only one."""
    one_stage = len(reading.definition.stages) <= 1
    # The lines of each stage's %environment, which its %post repeats.
    repeated = Counter(
        (section.stage, " ".join(line.split()))
        for section in reading.definition.named("environment")
        for _, line in section.filled
    )
    items: Items = {}
    for command in reading.of_kind(SHELL, COPY, VARIABLE, LABEL):
        is_shell = command.kind == SHELL
        if command.file != file or (is_shell and command.text in {_SOURCED, _ROOT}):
            continue
        if is_shell and file == DEFINITION and repeated[command.layer, command.text] > 0:
            repeated[command.layer, command.text] -= 1
            continue
        key = (command.final or one_stage, command.kind, command.text)
        items.setdefault(key, []).append(command.line)
    return items


@rule(ERROR)
def dockerfile_syntax(reading: Reading) -> Iterator[Hit]:
    """Every line of a Dockerfile is an instruction that Docker, Buildah and ch-image know."""
    docker = reading.docker
    for instruction in docker.parts:
        if fault := _fault(instruction):
            yield Hit(DOCKERFILE, instruction.line, *fault)
    for number, line in docker.stray:
        yield Hit(DOCKERFILE, number, f"not an instruction: {line}")
    if not docker.stages:
        yield Hit(DOCKERFILE, 1, "no FROM instruction")
    yield from _duplicate_stages(docker, DOCKERFILE)


def _duplicate_stages(text: SpecText, file: str) -> Iterator[Hit]:
    names: set[str] = set()
    for stage in text.stages:
        if stage.name in names:
            yield Hit(file, stage.line, f"duplicate stage: {stage.name}")
        names |= {stage.name} - {""}


def _fault(instruction: SpecPart) -> tuple[str, ...]:
    """Return the fault of an instruction, and a hint; empty if there is none."""
    name = instruction.name
    if name not in INSTRUCTIONS:
        return f"unknown instruction: {name}", ", ".join(sorted(INSTRUCTIONS))
    if not instruction.value:
        return (f"{name} has no value",)
    if name not in {"FROM", "ARG"} and instruction.stage < 0:
        return (f"{name} comes before the first FROM",)
    if name in {"RUN", "COPY"} and _HEREDOC.search(instruction.value):
        text = "a here-document: only BuildKit supports it, and a definition has no counterpart"
        return text, "put the text into a file under files/ and copy it"
    return ()


@rule(ERROR)
def definition_syntax(reading: Reading) -> Iterator[Hit]:
    """Apptainer can read the headers, sections and stages of a definition."""
    definition = reading.definition
    for number, stray in definition.stray:
        yield Hit(DEFINITION, number, f"neither a header nor in a section: {stray}")
    if not definition.stages:
        yield Hit(DEFINITION, 1, "no Bootstrap: line")
    for stage in definition.stages:
        if not stage.source:
            yield Hit(DEFINITION, stage.line, "the stage has no From: line")
    yield from _duplicate_stages(definition, DEFINITION)
    yield from _section_syntax(definition)


def _section_syntax(definition: SpecText) -> Iterator[Hit]:
    names = [stage.name for stage in definition.stages]
    for section in definition.parts:
        is_known = section.kind == SOURCE or section.name in SECTIONS
        if not is_known and not section.name.startswith("app"):
            text, hint = f"unknown section: %{section.name}", ", ".join(sorted(SECTIONS))
            yield Hit(DEFINITION, section.line, text, hint)
    for section in definition.named("files"):
        word, _, source = section.value.partition(" ")
        if word == "from" and source.strip() not in names[: section.stage]:
            text = f"%files from {source.strip()}: no earlier stage has that name"
            yield Hit(DEFINITION, section.line, text)
        for number, line in section.filled:
            if len(words_of(line)) > 2:  # noqa: PLR2004 - source and destination
                text = f"more than a source and a destination: {line}"
                yield Hit(DEFINITION, number, text, "one pair on each line")


@rule(ERROR)
def docker_syntax(reading: Reading) -> Iterator[Hit]:
    """No Docker instruction and no Docker option in a definition."""
    for section in reading.definition.named(*SCRIPTS):
        for logical in logical_lines(section.lines):
            text = " ".join(part for _, part in logical)
            if text.split()[0] in INSTRUCTIONS or _BUILDKIT.search(text):
                problem = f"Docker's syntax in %{section.name}: {shortened(text)}"
                yield Hit(DEFINITION, logical[0][0], problem, "the shell would run it")
    for section in reading.definition.named("files"):
        for number, line in section.filled:
            if line.startswith("--"):
                yield Hit(DEFINITION, number, f"Docker's options in %files: {shortened(line)}")


@rule(ERROR)
def template_braces(reading: Reading) -> Iterator[Hit]:
    """No `{{ name }}` in a definition."""
    for number, line in enumerate(reading.spec.singularity.splitlines(), start=1):
        if match := _TEMPLATE.search(line):
            text = f"Apptainer would read {match.group()} as an unknown build argument"
            yield Hit(DEFINITION, number, text)


@rule(WARNING)
def unseen_failure(reading: Reading) -> Iterator[Hit]:
    """In `a && b` of a `%post`, `a` is a command that cannot fail."""
    for command in reading.of_kind(SHELL):
        unseen = command.file == DEFINITION and command.chained
        if unseen and not _CANNOT_FAIL.match(command.text):
            text = f"if this fails, %post goes on: {shortened(command.text)} && ..."
            yield hit(command, text, "use a line of its own: sh -e ignores a failure before &&")


@rule(ERROR)
def read_by_spython(reading: Reading) -> Iterator[Hit]:
    """Spython's parser finds the same stages and the same `%post` lines."""
    if any(definition_syntax(reading)):
        return
    try:
        stages = _spython_stages(reading.spec.singularity)
    except Exception as error:  # any error means that the parser cannot read it
        yield Hit(DEFINITION, 1, f"spython cannot read it: {error}")
        return
    names = [stage.name for stage in reading.definition.stages]
    if [name for name in stages if name != _UNNAMED] != [name for name in names if name]:
        text = f"spython reads the stages {', '.join(stages)}, not {', '.join(names)}"
        yield Hit(DEFINITION, 1, text)
        return
    for section in reading.definition.named("post"):
        lines = stages.get(names[section.stage] or _UNNAMED, frozenset())
        for number, line in section.filled:
            if line not in lines:
                yield Hit(DEFINITION, number, f"spython does not find this line: {line}")


_UNNAMED = "spython-base"


def _spython_stages(text: str) -> dict[str, frozenset[str]]:
    """Return the stages that spython finds, with the lines of their %post."""
    from spython.logger import bot  # noqa: PLC0415 - only a spec that is not cached needs it
    from spython.main.parse.parsers import SingularityParser  # noqa: PLC0415

    parser = SingularityParser(None)
    parser._check_bootstrap = lambda _line: None  # it refuses any base that is not in a registry
    parser.lines = text.splitlines()
    level, bot.level = bot.level, -5  # it warns about features that Dockerfiles lack
    try:
        return {name: frozenset(stage.install) for name, stage in parser.parse().items()}
    finally:
        bot.level = level
