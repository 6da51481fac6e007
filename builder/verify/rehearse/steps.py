"""The commands of a spec, each with its working directory and its variables."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.compile.lint.reading import DOCKERFILE, SHELL, Reading, SpecCommand, words_of

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_HOME = "/"
_GROUPING = frozenset({"{", "}", ";"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One command of a Dockerfile's RUN. `folder` is where it runs; `variables` are set for it.

    `argv` excludes the assignments before the command. `line` is its line in the Dockerfile;
    `layer` is the number of the RUN; `final` marks the last stage. A command that `has_fallback`
    may fail: another command follows after `||`.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    folder: str
    line: int
    layer: int
    final: bool
    has_fallback: bool

    @property
    def program(self) -> str:
        """The command's name, without its folder."""
        return posixpath.basename(self.argv[0])

    def path(self, name: str) -> str:
        """Return the absolute path of a path in the command."""
        return posixpath.normpath(posixpath.join(self.folder, name))


def steps_of(reading: Reading) -> tuple[Step, ...]:
    """Return every command of the Dockerfile; `cd` and `export` hold until the RUN ends."""
    return tuple(_steps(reading))


def _steps(reading: Reading) -> Iterator[Step]:
    layer, folder, exported = -1, _HOME, dict[str, str]()
    for command in reading.commands:
        if command.file != DOCKERFILE or command.kind != SHELL:
            continue
        if command.layer != layer:
            layer, folder, exported = command.layer, _HOME, {}
        for words, has_fallback in _alternatives(command):
            variables, argv = _assignments(words)
            if not argv:
                exported |= variables
            elif argv[0] == "export":
                exported |= _assignments(tuple(filter(_ASSIGNMENT.fullmatch, argv)))[0]
            elif argv[0] == "cd" and len(argv) > 1:
                folder = _HOME if argv[1] == "-" else posixpath.join(folder, argv[1])
            else:
                yield Step(
                    argv=argv,
                    variables={**exported, **variables},
                    folder=posixpath.normpath(folder),
                    line=command.line,
                    layer=command.layer,
                    final=command.final,
                    has_fallback=has_fallback,
                )


def _alternatives(command: SpecCommand) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the commands of a group `{ a || b ; }`, each with whether a fallback follows it."""
    words: list[str] = []
    for word in words_of(command.text):
        if word == "||":
            yield tuple(words), True
            words = []
        elif word not in _GROUPING:
            words.append(word.removesuffix(";"))
    yield tuple(words), False


def _assignments(words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    variables: dict[str, str] = {}
    for count, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            return variables, words[count:]
        variables[match[1]] = match[2]
    return variables, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """The arguments of a command: values by option, options without a value, and the others."""

    values: Mapping[str, Sequence[str]]
    flags: Sequence[str]
    words: Sequence[str]

    def all(self, *names: str) -> list[str]:
        """Return all values of an option, which may have several names."""
        return [value for name in names for value in self.values.get(name, ())]

    def last(self, *names: str) -> str:
        """Return the last value of an option; empty without one."""
        return (self.all(*names) or [""])[-1]


def arguments_of(words: Sequence[str], with_value: Collection[str] = ()) -> Arguments:
    """Parse arguments; the options `with_value` take a value: `-p 1`, `-p1`, `--strip=1`."""
    values: dict[str, list[str]] = {}
    flags, others = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in with_value:
            values.setdefault(word, []).append(next(rest, ""))
        elif equals and name in with_value:
            values.setdefault(name, []).append(value)
        elif word[:2] in with_value:
            values.setdefault(word[:2], []).append(word[2:])
        elif word.startswith("-"):
            flags.append(word)
        else:
            others.append(word)
    return Arguments(values=values, flags=flags, words=others)
