"""Lint over shipped specs: other parsers, the linters, what is kept, what the docs say."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from golden_cells import SHIPPED
from lint_samples import FILES, one_planned, sample_spec
from samples import GOLDEN, ROOT, block, image, recipe, shipped_images

from builder.compile.lint import lint, linters
from builder.compile.lint.findings import RULES, LintFinding, LintReport
from builder.compile.lint.linters import IGNORED
from builder.compile.lint.reading import read
from builder.compile.spec import compile_spec
from builder.model import PlannedImage, Spec
from builder.model.errors import Interrupted, StepFailed
from builder.system.process import Processes

__all__ = ["one_planned", "sample_spec"]  # fixtures

NO_PROGRAMS = "/nonexistent"
RUN_CHECKS = (ROOT / "tests/images/run-checks").read_text()


def texts(spec: Spec) -> list[linters.Text]:
    return [text for text, _, _ in linters.texts_of(read(spec, locked=False))]


# Specs that are shipped


def compiled(images: Iterable[PlannedImage]) -> list[Spec]:
    return [compile_spec(planned, run_checks=RUN_CHECKS) for planned in images]


@pytest.mark.campaign
def test_shipped_specs_are_clean() -> None:
    """By hadolint and ShellCheck too, where this machine has them.

    One of each recipe and of each base, and the golden ones; all in `make test-long`.
    """
    images = shipped_images()
    if "BUILD_IMAGES_LONG" not in os.environ:
        by_recipe = {planned.cell.recipe: planned for planned in images}
        identifiers = {planned.identifier for planned in by_recipe.values()}
        by_base = {one.cell.base: one for one in images if one.identifier not in identifiers}
        identifiers |= {planned.identifier for planned in by_base.values()} | {*SHIPPED}
        images = tuple(planned for planned in images if planned.identifier in identifiers)
    specs = compiled(images)
    report = run(specs)
    assert [str(finding) for finding in report.findings] == []
    assert report.specs == len(specs)


def test_the_recipe_is_named_by_the_finding(tmp_path: Path) -> None:
    blocks = (block("shell", commands=["curl http://example.org/x.tar"]),)
    one = image(tmp_path, recipes=[recipe(development=blocks)])
    report = lint_without_programs([compile_spec(one, run_checks=RUN_CHECKS)])
    assert [str(finding) for finding in report.findings] == [
        f"core-1.0-debian13-x86_64/{place}: error unverified-download: "
        "http://example.org/x.tar is downloaded without a checksum"
        for place in ("Dockerfile:9", "Singularity.def:17")
    ]


# Two other parsers


def test_buildkit_reads_the_same_instructions() -> None:
    dockerfile = pytest.importorskip("dockerfile", reason="BuildKit's parser has no wheel here")
    for file in sorted(GOLDEN.glob("*/*/Dockerfile")):
        from builder.compile.lint.reading import read_dockerfile  # noqa: PLC0415

        text = file.read_text()
        theirs = [
            (one.cmd.upper(), one.start_line, " ".join(one.original.split()))
            for one in dockerfile.parse_string(text)
        ]
        ours = [
            (one.name, one.line, " ".join(f"{one.name} {one.value}".split()))
            for one in read_dockerfile(text).parts
        ]
        assert ours == theirs


# The programs


def lint_without_programs(specs: Sequence[Spec], cache: Path | None = None) -> LintReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysconfig, "get_path", lambda _name: NO_PROGRAMS)
        return lint(specs, processes=Processes(), search_path=NO_PROGRAMS, cache=cache, jobs=1)


def needs_linters() -> None:
    if missing := [name for name in linters.LINTERS if name not in linters.find(NO_PROGRAMS)]:
        pytest.skip(f"missing on this machine: {', '.join(missing)}")


def run(specs: Sequence[Spec], cache: Path | None = None, processes: Any = None) -> LintReport:
    return lint(
        specs,
        processes=processes or Processes(),
        search_path=NO_PROGRAMS,
        cache=cache,
        jobs=2,
    )


def test_a_missing_linter_is_said(sample: Callable[..., Spec]) -> None:
    report = lint_without_programs([sample(run="chmod 777 /x")])
    assert report.missing == ("hadolint", "shellcheck")
    assert {finding.rule for finding in report.findings} == {"open-to-all"}
    assert all("hadolint" not in name for name in report.ran)


def test_what_a_missing_linter_did_not_see_is_looked_at_when_it_is_there(
    sample: Callable[..., Spec], tmp_path: Path
) -> None:
    needs_linters()
    spec = sample(run="cp $(ls *.c | head -n 1) /src/x")
    assert lint_without_programs([spec], tmp_path).findings == ()
    report = run([spec], tmp_path)
    assert report.cached == 0
    assert "SC2012" in {finding.rule for finding in report.findings}


def test_hadolint_and_shellcheck_find_their_lines(sample: Callable[..., Spec]) -> None:
    needs_linters()
    check = "#!/bin/sh\ntrue\n[[ -e /x ]]\n"
    spec = sample(
        run="ls && ls *.c && true",
        changes={"dockerfile": {"ENV A=1": "WORKDIR here\nENV A=1"}},
        files={**FILES, "files/checks/10-x": check},
    )
    found = [one for one in run([spec]).findings if re.match(r"DL|SC", one.rule)]
    lines = {(one.file, one.rule): one.line for one in found}
    docker, definition = spec.dockerfile.splitlines(), spec.singularity.splitlines()
    assert "WORKDIR here" in docker[lines["Dockerfile", "DL3000"] - 1]
    assert "RUN ls" in docker[lines["Dockerfile", "SC2035"] - 1]
    assert "ls *.c" in definition[lines["Singularity.def", "SC2035"] - 1]
    assert lines["files/checks/10-x", "SC3010"] == 3


def test_a_command_is_linted_alone_after_the_variables_of_its_stage(
    sample: Callable[..., Spec],
) -> None:
    """A variable is known to it, and a fault in an instruction before it is found once."""
    needs_linters()
    spec = sample(
        run='ls && \\\n    echo "$B"',
        changes={"dockerfile": {"RUN ls": "ENV B=1 C=$B\nRUN ls"}},
    )
    runs = [text for text in texts(spec) if text.linter == "hadolint" and "RUN ls" in text.text]
    assert all(text.text.startswith("FROM scratch\n") for text in runs)
    assert all(text.text.count("RUN ") == 1 for text in runs)
    reading = read(spec)
    lines = spec.dockerfile.splitlines()
    for text, file, before in linters.texts_of(reading):
        if text.linter == "hadolint":
            shown = text.text.splitlines()
            own = [(before + number, line) for number, line in enumerate(shown, 1) if line.strip()]
            assert file == "Dockerfile"
            assert all(lines[at - 1] == line for at, line in own[text.context :])
    found = [one for one in run([spec]).findings if re.match("DL|SC", one.rule)]
    assert [(one.rule, lines[one.line - 1]) for one in found] == [("DL3044", "ENV B=1 C=$B")]


def test_a_dockerfile_without_a_stage_has_no_text_for_hadolint(sample: Callable[..., Spec]) -> None:
    spec = dataclasses.replace(sample(), dockerfile="RUN ls\n")
    assert {text.linter for text in texts(spec)} == {"shellcheck"}


def test_identical_texts_are_given_to_a_linter_once() -> None:
    specs = compiled(shipped_images()[::8])
    scripts = [text for spec in specs for text in texts(spec) if text.linter == "shellcheck"]
    assert len(set(scripts)) < len(scripts) / 3


class Counts(Processes):
    """Processes that count the runs of linters."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def capture(self, argv: Any, **rest: Any) -> Any:
        self.started += [] if "--version" in argv else [Path(argv[0]).name]
        return super().capture(argv, **rest)


def test_unchanged_specs_start_nothing(sample: Callable[..., Spec], tmp_path: Path) -> None:
    needs_linters()
    specs = [sample(run="chmod 777 /a; ls ~/$1"), sample(run="true")]
    first, second, third = Counts(), Counts(), Counts()
    report = run(specs, tmp_path, first)
    assert report.cached == 0
    assert {"hadolint", "shellcheck"} == set(first.started)
    again = run(specs, tmp_path, second)
    assert (again.cached, second.started) == (2, [])
    assert (again.findings, again.ran) == (report.findings, report.ran)
    assert report.findings
    changed = run([*specs, sample(run="ls")], tmp_path, third)
    assert changed.cached == 2
    assert third.started


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 5}', '{"KEY": [{"file": 1}]}', b"\xff"])
def test_a_cache_that_is_broken_is_no_cache(
    text: str | bytes, sample: Callable[..., Spec], tmp_path: Path
) -> None:
    specs = [sample(run="chmod 777 /a")]
    expected = lint_without_programs(specs, tmp_path).findings
    file = tmp_path / "lint.json"
    key = next(iter(json.loads(file.read_text())))
    raw = text if isinstance(text, bytes) else text.replace("KEY", key).encode()
    file.write_bytes(raw)
    report = lint_without_programs(specs, tmp_path)
    assert (report.cached, report.findings) == (0, expected)
    assert lint_without_programs(specs, tmp_path).cached == 1


def test_the_cache_keeps_what_others_wrote(sample: Callable[..., Spec], tmp_path: Path) -> None:
    one, other = sample(run="ls"), sample(run="true")
    lint_without_programs([one], tmp_path)
    lint_without_programs([other], tmp_path)
    assert lint_without_programs([one, other], tmp_path).cached == 2
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["lint.json"]


def test_a_cache_that_cannot_be_written_is_no_fault(
    sample: Callable[..., Spec], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert lint_without_programs([sample()], tmp_path / "file" / "below").findings == ()


def test_the_lock_is_part_of_the_key(sample: Callable[..., Spec], tmp_path: Path) -> None:
    source = {"localhost/build-images/debian13:1 AS runtime": "docker.io/debian:13 AS runtime"}
    spec = sample(changes={"dockerfile": source})
    options: dict[str, Any] = {"processes": Processes(), "cache": tmp_path, "jobs": 1}
    for locked in (False, True, False):
        report = lint([spec], search_path=NO_PROGRAMS, locked=locked, **options)
        assert ("unpinned-base" in {one.rule for one in report.findings}) is locked


def fake(folder: Path, text: str) -> dict[str, str]:
    path = folder / "hadolint"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"hadolint": str(path)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo boom >&2; exit 3", "hadolint ended with status 3(.|\n)*boom"),
        ("echo hello", "hadolint printed no JSON(.|\n)*hello"),
    ],
)
def test_a_linter_that_fails_is_an_error(
    text: str, message: str, sample: Callable[..., Spec], tmp_path: Path
) -> None:
    with pytest.raises(StepFailed, match=message):
        linters.linter_findings(texts(sample()), fake(tmp_path, text), Processes(), 2)


def test_a_stopped_run_starts_no_linter(sample: Callable[..., Spec], tmp_path: Path) -> None:
    processes = Processes()
    processes.stop()
    with pytest.raises(Interrupted):
        linters.linter_findings(texts(sample()), fake(tmp_path, "echo []"), processes, 2)


def test_ctrl_c_ends_the_linters(
    sample: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(linters, "_run", interrupted)
    processes = Processes()
    with pytest.raises(KeyboardInterrupt):
        linters.linter_findings(texts(sample()), fake(tmp_path, "echo []"), processes, 2)
    assert processes.stopping


def test_settings_of_the_user_do_not_decide(
    sample: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_linters()
    (tmp_path / "hadolint.yaml").write_text("ignored: [DL3004]\n")
    (tmp_path / ".hadolint.yaml").write_text("ignored: [DL3004]\n")
    (tmp_path / ".shellcheckrc").write_text("disable=all\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELLCHECK_OPTS", "--exclude=SC2070")
    monkeypatch.chdir(tmp_path)
    found = {one.rule for one in run([sample(run="sudo ls && [ -n $1 ]")]).findings}
    assert {"DL3004", "SC2070"} <= found


def test_a_script_is_read_as_its_shell(sample: Callable[..., Spec]) -> None:
    scripts = {"#!/bin/bash": "bash", "#!/usr/bin/env bash": "bash", "#!/bin/sh -e": "sh"}
    files = {f"files/{n}": f"{line}\ntrue\n" for n, line in enumerate(scripts)}
    files["files/x.py"] = "#!/usr/bin/env python3\n"
    reading = read(sample(files=files), locked=False)
    dialects = {file: text.dialect for text, file, _ in linters.texts_of(reading)}
    assert [dialects[f"files/{n}"] for n in range(3)] == list(scripts.values())
    assert "files/x.py" not in dialects
    section = "%test -c /bin/bash\n    [[ -e /x ]]\n"
    [text] = [text for text in texts(sample(definition=section)) if "[[" in text.text]
    assert text.dialect == "bash"


# What the documentation says


def table(title: str) -> dict[str, list[str]]:
    text = (ROOT / "docs" / "lint.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text.partition(f"## {title}\n")[2], re.M)
    below = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return {name: cells.split(" | ") for name, cells in rows if f"| `{name}` |" in below}


def test_the_rules_are_documented() -> None:
    documented = {
        name: [level, requirement[0].upper() + requirement[1:]]
        for name, (level, requirement, _reason) in table("Our own rules").items()
    }
    assert documented == {rule.name: [rule.level, rule.requirement] for rule in RULES}


def test_ignored_rules_are_documented_with_their_reasons() -> None:
    assert {name: [reason] for name, reason in IGNORED.items()} == table("Ignored rules of others")
    assert all(len(reason) > 20 for reason in IGNORED.values())


def test_findings_are_sorted_and_told_by_line() -> None:
    make = {"file": "Dockerfile", "level": "error", "rule": "secret", "text": "x"}
    late, early = LintFinding(image="a", line=12, **make), LintFinding(image="a", line=2, **make)
    assert sorted([late, early]) == [early, late]
    assert str(early) == "a/Dockerfile:2: error secret: x"
