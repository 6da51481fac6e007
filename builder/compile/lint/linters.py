"""Find hadolint and ShellCheck on this machine, and collect their findings in specs.

hadolint reads the stages of a Dockerfile, and their commands one by one. ShellCheck reads the
scripts of a definition section by section, and those of the spec's folder. A text that many specs
share is read once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from builder.compile.lint.findings import ERROR, WARNING, LintFinding
from builder.compile.lint.reading import DEFINITION, DOCKERFILE, SCRIPTS, TABLES, Reading, SpecPart
from builder.model.errors import StepFailed
from builder.system.process import Processes

HADOLINT, SHELLCHECK = "hadolint", "shellcheck"
LINTERS = (HADOLINT, SHELLCHECK)
BATCH = 64  # texts per process: its output stays far below the limit of Processes
TIMEOUT_S = 300.0
_SHEBANG = re.compile(r"#!\s*\S*?(?:env\s+)?(?:/|\b)(sh|dash|bash|ksh)\b")
_WITH_SHELL = re.compile(r"-c\s+\S*?(sh|dash|bash|ksh)\b")
# hadolint recognises a registry with a port only if there is a dot in its name.
_UNDOTTED = re.compile(r"^(FROM (?:\S+ )?)([^\s./:=-][^\s./:=]*):(?=\d+/)", re.MULTILINE)
_CONTEXT = ("ARG", "ENV", "SHELL")  # instructions that a later RUN depends on
_VERSION = re.compile(r"\d+(?:\.\d+)+")

IGNORED: Mapping[str, str] = TABLES["ignored"]


class Text(NamedTuple):
    """A text for a linter. `dialect` is the shell of a script; hadolint has none.

    The first lines, as many as `context`, are there for the others: they are linted elsewhere.
    """

    linter: str
    dialect: str
    text: str
    context: int = 0


def texts_of(reading: Reading) -> Iterator[tuple[Text, str, int]]:
    """Yield the texts of a spec, each with its file and the number to add to its line numbers."""
    yield from _stages(reading)
    for section in reading.definition.named(*SCRIPTS):
        if section.filled:
            yield _of_section(section)
    for name, text in reading.spec.files.items():
        if match := _SHEBANG.match(text):
            yield Text(SHELLCHECK, match[1], text), name, 0


def _stages(reading: Reading) -> Iterator[tuple[Text, str, int]]:
    """Yield each stage of the Dockerfile, after empty stages with the earlier names.

    Its RUNs are yielded one by one, after its variables: hadolint takes nearly all its time for
    them, and the same ones are in many stages.
    """
    lines = _UNDOTTED.sub(r"\1\2.example:", reading.spec.dockerfile).splitlines(keepends=True)
    stages = reading.docker.stages
    ends = [*(stage.line - 1 for stage in stages[1:]), len(lines)]
    names: list[str] = []
    for number, (stage, end) in enumerate(zip(stages, ends, strict=False)):
        variables: list[str] = []
        for part in reading.docker.parts:
            own = slice(part.line - 1, part.line - 1 + len(part.lines))
            if part.stage == number and part.name == "RUN":
                yield _with_context(["FROM scratch\n", *variables], lines[own], own.start)
                lines[own] = ["\n"] * len(part.lines)
            elif part.stage == number and part.name in _CONTEXT:
                variables += lines[own]
        before = [f"FROM scratch AS {name}\n" for name in names]
        yield _with_context(before, lines[stage.line - 1 : end], stage.line - 1)
        names += [stage.name] if stage.name else []


def _with_context(
    context: Sequence[str], lines: Sequence[str], start: int
) -> tuple[Text, str, int]:
    text = Text(HADOLINT, "", "".join([*context, *lines]), len(context))
    return text, DOCKERFILE, start - len(context)


def _of_section(section: SpecPart) -> tuple[Text, str, int]:
    body = "\n".join(line for _, line in section.lines) + "\n"
    shebang = _SHEBANG.match(body.lstrip())
    shell = shebang or _WITH_SHELL.search(section.value)
    # Apptainer runs %post with `sh -e`, so a `cd` that fails ends it.
    before = "set -e\n" if section.name == "post" and not shebang else ""
    text = Text(SHELLCHECK, shell[1] if shell else "sh", before + body)
    return text, DEFINITION, section.line - before.count("\n")


def find(search_path: str) -> dict[str, str]:
    """Return the linters' paths; wheels put them beside Python, in a folder that PATH may lack."""
    folders = os.pathsep.join([sysconfig.get_path("scripts"), search_path])
    paths = {name: shutil.which(name, path=folders) for name in LINTERS}
    return {name: path for name, path in paths.items() if path}


def version(name: str, path: str, processes: Processes) -> str:
    """Return a linter's name and version: `hadolint 2.14.0`."""
    number = _VERSION.search(processes.capture([path, "--version"], timeout_s=60).stdout)
    return f"{name} {number.group() if number else 'of unknown version'}"


def linter_findings(
    texts: Iterable[Text], programs: Mapping[str, str], processes: Processes, jobs: int
) -> dict[Text, list[LintFinding]]:
    """Return the linters' findings in each text; texts for a missing linter are left out.

    Lines are those of the text; image and file are empty.
    """
    groups: dict[tuple[str, str], list[Text]] = {}
    for text in dict.fromkeys(texts):
        if text.linter in programs:
            groups.setdefault((text.linter, text.dialect), []).append(text)
    batches = [
        group[start::count]
        for group in groups.values()
        for count in [max(-(-len(group) // BATCH), min(jobs, len(group)))]
        for start in range(count)
    ]
    results: dict[Text, list[LintFinding]] = {}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            for result in pool.map(lambda batch: _run(batch, programs, processes), batches):
                results.update(result)
        except KeyboardInterrupt:  # Ctrl-C does not reach processes in their own sessions
            processes.stop()
            raise
    return results


def _run(
    texts: Sequence[Text], programs: Mapping[str, str], processes: Processes
) -> dict[Text, list[LintFinding]]:
    linter, dialect = texts[0][:2]
    with tempfile.TemporaryDirectory(prefix="build-images-lint-") as folder:
        for number, text in enumerate(texts):
            Path(folder, str(number)).write_text(text.text, encoding="utf-8")
        # The linters run without the user's own settings, which must not change the findings.
        done = processes.capture(
            [programs[linter], *_options(linter, dialect), *map(str, range(len(texts)))],
            cwd=Path(folder),
            env={"SHELLCHECK_OPTS": "", "XDG_CONFIG_HOME": folder, "HOME": folder},
            timeout_s=TIMEOUT_S,
            check=False,
        )
    if done.timed_out or done.returncode not in (0, 1):
        tail = (done.stderr or done.stdout).splitlines()[-10:]
        raise StepFailed(f"{linter} ended with status {done.returncode}", tail=tail)
    try:
        entries = json.loads(done.stdout)
    except ValueError as error:
        tail = done.stdout.splitlines()[-10:]
        raise StepFailed(f"{linter} printed no JSON", tail=tail) from error
    results: dict[Text, list[LintFinding]] = {text: [] for text in texts}
    for entry in entries:
        text, finding = texts[int(entry["file"])], _finding(entry)
        if finding.line > text.context:
            results[text].append(finding)
    return results


def _options(linter: str, dialect: str) -> list[str]:
    if linter == HADOLINT:
        ignored = [f"--ignore={rule}" for rule in IGNORED]
        return ["--no-fail", "--disable-ignore-pragma", "--format=json", *ignored]
    excluded = ",".join(rule for rule in IGNORED if rule.startswith("SC"))
    return ["--norc", f"--shell={dialect}", f"--exclude={excluded}", "--format=json"]


def _finding(entry: Mapping[str, object]) -> LintFinding:
    code = entry["code"]
    return LintFinding(
        image="",
        file="",
        line=int(str(entry["line"])),
        level=ERROR if entry["level"] == "error" else WARNING,
        rule=code if isinstance(code, str) else f"SC{code}",
        text=" ".join(str(entry["message"]).split()),
    )
