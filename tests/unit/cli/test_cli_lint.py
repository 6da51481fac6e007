"""`build-images lint` as a user meets it."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from samples import ROOT

from builder.cli import lint as linting
from builder.cli import main
from builder.compile.lint.findings import LintFinding, LintReport

ONE = "--image=hpc-base-*-debian13-openmpi5.0-ppc64le"
BAD = "  - shell: {commands: ['curl http://example.org/x.tar']}\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, and no linters: those are tested in test_lint.py."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))


@pytest.fixture(name="project")
def bad_project(tmp_path: Path) -> Path:
    """The shipped project, with a fault in `hpc-base`."""
    root = tmp_path / "project"
    shutil.copytree(ROOT, root, ignore=lambda folder, names: _others(Path(folder), names))
    file = root / "recipes" / "hpc-base.yaml"
    text = file.read_text()
    assert "\ndevelopment:\n" in text
    file.write_text(text.replace("\ndevelopment:\n", f"\ndevelopment:\n{BAD}"))
    return root


def _others(folder: Path, names: list[str]) -> set[str]:
    """What is no input of a project."""
    inputs = {"matrix.yaml", "recipes", "base-images", "tests", "facts", "site.yaml", "lock.yaml"}
    if folder == ROOT:
        return set(names) - inputs
    return set(names) - {"images"} if folder == ROOT / "tests" else set()


def test_clean_specs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", f"--project={ROOT}", ONE]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "0 errors, 0 warnings in 1 spec linted"
    assert out[1].startswith("linters: our own rules, dockerfile-parse ")
    assert out[2].startswith("missing, not run: hadolint and shellcheck")
    assert main(["lint", f"--project={ROOT}", ONE]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0] == "0 errors, 0 warnings in 1 spec linted; 1 unchanged since an earlier run"
    assert main(["lint", f"--project={ROOT}", ONE, "--no-cache"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == out[0]


def test_findings_are_told_with_their_places(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", f"--project={project}", ONE]) == 1
    out = capsys.readouterr().out.splitlines()
    begin = "hpc-base-1.0-debian13-openmpi5.0-ppc64le/"
    assert [line.partition(":")[0] for line in out if line.startswith(begin)] == [
        f"{begin}Dockerfile",
        f"{begin}Singularity.def",
    ]
    assert (
        "error unverified-download: http://example.org/x.tar is downloaded without a checksum"
        in out[0]
    )
    assert out[1] == "    from recipes/hpc-base.yaml:11, development[0].shell"
    assert out[2] == "    use https, or check the file with sha256sum -c"
    assert out[5] == "2 errors, 0 warnings in 1 spec linted"


def test_findings_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", f"--project={project}", ONE, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    first, _ = found.pop("findings")
    linters = found.pop("linters")
    assert [name.partition(" ")[0] for name in linters] == ["dockerfile-parse", "spython"]
    counts = {"specs": 1, "cached": 0, "errors": 2, "warnings": 0}
    assert found == {**counts, "missing": ["hadolint", "shellcheck"]}
    assert first.pop("line") > 1
    assert first == {
        "image": "hpc-base-1.0-debian13-openmpi5.0-ppc64le",
        "file": "Dockerfile",
        "level": "error",
        "rule": "unverified-download",
        "text": "http://example.org/x.tar is downloaded without a checksum",
        "hint": "use https, or check the file with sha256sum -c",
        "origin": "recipes/hpc-base.yaml:11, development[0].shell",
    }


def test_warnings_alone_are_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = LintFinding(image="a", file="Dockerfile", line=3, level="warning", rule="r", text="t")
    report = LintReport(findings=(finding,), ran=("hadolint 2",), missing=(), specs=1)
    monkeypatch.setattr(linting, "lint", lambda *_specs, **_options: report)
    assert main(["lint", f"--project={ROOT}", ONE]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a/Dockerfile:3: warning r: t",
        "0 errors, 1 warning in 1 spec linted",
        "linters: our own rules, hadolint 2",
    ]


def test_locked_references_make_pins_a_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def seen(*_specs: object, locked: bool, **_options: object) -> LintReport:
        given.append(locked)
        return LintReport(findings=(), ran=(), missing=(), specs=0)

    monkeypatch.setattr(linting, "lint", seen)
    linting.look(tmp_path, [])
    (tmp_path / "lock.yaml").write_text("sources: []\n")
    linting.look(tmp_path, [])
    (tmp_path / "lock.yaml").write_text("references:\n  - reference: docker.io/debian:13\n")
    linting.look(tmp_path, [])
    assert given == [False, False, True]


HTTP = """\
recipe: core
version: "1.0"
about: a download that anybody can change
development:
  - shell: {commands: ["wget http://example.org/lib-1.0.tar.gz"]}
"""


@pytest.fixture(name="careless")
def careless_project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    shutil.copytree(ROOT / "tests/data/good", root)
    (root / "recipes/core.yaml").write_text(HTTP)
    (root / "recipes/app.yaml").unlink()
    shutil.copy(ROOT / "tests/images/run-checks", root / "tests/images")
    (root / "matrix.yaml").write_text(
        "axes: {arch: [x86_64], base: [debian13], cuda: [none], mpi: [none]}\ninherit: false\n"
    )
    return root


@pytest.mark.parametrize("command", [["spec"], []])
def test_what_lint_calls_an_error_is_refused(
    careless: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = careless / "out"
    assert main([*command, f"--project={careless}", "--all", f"--output={out}"]) == 1
    said = capsys.readouterr().err
    assert "http://example.org/lib-1.0.tar.gz" in said
    hint = "docs/lint.md explains each rule; --no-lint continues without these checks"
    assert f"found by lint in the specs; see above\n  hint: {hint}\n" in said
    assert not (out / "core-1.0-debian13-x86_64/manifest.json").exists()


def test_no_lint_goes_on_nevertheless(careless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = careless / "out"
    assert main(["spec", f"--project={careless}", "--all", f"--output={out}", "--no-lint"]) == 0
    assert "lint" not in capsys.readouterr().err
