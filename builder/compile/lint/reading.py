"""Split both texts of a spec into stages, parts and single commands, for the rules.

dockerfile-parse splits a Dockerfile into instructions. A definition is split as in Apptainer: into
stages at each `Bootstrap:`, and each stage into sections at lines that begin with `%`. See
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
from builder.system.files import table_beside

DOCKERFILE, DEFINITION = "Dockerfile", "Singularity.def"
# Kinds of commands. `HOST` runs on the building host, not in the image.
SHELL, VARIABLE, ARGUMENT, COPY = "command", "variable", "argument", "copy"
LABEL, SOURCE, SCRIPT, HOST, OTHER = "label", "source", "script", "host", "other"
TABLES = table_beside(__file__, "tables.yaml")
_KINDS: Mapping[str, str] = {
    name: kind for kind, names in TABLES["kinds"].items() for name in names.split()
}
SCRIPTS = ("post", "environment", "runscript", "test", "startscript", "setup", "pre")
_HEADERS = frozenset(TABLES["headers"].split())
_BOOTSTRAP = re.compile(r"bootstrap:", re.IGNORECASE)
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+[Aa][Ss]\s+(?P<as>\S+))?")
_FLAGS = re.compile(r"^(?:--[a-z]+(?:=\S+)?\s+)+")

Line = tuple[int, str]  # its number, counted from 1, and its text


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecCommand:
    """One command, copy, variable or label, or one line of another kind.

    `text` has single spaces and no continuation lines; it is the same for equal commands of both
    formats. `layer` is the number of the layer that it belongs to: one for each instruction, or for
    each stage of a definition. A command is `chained` if `&&` follows.
    """

    file: str
    line: int
    text: str
    kind: str
    final: bool
    layer: int
    chained: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecStage:
    """A FROM, or the header of a definition's stage; `name` is empty if it has none.

    `agent` is the bootstrap agent, in lower case: `docker`, `oci-archive`.
    """

    name: str
    source: str
    line: int
    agent: str = "docker"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecPart:
    """An instruction of a Dockerfile, or a section of a definition.

    `value` is the text after its name, with continuation lines joined. `lines` are all lines of an
    instruction, and those of a section below its name.
    """

    name: str
    value: str
    line: int
    stage: int
    lines: tuple[Line, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of its commands."""
        return _KINDS.get(self.name, OTHER)

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
    def filled(self) -> list[Line]:
        """Its lines that are neither empty nor a comment, stripped."""
        return _filled(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecText:
    """One of the two texts of a spec; `stray` are the lines that are in no stage and no part."""

    stages: tuple[SpecStage, ...]
    parts: tuple[SpecPart, ...]
    stray: tuple[Line, ...]

    def named(self, *names: str) -> Iterator[SpecPart]:
        return (part for part in self.parts if part.name in names)

    def is_final(self, part: SpecPart) -> bool:
        """Return whether a part is in the last stage."""
        return part.stage == len(self.stages) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Both texts of a spec. `locked`: the project pins its bases and sources by digest."""

    spec: Spec
    locked: bool
    docker: SpecText
    definition: SpecText
    commands: tuple[SpecCommand, ...]

    def of_kind(self, *kinds: str) -> Iterator[SpecCommand]:
        return (command for command in self.commands if command.kind in kinds)

    def matches(
        self, pattern: re.Pattern[str], *kinds: str
    ) -> Iterator[tuple[SpecCommand, re.Match[str]]]:
        """Yield the commands of these kinds that match a pattern, with their matches."""
        for command in self.of_kind(*kinds):
            if match := pattern.search(command.text):
                yield command, match

    def layers(self, *kinds: str) -> list[list[SpecCommand]]:
        """Return the commands of these kinds, grouped by layer."""
        layers: dict[tuple[str, str, int], list[SpecCommand]] = {}
        for command in self.of_kind(*kinds):
            key = (command.kind, command.file, command.layer)
            layers.setdefault(key, []).append(command)
        return list(layers.values())


def read(spec: Spec, *, locked: bool = False) -> Reading:
    """Read both texts of a spec."""
    docker, definition = read_dockerfile(spec.dockerfile), read_definition(spec.singularity)
    commands = (*_commands(docker, DOCKERFILE), *_commands(definition, DEFINITION))
    return Reading(
        spec=spec, locked=locked, docker=docker, definition=definition, commands=commands
    )


def read_dockerfile(text: str) -> SpecText:
    """Read a Dockerfile; lines that are no instruction are `stray`."""
    from dockerfile_parse import DockerfileParser  # noqa: PLC0415 - cached specs do not need it

    parser = DockerfileParser(
        fileobj=io.BytesIO(text.encode()),  # type: ignore[arg-type]  # documented: it reads bytes
        env_replace=False,
    )
    entries = [entry for entry in parser.structure if entry["instruction"] != "COMMENT"]
    lines = list(enumerate(text.splitlines(), start=1))
    stages: list[SpecStage] = []
    parts: list[SpecPart] = []
    for entry in entries:
        line, value = entry["startline"] + 1, entry["value"].strip()
        if entry["instruction"] == "FROM":
            match = _FROM.match(value)
            source, name = match.group("image", "as") if match else ("", "")
            stages.append(SpecStage(name=name or "", source=source, line=line))
        parts.append(
            SpecPart(
                name=entry["instruction"],
                value=value,
                line=line,
                lines=tuple(lines[line - 1 : entry["endline"] + 1]),
                stage=len(stages) - 1,
            )
        )
    numbers = {number for part in parts for number, _ in part.lines}
    stray = (line for line in _filled(lines) if line[0] not in numbers)
    return SpecText(stages=tuple(stages), parts=tuple(parts), stray=tuple(stray))


def read_definition(text: str) -> SpecText:
    """Read a definition; lines that are in no section and no header are `stray`."""
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
    stages = tuple(map(_stage, headers))
    sources = (
        SpecPart(name="FROM", value=stage.source, line=stage.line, stage=number)
        for number, stage in enumerate(stages)
    )
    parts = (_section(title, stage, tuple(lines)) for title, stage, lines in sections)
    return SpecText(stages=stages, parts=(*sources, *parts), stray=tuple(stray))


def _stage(header: dict[str, Line]) -> SpecStage:
    begin, agent = header["bootstrap"]
    line, source = header.get("from", (begin, ""))
    _, name = header.get("stage", (0, ""))
    return SpecStage(name=name, source=source, line=line, agent=agent.lower())


def _section(title: Line, stage: int, lines: tuple[Line, ...]) -> SpecPart:
    line, text = title
    name, _, value = text.strip().lstrip("%").partition(" ")
    return SpecPart(name=name.lower(), value=value.strip(), line=line, stage=stage, lines=lines)


def _commands(text: SpecText, file: str) -> Iterator[SpecCommand]:
    """Yield the commands, copies, variables and labels of all parts of a text."""
    stages = {stage.name for stage in text.stages}
    for number, part in enumerate(text.parts):
        for line, words, chained in _entries(part, stages):
            yield SpecCommand(
                file=file,
                line=line,
                text=words,
                kind=part.kind,
                final=text.is_final(part),
                layer=number if file == DOCKERFILE else part.stage,
                chained=chained,
            )


_Entry = tuple[int, str, bool]  # line, text, and True if `&&` follows


def _entries(part: SpecPart, stages: set[str]) -> Iterator[_Entry]:
    if part.name == "RUN":
        (line, first), *rest = part.lines
        first = _FLAGS.sub("", first.strip()[len("RUN") :].lstrip())
        yield from _shell_commands([(line, first), *rest])
    elif part.name == "WORKDIR":
        yield from ((part.line, f"{program} {part.value}", False) for program in ("mkdir -p", "cd"))
    elif part.kind in {SHELL, SCRIPT, HOST}:
        yield from _shell_commands(part.lines)
    elif part.kind == COPY:
        yield from ((line, text, False) for line, text in _copies(part, stages))
    elif part.kind in {VARIABLE, ARGUMENT, LABEL}:
        yield from ((line, f"{name}={value}", False) for line, name, value in _pairs(part))
    else:
        yield part.line, " ".join(part.value.split()), False


def _copies(part: SpecPart, stages: set[str]) -> Iterator[Line]:
    """Yield each source of a COPY, ADD or %files, with its stage or image of origin."""
    if part.name == "files":
        origin = "a stage: " if part.value.startswith("from ") else ""
        for line, text in part.filled:
            path, *target = words_of(text)
            yield line, f"{origin}{path} {(target or [path])[0]}"
    elif part.words:
        source = re.search(r"--from=(\S+)", part.flags)
        origin = f"{'a stage' if source[1] in stages else source[1]}: " if source else ""
        *paths, destination = part.words
        yield from ((part.line, f"{origin}{path} {destination}") for path in paths)


def _pairs(part: SpecPart) -> Iterator[tuple[int, str, str]]:
    """Yield the variables or labels of a part: line, name, value."""
    if part.name == "environment":
        for line, text in part.filled:
            assignments = (word.partition("=") for word in words_of(text))
            yield from ((line, name, value) for name, sign, value in assignments if sign)
    elif part.name == "labels":
        for line, text in part.filled:
            name, _, value = text.partition(" ")
            yield line, name, value.strip()
    elif part.words and "=" not in part.words[0]:  # ENV A 1
        yield part.line, part.words[0], " ".join(part.words[1:])
    else:
        for name, _, value in (word.partition("=") for word in part.words):
            lines = (number for number, text in part.lines if f"{name}=" in text)
            yield next(lines, part.line), name, value


def _shell_commands(lines: Iterable[Line]) -> Iterator[_Entry]:
    for logical in logical_lines(lines):
        yield from _parts(logical)


def logical_lines(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield lines joined at backslashes; comments and empty lines are left out."""
    joined: list[Line] = []
    for number, text in _filled(lines):
        joined.append((number, text.removesuffix("\\").rstrip()))
        if not text.endswith("\\"):
            yield joined
            joined = []
    if joined:
        yield joined


def _parts(lines: Sequence[Line]) -> Iterator[_Entry]:
    """Yield the commands of one logical line, split at `&&`."""
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


def _filled(lines: Iterable[Line]) -> list[Line]:
    stripped = [(number, line.strip()) for number, line in lines]
    return [(number, line) for number, line in stripped if line and line[0] != "#"]


@functools.lru_cache(maxsize=1 << 14)
def words_of(text: str) -> tuple[str, ...]:
    """Split a text into words like a shell; only at whitespace if its quotes are not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())
