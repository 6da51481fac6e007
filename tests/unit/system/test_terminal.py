"""What is told of the progress of a run, as lines."""

from __future__ import annotations

import io
import threading
import time

import pytest

from builder.system.terminal import ByteProgress, LiveProgress, Progress, duration

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
        rf"a[b]   builds\x1b {'x' * 74}",  # as wide as the terminal
        "built  ✓ built",
        "failed ✗ failed why",
        "odd    other first",
        "new    builds all",
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "builds STEP 2/3: RUN make"),
        (
            "[ 45%] Building CXX object a.o\n",
            "builds STEP 2/3: RUN make | 45 % | [ 45%] Building CXX",
        ),
        ("[120/480] cc a.c", "builds STEP 2/3: RUN make | 25 % | [120/480] cc a.c"),
        ("checking for cc", "builds STEP 2/3: RUN make | checking for cc"),
        (f"[{'1' * 5000}/2]", f"builds STEP 2/3: RUN make | [{'1' * 100}"),
        ("a b.c 400%", "builds STEP 2/3: RUN make | a b.c 400%"),
    ],
)
def test_a_long_step_is_told_of_from_time_to_time(line: str, told: str) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, every_s=0.1)
    with progress.running(["a", "b"]):
        progress.step("a", "builds")
        progress.detail("a", "STEP 2/3: RUN make")
        progress.output("a", line)
        progress.output("a", "\n")  # an empty line tells nothing
        progress.output("b", "has no step")
        deadline = time.monotonic() + 10
        while "still" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        progress.pause("a")
        before = stream.getvalue()
        time.sleep(0.15)
    first, still, *_ = stream.getvalue().splitlines()
    assert stream.getvalue() == before, "a paused step is told of"
    assert first.endswith("a: builds")
    assert f"a: still, for 0 s: {told}" in still


def test_progress_of_another_machine_is_shown_beside_its_image() -> None:
    """The lines that it prints about a long step are not printed again."""
    elsewhere, stream = io.StringIO(), io.StringIO()
    worker = Progress(stream=elsewhere, every_s=0)
    worker.step("a", "builds")
    worker.output("a", "[ 45%] Building")
    worker._tick()
    progress = Progress(stream=stream, every_s=0)
    progress.step("a", "image on n1")
    shown = list[str]()
    for line in (*elsewhere.getvalue().splitlines(), "] a: packing", "] takes a base"):
        progress.relay("a", "n1", line.partition("] ")[2])
        shown.append(progress._now["a"].summary(99))
    progress.relay("", "n2", "a: packing")  # of an attempt that was given up
    assert shown == [
        "image on n1 builds",
        "image on n1 builds | 45 % | [ 45%] Building",
        "image on n1 packing",
        "image on n1 takes a base",
    ]
    printed = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
    assert printed == [
        *("a: image on n1", "n1: a: builds", "n1: a: packing", "n1: takes a base"),
        "n2: a: packing",
    ]


def test_a_row_has_the_last_line_of_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    progress = LiveProgress()
    with progress.running(["a"]):
        progress.step("a", "builds")
        progress.output("a", "[ 45%] Building")
        time.sleep(0.7)
    assert "builds | 45 % | [ 45%] Building" in capsys.readouterr().err


def test_a_row_of_an_image_that_ends_meanwhile_shows_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    progress = LiveProgress()
    ender = threading.Thread(target=progress.finish, args=("a", "built", ""))

    def summary(_status: object, _most: int) -> str:
        ender.start()
        ender.join(0.2)
        return "builds"

    with progress.running(["a"]):
        monkeypatch.setattr("builder.system.terminal._ImageStatus.summary", summary)
        progress._tick()
        ender.join()
    assert "✓ built" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (190, "3 min 10 s"), (7_500, "2 h 5 min")]
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_each_gibibyte_of_an_archive_is_told() -> None:
    told: list[str] = []
    progress = ByteProgress(told.append, 3 << 30, "packed")
    for _ in range(5):
        progress(1 << 29)
    assert told == ["1.1 of 3.2 GB packed", "2.1 of 3.2 GB packed"]
