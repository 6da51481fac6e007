"""`build-images shell`: what is entered, and what cannot be; tests/engines enters it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document

from builder.build.workspace import note_failure
from builder.cli import main
from builder.model.errors import BuildStep

IMAGE = "hpc-base-1.0-debian13-x86_64"
STEP = BuildStep(
    instruction="RUN make",
    layer="0123456789a",
    stage="runtime",
    where="recipes/a.yaml:7, runtime[0].shell",
    engine="buildah",
    stages={"core-development": "stage:1"},
)
Entered = list[tuple[Any, ...]]


@pytest.fixture(name="folder")
def image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    folder = tmp_path / "out" / IMAGE
    folder.mkdir(parents=True)
    (folder / "build.log").touch()
    return folder


@pytest.fixture(name="entered")
def entered_places(monkeypatch: pytest.MonkeyPatch) -> Entered:
    """What is entered with which command; a shell ends with 7."""
    places: Entered = []

    def stage(_tools: object, layer: str, argv: Sequence[str]) -> int:
        places.append((layer, [*argv]))
        return 7

    def image(folder: Path, _tools: object, argv: Sequence[str], *, runner: str) -> int:
        places.append((folder.name, [*argv], runner))
        return 7

    monkeypatch.setattr("builder.verify.user_commands.shell_in_stage", stage)
    monkeypatch.setattr("builder.verify.user_commands.shell_in_image", image)
    return places


def shell(folder: Path, *words: str) -> int:
    return main(["shell", "--output", str(folder.parent), IMAGE, *words])


def test_an_image_or_one_of_its_stages(folder: Path, entered: Entered) -> None:
    manifest = document({"image": IMAGE, "content_key": "c" * 64})
    manifest["inputs"] = {"stages": {"runtime": "b" * 64, "core-development": "a" * 64}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    own = "localhost/build-images/"
    assert shell(folder, "--runner", "apptainer") == 7
    assert shell(folder, "--stage", "core-development", "--", "ls", "-l", "--", "/opt") == 7
    assert shell(folder, "--stage", "runtime", "--") == 7
    assert entered == [
        (IMAGE, [], "apptainer"),
        (f"{own}stage:{'a' * 32}", ["ls", "-l", "--", "/opt"]),
        (f"{own}{IMAGE}:{'c' * 12}", []),
    ]


def test_the_stage_that_failed_comes_first(
    folder: Path, entered: Entered, capsys: pytest.CaptureFixture[str]
) -> None:
    note_failure(folder, STEP)
    assert shell(folder) == shell(folder, "--stage", "core-development") == 7
    assert entered == [("0123456789a", []), ("stage:1", [])]
    assert capsys.readouterr().err == (
        f"runtime, before the step that failed:\n  RUN make\n  {STEP.where}\n"
    )


@pytest.mark.parametrize(
    ("step", "words", "code", "text"),
    [
        (None, (), 2, "not a finished image: no manifest.json"),
        (STEP, ("--stage", "core"), 2, "unknown stage: core\n  hint: stages: core-development, "),
        (BuildStep(instruction="RUN a", stage="x", engine="docker"), (), 4, "docker built the st"),
    ],
)
def test_what_cannot_be_entered(
    step: BuildStep | None,
    words: Sequence[str],
    code: int,
    text: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if step:
        note_failure(folder, step)
    assert shell(folder, *words) == code
    assert text in capsys.readouterr().err
