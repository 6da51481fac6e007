"""The console blocks of README.md and docs/, and what the comments above them say of them.

A comment stands directly above its block:

    <!-- not run: why no test runs it -->
    <!-- run: PLACE -->                  all commands of the block; PLACE is `project` or `images`
    <!-- run: PLACE; only plan, explain: why no test runs the others -->
    <!-- run: PLACE; exit 2; with: recipes/fftw.yaml; before: sed -i s/a/b/ recipes/fftw.yaml -->
    <!-- file: recipes/fftw.yaml -->     above YAML: the file of `with:`, valid in a project
    <!-- part of a recipe -->            above YAML: valid in a child of hpc-base

Printed lines are compared loosely: see `line_pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from samples import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACES = ("project", "images")
_PAGES_NOT_RUN = {"scale-out.md": "several machines, or what a site shares, are needed"}
_FENCE = re.compile(
    r"(?ms)(?:^<!-- (?P<note>(?:(?!-->).)+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$"
)
_PROMPT = re.compile(r"(?:\w+)?(?P<prompt>[$#]) +(?P<command>.*)")
_ELLIPSIS = re.compile(r"…|\.\.\.|\[…\]")
_VARYING = re.compile(
    r"(?P<space>\s+)|(?P<path>(?<!\S)/\S+)|(?P<digest>\b(?=[a-f]*\d)[0-9a-f]{7,}\b)"
    r"|(?P<version>\d+(?:\.\d+)+)|(?P<number>\d+)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleCommand:
    """A command and the lines that the page prints below it."""

    text: str
    output: tuple[str, ...]

    @property
    def name(self) -> str:
        """The subcommand of build-images, else the program."""
        argv = re.sub(r"^(?:\w+=\S+ +)+", "", self.text).split()
        is_ours = argv[0] == "build-images" and len(argv) > 1 and argv[1][0] != "-"
        return argv[1] if is_ours else argv[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleBlock:
    """A fenced block with its comment."""

    page: Path
    line: int
    note: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def place(self) -> str:
        """Where its commands run; empty if they do not."""
        return self._clause("run: (.*)")

    @property
    def file(self) -> str:
        return self._clause("file: (.*)")

    @property
    def status(self) -> int:
        return int(self._clause(r"exit (\d+)") or 0)

    @property
    def before(self) -> str:
        """A shell command that prepares the place."""
        return self._clause("before: (.*)")

    @property
    def files(self) -> list[str]:
        """Files of the page that are in the place."""
        return re.split(r",\s*", self._clause("with: (.*)"))

    @property
    def reason(self) -> str:
        """Why no test runs this block, or some of its commands."""
        of_block = self._clause("not run: (.*)") or self._clause("only [^:]*: (.*)")
        return of_block or _PAGES_NOT_RUN.get(self.page.name, "")

    def _clause(self, pattern: str) -> str:
        matches = (re.fullmatch(pattern, clause) for clause in re.split(r";\s+", self.note))
        return next((match[1] for match in matches if match), "")

    @property
    def commands(self) -> list[ConsoleCommand]:
        """All commands, whether a test runs them or not."""
        return list(_commands(self.text.splitlines()))

    @property
    def run_commands(self) -> list[ConsoleCommand]:
        """The commands that a test runs."""
        names = re.split(r",\s*", self._clause("only ([^:]*): .*"))
        commands = self.commands
        if names == [""]:
            return commands
        return [
            each for each in commands if each.name in names or each.text.startswith(tuple(names))
        ]


def _commands(lines: Sequence[str]) -> Iterator[ConsoleCommand]:
    command, output = "", list[str]()
    for line in lines:
        prompt = _PROMPT.fullmatch(line)
        if command.endswith("\\"):
            command = command[:-1] + line.strip()
        elif prompt:
            if command:
                yield ConsoleCommand(text=command, output=tuple(output))
            command, output = prompt["command"], []
        else:
            output.append(line)
    if command:
        yield ConsoleCommand(text=command, output=tuple(output))


def blocks_of(page: Path) -> list[ConsoleBlock]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    return [
        ConsoleBlock(
            page=page,
            line=text.count("\n", 0, match.start("language")) + 1,
            note=re.sub(r"\n\s*", " ", match["note"] or ""),
            language=match["language"],
            text=match["text"],
        )
        for match in _FENCE.finditer(text)
    ]


def console_blocks() -> list[ConsoleBlock]:
    return [block for page in PAGES for block in blocks_of(page) if block.language == "console"]


def line_pattern(line: str, *, exact: bool) -> re.Pattern[str]:
    """Return the pattern of a printed line: its words, where they stand.

    Digests, versions, absolute paths and the width of gaps vary; `…` stands for any text, and
    whole numbers vary unless the line is `exact`.
    """
    parts = [_VARYING.sub(_marked, part) for part in _ELLIPSIS.split(line.strip())]
    patterns = {"space": r"\s+", "path": r"\S+", "digest": "[0-9a-f]{7,}", "version": r"[\d.]+"}
    text = ".*".join(re.escape(part) for part in parts)
    text = text if exact else re.sub(r"\bdays?\b", "days?", text)
    for name, pattern in patterns.items():
        text = text.replace(f"\0{name}\0", pattern)
    return re.compile(re.sub("\0(\\d+)\0", r"\1" if exact else r"\\d+", text))


def _marked(match: re.Match[str]) -> str:
    return f"\0{match[0] if match.lastgroup == 'number' else match.lastgroup}\0"


def missing_lines(command: ConsoleCommand, printed: str, *, exact: bool) -> list[str]:
    """Return the lines on the page that a command did not print, in this order."""
    rest, missing = printed.splitlines(), list[str]()
    for line in filter(str.strip, command.output):
        pattern = line_pattern(line, exact=exact)
        at = next((at for at, other in enumerate(rest) if pattern.search(other)), None)
        if at is None:
            missing.append(line)
        else:
            rest = rest[at + 1 :]
    return missing
