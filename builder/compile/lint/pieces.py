"""What hadolint and ShellCheck are given: each text once, however many specs hold it.

hadolint needs 65 ms for the Dockerfile of `hpc-base`, nearly all of it for ShellCheck on its RUN
instructions, and most of those are the same in many cells. So it reads each RUN by itself, after
the SHELL, ENV and ARG instructions that it depends on, and each Dockerfile once more with its
RUN instructions emptied. ShellCheck reads the scripts of a definition section by section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from builder.compile.lint.definition import Section
from builder.compile.lint.dockerfile import Dockerfile, Instruction
from builder.compile.lint.findings import DEFINITION, DOCKERFILE
from builder.compile.lint.reading import Reading
from builder.model import Spec

HADOLINT, SHELLCHECK = "hadolint", "shellcheck"
_SECTIONS = frozenset({"post", "environment", "runscript", "test", "startscript", "setup", "pre"})
_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:/|\b)(sh|dash|bash|ksh)\b")
_WITH_SHELL = re.compile(r"-c\s+\S*?(sh|dash|bash|ksh)\b")
# hadolint takes a registry with a port for one only if there is a dot in its name.
_UNDOTTED = re.compile(r"(?<=\s)([^\s./:=-][^\s./:=]*):(?=\d+/)")
_CONTEXT = frozenset({"SHELL", "ENV", "ARG", "USER"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A text for one linter. `dialect` is the shell of a script; hadolint has none."""

    linter: str
    text: str
    dialect: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a piece comes from: its line N is line N + `offset` of the file, at least `first`."""

    piece: Piece
    file: str
    offset: int
    first: int = 1

    def line(self, number: int) -> int:
        return max(number + self.offset, self.first)


def places(spec: Spec, reading: Reading) -> Iterator[Place]:
    """All pieces of one spec."""
    yield from _of_dockerfile(spec.dockerfile, reading.docker)
    for section in reading.definition.sections:
        if section.name in _SECTIONS and section.filled:
            yield _of_section(section)
    for name, text in spec.files.items():
        if found := _SHEBANG.match(text):
            piece = Piece(linter=SHELLCHECK, text=text, dialect=found.group(1))
            yield Place(piece=piece, file=name, offset=0)


def _of_dockerfile(text: str, read: Dockerfile) -> Iterator[Place]:
    if read.hits:  # what cannot be cut up is read whole
        yield Place(piece=Piece(linter=HADOLINT, text=text), file=DOCKERFILE, offset=0)
        return
    lines = [line if not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    context: list[str] = []
    for one in read.instructions:
        written = "\n".join(line for _, line in one.lines)
        if one.name == "FROM":
            context = []
            _blank(lines, one, _UNDOTTED.sub(r"\1.example:", written))
        elif one.name in _CONTEXT:
            context.append(written)
        elif one.name == "RUN":
            yield _of_run(one, written, context)
            _blank(lines, one, "RUN true")
        elif one.name == "LABEL":
            _blank(lines, one, "LABEL " + " ".join(f"{name}=x" for name, _ in one.pairs))
    piece = Piece(linter=HADOLINT, text="\n".join([*lines, ""]))
    yield Place(piece=piece, file=DOCKERFILE, offset=0)


def _of_run(run: Instruction, written: str, context: list[str]) -> Place:
    before = "\n".join(["FROM scratch", *context, ""])
    return Place(
        piece=Piece(linter=HADOLINT, text=f"{before}{written}\n"),
        file=DOCKERFILE,
        offset=run.line - 1 - before.count("\n"),
        first=run.line,
    )


def _blank(lines: list[str], one: Instruction, instead: str) -> None:
    """Put another instruction in the place of one, and keep every line's number."""
    begin = one.line - 1
    lines[begin : begin + len(one.lines)] = [instead, *[""] * (len(one.lines) - 1)]


def _of_section(section: Section) -> Place:
    body = "\n".join(line for _, line in section.lines) + "\n"
    shebang = _SHEBANG.match(body.lstrip())
    found = shebang or _WITH_SHELL.search(section.argument)
    # Apptainer runs %post with `sh -e`, so a `cd` that fails ends it.
    before = "set -e\n" if section.name == "post" and not shebang else ""
    return Place(
        piece=Piece(
            linter=SHELLCHECK, text=before + body, dialect=found.group(1) if found else "sh"
        ),
        file=DEFINITION,
        offset=section.line - before.count("\n"),
        first=section.line,
    )
