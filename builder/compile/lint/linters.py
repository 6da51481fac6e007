"""hadolint and ShellCheck: where they are, and what they say of many texts at once."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.compile.lint.definition import Section
from builder.compile.lint.dockerfile import Dockerfile, Instruction
from builder.compile.lint.findings import DEFINITION, DOCKERFILE, ERROR, WARNING
from builder.compile.lint.reading import Reading
from builder.model import Spec
from builder.model.errors import StepFailed
from builder.system.process import Processes

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


LINTERS = (HADOLINT, SHELLCHECK)
BATCH = 64  # texts a process: what it prints of them stays far below what Processes keeps
TIMEOUT_S = 300.0

# Rules that do not hold here, each with the reason. docs/lint.md has the same table.
IGNORED: Mapping[str, str] = {
    "DL3003": "hpccm writes `cd ... && ...` within one RUN, which leaves no trace in the next",
    "DL3008": "versions come from the suite that the base pins, not from each package's name",
    "DL3013": "versions are pinned by the recipe or the lock, not in each command",
    "DL3033": "versions come from the repositories of the base, which its digest names",
    "DL3037": "versions come from the repositories of the base, which its digest names",
    "DL3041": "versions come from the repositories of the base, which its digest names",
    "DL3059": "one RUN for each block is what cells share as layers",
    "DL4001": "it compares RUN instructions with each other; each block brings what it needs",
    "DL4006": "a definition has no SHELL; piped-download says where a pipe hides a failure",
    "SC1090": "the sourced file is in the image, where ShellCheck cannot look",
    "SC1091": "the sourced file is in the image, where ShellCheck cannot look",
    "SC2016": "$basearch and $releasever in the text of a repository are for yum to expand",
    "SC2046": "hpccm writes make -j$(nproc); nproc prints a number",
    "SC2086": "$SRC, $OUT and hpccm's prefixes are paths without blanks",
}
_SHELL_IGNORED = tuple(rule for rule in IGNORED if rule.startswith("SC"))
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A linter of this machine. `stamp` changes whenever the file does."""

    name: str
    path: str
    stamp: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """What a linter says of one line of a piece."""

    line: int
    level: str
    rule: str
    text: str


def find(search_path: str) -> dict[str, Program]:
    """The linters of this machine: wheels put them beside Python, which PATH need not hold."""
    beside = sysconfig.get_path("scripts")
    found = {}
    for name in LINTERS:
        if path := shutil.which(name, path=os.pathsep.join([beside, search_path])):
            state = Path(path).stat()
            stamp = f"{path} {state.st_size} {state.st_mtime_ns}"
            found[name] = Program(name=name, path=path, stamp=stamp)
    return found


def version(program: Program, processes: Processes) -> str:
    """`hadolint 2.14.0`."""
    said = processes.capture([program.path, "--version"], timeout_s=60).stdout
    number = _VERSION.search(said)
    return f"{program.name} {number.group() if number else 'of unknown version'}"


def remarks(
    pieces: Iterable[Piece], programs: Mapping[str, Program], processes: Processes, jobs: int
) -> dict[Piece, list[Remark]]:
    """What the linters say of each piece; pieces of a linter that is not there are left out."""
    groups: dict[tuple[str, str], list[Piece]] = {}
    for piece in dict.fromkeys(pieces):
        if piece.linter in programs:
            groups.setdefault((piece.linter, piece.dialect), []).append(piece)
    batches = [batch for group in groups.values() for batch in _batches(group, jobs)]
    found: dict[Piece, list[Remark]] = {}
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        try:
            for one in pool.map(lambda batch: _run(batch, programs, processes), batches):
                found.update(one)
        except KeyboardInterrupt:  # Ctrl-C does not reach what leads a session of its own
            processes.stop()
            raise
    return found


def _batches(pieces: Sequence[Piece], jobs: int) -> list[Sequence[Piece]]:
    """Even shares of at most `BATCH`, one for each job at least if there is enough for two."""
    shares = max(math.ceil(len(pieces) / BATCH), min(jobs, math.ceil(len(pieces) / 4)))
    return [pieces[start::shares] for start in range(shares)]


def _run(
    pieces: Sequence[Piece], programs: Mapping[str, Program], processes: Processes
) -> dict[Piece, list[Remark]]:
    linter, dialect = pieces[0].linter, pieces[0].dialect
    with tempfile.TemporaryDirectory(prefix="build-images-lint-") as name:
        folder = Path(name)
        for number, piece in enumerate(pieces):
            (folder / str(number)).write_text(piece.text, encoding="utf-8")
        files = [str(number) for number in range(len(pieces))]
        command = _hadolint if linter == HADOLINT else _shellcheck
        # Settings of the user's own must not decide what a spec may hold.
        done = processes.capture(
            [*command(programs[linter].path, dialect, folder), *files],
            cwd=folder,
            env={"SHELLCHECK_OPTS": "", "XDG_CONFIG_HOME": name, "HOME": name},
            timeout_s=TIMEOUT_S,
            check=False,
        )
    if done.timed_out or done.returncode not in (0, 1):
        tail = (done.stderr or done.stdout).splitlines()[-10:]
        raise StepFailed(f"{linter} ended with status {done.returncode}", tail=tail)
    found: dict[Piece, list[Remark]] = {piece: [] for piece in pieces}
    for one in _entries(linter, done.stdout):
        found[pieces[int(str(one["file"]))]].append(_remark(one))
    return found


def _hadolint(path: str, _dialect: str, folder: Path) -> list[str]:
    config = folder / "hadolint.yaml"
    config.write_text("{}\n")
    ignored = [f"--ignore={rule}" for rule in IGNORED]
    options = ["--no-fail", "--disable-ignore-pragma", "--format=json"]
    return [path, f"--config={config}", *options, *ignored]


def _shellcheck(path: str, dialect: str, _folder: Path) -> list[str]:
    excluded = ",".join(_SHELL_IGNORED)
    return [path, "--norc", f"--shell={dialect}", f"--exclude={excluded}", "--format=json1"]


def _entries(linter: str, said: str) -> list[dict[str, object]]:
    try:
        found = json.loads(said)
    except ValueError as error:
        raise StepFailed(f"{linter} printed no JSON", tail=said.splitlines()[-10:]) from error
    return list(found["comments"] if isinstance(found, dict) else found)


def _remark(one: Mapping[str, object]) -> Remark:
    code = one["code"]
    return Remark(
        line=int(str(one["line"])),
        level=ERROR if one["level"] == "error" else WARNING,
        rule=code if isinstance(code, str) else f"SC{code}",
        text=" ".join(str(one["message"]).split()),
    )
