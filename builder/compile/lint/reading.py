"""A spec as the rules see it: instructions, sections, variables, and one row of shell commands.

dockerfile-parse cuts a Dockerfile into instructions. A definition is cut as Apptainer cuts it: the
text at each `Bootstrap:`, each stage into sections at lines that begin with `%`. See
https://github.com/apptainer/apptainer/blob/main/pkg/build/types/parser/deffile.go
"""

from __future__ import annotations

import functools
import io
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.model import Spec

DOCKERFILE, DEFINITION = "Dockerfile", "Singularity.def"
# Kinds of commands, by the use of their lines. `HOST` runs on the building host, not in the image.
SHELL, ENVIRONMENT, COPY, SOURCE = "shell", "environment", "copy", "source"
LABEL, SCRIPT, HOST, OTHER = "label", "script", "host", "other"
_OF_INSTRUCTION = {"RUN": SHELL, "ENV": ENVIRONMENT, "COPY": COPY, "FROM": SOURCE, "LABEL": LABEL}
_SHELL_SECTIONS = {
    "post": SHELL,
    **dict.fromkeys(("runscript", "test", "startscript"), SCRIPT),
    **dict.fromkeys(("setup", "pre"), HOST),
}
_OF_SECTION = {**_SHELL_SECTIONS, "environment": ENVIRONMENT, "files": COPY, "labels": LABEL}
_HEADERS = frozenset(
    {
        *("arch", "bootstrap", "fingerprints", "from", "include", "includecmd", "library"),
        *("mirrorurl", "namespace", "osversion", "product", "regcode", "registry", "setopt"),
        *("stage", "updateurl", "user"),
    }
)
_BOOTSTRAP = re.compile(r"bootstrap:", re.IGNORECASE)
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+[Aa][Ss]\s+(?P<as>\S+))?")
_FLAGS = re.compile(r"^(?:--[a-z]+(?:=\S+)?\s+)+")

Line = tuple[int, str]  # a number, counted from 1, and its text


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecCommand:
    """One command, or one line of another kind.

    `text` has single blanks and no continuation lines. `layer` numbers what ends in one layer:
    a RUN instruction, or a stage of a definition. A command is `chained` if `&&` follows.
    """

    file: str
    line: int
    text: str
    kind: str
    stage: int
    final: bool
    layer: int
    chained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable that a stage of an image sets: by ENV, ARG or %environment."""

    file: str
    line: int
    name: str
    value: str
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """An instruction; `value` is the text after its name, with continuation lines joined."""

    name: str
    value: str
    line: int
    lines: tuple[Line, ...]
    stage: int
    final: bool

    @property
    def flags(self) -> str:
        """The options before the value: `--from=development`, `--mount=type=cache,...`."""
        match = _FLAGS.match(self.value + " ")
        return match.group().strip() if match else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The value's words without its flags."""
        return words_of(self.value[len(self.flags) :])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The names and values of an ENV, LABEL or ARG; values keep their `$`."""
        from dockerfile_parse.util import extract_key_values  # noqa: PLC0415 - see read_dockerfile

        try:
            return extract_key_values(
                env_replace=False, args={}, envs={}, instruction_value=self.value
            )
        except ValueError:
            return []


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerStage:
    """A FROM; `name` is empty where it has none."""

    name: str
    source: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dockerfile:
    """The stages and instructions of a Dockerfile."""

    stages: tuple[DockerStage, ...]
    instructions: tuple[Instruction, ...]

    def named(self, *names: str) -> Iterator[Instruction]:
        return (instruction for instruction in self.instructions if instruction.name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of a definition as it is written; `lines` are those below its name."""

    name: str
    argument: str
    line: int
    lines: tuple[Line, ...]
    stage: int
    final: bool

    @property
    def filled(self) -> list[Line]:
        """Its lines that are neither empty nor a comment, stripped."""
        return _filled(self.lines)

    @property
    def exported(self) -> list[tuple[int, str, str]]:
        """The variables of an %environment: line, name, value."""
        words = (
            (line, word.partition("=")) for line, text in self.filled for word in words_of(text)
        )
        return [(line, name, value) for line, (name, sign, value) in words if sign]


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """The stages and sections of a definition.

    `headers` are those of the stages, each by key in lower case; `stray` are the lines that are
    neither a header nor in a section.
    """

    headers: tuple[Mapping[str, Line], ...]
    sections: tuple[Section, ...]
    stray: tuple[Line, ...]

    @property
    def names(self) -> list[str]:
        """The names of the stages; empty for one without."""
        return [header.get("stage", (0, ""))[1] for header in self.headers]

    def named(self, *names: str) -> Iterator[Section]:
        return (section for section in self.sections if section.name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Both texts of a spec. `locked`: the project pins its bases and sources by digest."""

    spec: Spec
    locked: bool
    docker: Dockerfile
    definition: Definition
    commands: tuple[SpecCommand, ...]
    variables: tuple[Variable, ...]

    def of_kind(self, *kinds: str) -> Iterator[SpecCommand]:
        return (command for command in self.commands if command.kind in kinds)

    def layers(self, *kinds: str) -> list[list[SpecCommand]]:
        """The commands of some kinds, those that end in one layer together."""
        layers: dict[tuple[str, str, int], list[SpecCommand]] = {}
        for command in self.of_kind(*kinds):
            key = (command.kind, command.file, command.layer)
            layers.setdefault(key, []).append(command)
        return list(layers.values())


def read(spec: Spec, *, locked: bool) -> Reading:
    """Read both texts of a spec."""
    docker, definition = read_dockerfile(spec.dockerfile), read_definition(spec.singularity)
    return Reading(
        spec=spec,
        locked=locked,
        docker=docker,
        definition=definition,
        commands=(*_docker_commands(docker), *_definition_commands(definition)),
        variables=tuple(_variables(docker, definition)),
    )


def read_dockerfile(text: str) -> Dockerfile:
    """Read a Dockerfile; lines that are no instruction are left out."""
    from dockerfile_parse import DockerfileParser  # noqa: PLC0415 - specs in the cache need none

    parser = DockerfileParser(
        fileobj=io.BytesIO(text.encode()),  # type: ignore[arg-type]  # it reads bytes, as it says
        env_replace=False,
    )
    entries = [entry for entry in parser.structure if entry["instruction"] != "COMMENT"]
    count = sum(entry["instruction"] == "FROM" for entry in entries)
    lines = list(enumerate(text.splitlines(), start=1))
    stages: list[DockerStage] = []
    instructions = []
    for entry in entries:
        begin, value = entry["startline"], entry["value"].strip()
        if entry["instruction"] == "FROM":
            match = _FROM.match(value)
            source, name = match.group("image", "as") if match else ("", "")
            stages.append(DockerStage(name=name or "", source=source, line=begin + 1))
        instructions.append(
            Instruction(
                name=entry["instruction"],
                value=value,
                line=begin + 1,
                lines=tuple(lines[begin : entry["endline"] + 1]),
                stage=len(stages) - 1,
                final=len(stages) == count,
            )
        )
    return Dockerfile(stages=tuple(stages), instructions=tuple(instructions))


def read_definition(text: str) -> Definition:
    """Read a definition; lines that are in no section and no header are `stray`."""
    count = sum(bool(_BOOTSTRAP.match(line)) for line in text.splitlines())
    headers: list[dict[str, Line]] = []
    sections: list[tuple[Line, int, list[Line]]] = []  # title, stage, lines
    stray = []
    in_section = False
    for number, line in enumerate(text.splitlines(), start=1):
        if _BOOTSTRAP.match(line):
            headers.append({})
            in_section = False
        if headers and line.lstrip().startswith("%"):
            sections.append(((number, line), len(headers) - 1, []))
            in_section = True
        elif in_section:
            sections[-1][2].append((number, line))
        elif _filled([(number, line)]):
            key, colon, value = line.split("#")[0].partition(":")
            name = key.strip().lower()
            if headers and colon and name.rstrip("0123456789") in _HEADERS:
                headers[-1][name] = (number, value.strip())
            else:
                stray.append((number, line.strip()))
    return Definition(
        headers=tuple(headers),
        sections=tuple(
            _section(title, lines, stage=stage, final=stage + 1 == count)
            for title, stage, lines in sections
        ),
        stray=tuple(stray),
    )


def _section(title: Line, lines: Iterable[Line], *, stage: int, final: bool) -> Section:
    name, _, argument = title[1].strip().lstrip("%").partition(" ")
    return Section(
        name=name.lower(),
        argument=argument.strip(),
        line=title[0],
        lines=tuple(lines),
        stage=stage,
        final=final,
    )


def _docker_commands(dockerfile: Dockerfile) -> Iterator[SpecCommand]:
    """Every RUN cut into its commands, and every other instruction as one line."""
    for number, instruction in enumerate(dockerfile.instructions):
        command = functools.partial(
            SpecCommand,
            file=DOCKERFILE,
            kind=_OF_INSTRUCTION.get(instruction.name, OTHER),
            stage=instruction.stage,
            final=instruction.final,
            layer=number,
        )
        if instruction.name != "RUN":
            yield command(line=instruction.line, text=" ".join(instruction.value.split()))
            continue
        (line, first), *rest = instruction.lines
        first = _FLAGS.sub("", first.strip()[len(instruction.name) :].lstrip())
        yield from _shell_commands(command, [(line, first), *rest])


def _definition_commands(definition: Definition) -> Iterator[SpecCommand]:
    """Every script cut into its commands, and every other line by itself."""
    for stage, header in enumerate(definition.headers):
        final = stage + 1 == len(definition.headers)
        for line, text in header.values():
            yield SpecCommand(
                file=DEFINITION,
                line=line,
                text=text,
                kind=SOURCE,
                stage=stage,
                final=final,
                layer=stage,
            )
    for section in definition.sections:
        command = functools.partial(
            SpecCommand,
            file=DEFINITION,
            kind=_OF_SECTION.get(section.name, OTHER),
            stage=section.stage,
            final=section.final,
            layer=section.stage,
        )
        if section.name in _SHELL_SECTIONS:
            yield from _shell_commands(command, section.lines)
        else:
            yield from (command(line=line, text=text) for line, text in section.filled)


def _shell_commands(
    command: functools.partial[SpecCommand], lines: Iterable[Line]
) -> Iterator[SpecCommand]:
    for logical in logical_lines(lines):
        for line, text, chained in _parts(logical):
            yield command(line=line, text=text, chained=chained)


def logical_lines(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines joined where a backslash continues them; comments and empty lines are left out."""
    joined: list[Line] = []
    for number, text in _filled(lines):
        joined.append((number, text.removesuffix("\\").rstrip()))
        if not text.endswith("\\"):
            yield joined
            joined = []
    if joined:
        yield joined


def _parts(lines: Sequence[Line]) -> Iterator[tuple[int, str, bool]]:
    """The commands of one logical line, cut at `&&`: line, text, and True if `&&` follows."""
    words: list[str] = []
    begin = lines[0][0]
    for number, text in lines:
        for word in text.split():
            if word == "&&":
                yield begin, " ".join(words), True
                words = []
                continue
            if not words:
                begin = number
            words.append(word)
    if words:
        yield begin, " ".join(words), False


def _variables(docker: Dockerfile, definition: Definition) -> Iterator[Variable]:
    for instruction in docker.named("ENV", "ARG"):
        for name, value in instruction.pairs:
            lines = (number for number, text in instruction.lines if f"{name}=" in text)
            line, final = next(lines, instruction.line), instruction.final
            yield Variable(file=DOCKERFILE, line=line, name=name, value=value, final=final)
    for section in definition.named("environment"):
        for line, name, value in section.exported:
            final = section.final
            yield Variable(file=DEFINITION, line=line, name=name, value=value, final=final)


def _filled(lines: Iterable[Line]) -> list[Line]:
    stripped = [(number, line.strip()) for number, line in lines]
    return [(number, line) for number, line in stripped if line and line[0] != "#"]


@functools.lru_cache(maxsize=1 << 14)
def words_of(text: str) -> tuple[str, ...]:
    """Words as a shell splits them; at blanks alone where the quotes are not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())
