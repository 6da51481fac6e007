"""What is told of the progress of a run, as lines."""

from __future__ import annotations

import io

import pytest

from builder.system.terminal import ByteProgress, LiveProgress, Progress

FAILED = "✗ a: failed, why"
OUTCOMES = ["✓ a: verified", FAILED, "= a: unchanged", "✓ a: built", "  a: other"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, [FAILED]),
        (1, ["a: builds", "a line\\x1b", *OUTCOMES]),
        (2, ["a: builds", "a: half", "a line\\x1b", "  of make", *OUTCOMES]),
    ],
)
def test_how_much_is_told(level: int, expected: list[str]) -> None:
    stream = io.StringIO()
    progress = Progress(level=level, stream=stream)
    progress.step("a", "builds")
    progress.detail("a", "half")
    progress.say("a line\x1b")
    progress.echo("of make")
    for outcome in ("verified", "failed", "unchanged", "built", "other"):
        progress.finish("a", outcome, "why" if outcome == "failed" else "")
    lines = stream.getvalue().splitlines()
    assert all(line.startswith("[   0.") for line in lines)
    assert [line.partition(" s] ")[2] for line in lines] == expected


def test_a_table_on_a_terminal_shows_the_last_step_of_each_image(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    progress = LiveProgress()
    with progress.running(["a[b]", "built", "failed", "odd", "new"]):
        progress.step("a[b]", "builds\x1b " + "x" * 80)
        progress.detail("nobody", "is not shown")
        progress.step("new", "builds")
        progress.detail("new", "half")
        progress.detail("new", "all")
        progress.finish("built", "built", "")
        progress.finish("odd", "other", "first\nsecond [red]")
        progress.finish("failed", "failed", "why\n  | its last line")
    said = capsys.readouterr().err.splitlines()
    assert [line.rstrip().removesuffix("0:00:00").rstrip() for line in said] == [
        "  odd: other, first",  # a row is too short for more
        "second [red]",
        "✗ failed: failed, why",
        "  | its last line",
        rf"a[b]   builds\x1b {'x' * 62}",
        "built  ✓ built",
        "failed ✗ failed why",
        "odd    other first",
        "new    builds all",
    ]


def test_each_gibibyte_of_an_archive_is_told() -> None:
    told: list[str] = []
    progress = ByteProgress(told.append, 3 << 30, "packed")
    for _ in range(5):
        progress(1 << 29)
    assert told == ["1.1 of 3.2 GB packed", "2.1 of 3.2 GB packed"]
