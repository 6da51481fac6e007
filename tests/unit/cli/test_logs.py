"""`build-images logs`: the log of a build, followed to its end, and the output of a check."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from manifest_samples import document
from test_stages import Site, made_site  # noqa: F401 - a fixture

from builder.build.workspace import ImageLog, announce_run
from builder.cli import main

IMAGE = "hpc-base-1.0-debian13-x86_64"
CHECKS = {
    "oci": [
        {"check": "mpi", "outcome": "failed", "reason": "no ranks", "output": "one\ntwo"},
        {"check": "cuda", "outcome": "passed", "reason": "12.4"},
    ],
    "sif": [{"check": "mpi", "outcome": "passed", "reason": "4 ranks"}],
}


@pytest.fixture(name="folder")
def image_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out" / IMAGE
    folder.mkdir(parents=True)
    (folder / "build.log").write_text("of an earlier build\n")
    return folder


def logs(folder: Path, *words: str) -> int:
    return main(["logs", *words, "--output", str(folder.parent)])


def test_a_log_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "build.log").write_bytes(b"one\n\xff two\nhalf")
    assert logs(folder, IMAGE) == logs(folder, "--follow", str(folder)) == 0  # nothing builds it
    assert capsys.readouterr().out == "one\n\ufffd two\nhalf" * 2


def test_a_running_build_is_followed_to_its_end(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, begun = ImageLog(folder), threading.Event()

    def build() -> None:
        log.begin()
        with log.path.open("ab", buffering=0) as file:
            file.write(b"the first ha")
            begun.set()
            time.sleep(0.5)
            file.write(b"lf\n")
            time.sleep(0.5)
            file.write(b"the end\n")
        log.end()

    builder = threading.Thread(target=build)
    builder.start()
    assert begun.wait(10)
    assert logs(folder, IMAGE) == 0
    assert capsys.readouterr().out == "the first ha"
    assert logs(folder, IMAGE, "-f") == 0
    assert capsys.readouterr().out == "the first half\nthe end\n"
    builder.join()


@pytest.mark.parametrize("has_earlier", [False, True])
def test_an_image_that_has_not_begun_says_what_it_needs(
    site: Site, capsys: pytest.CaptureFixture[str], *, has_earlier: bool
) -> None:
    core, one = "core-1.0-debian13-x86_64", "one-1.0-debian13-x86_64"
    folder, begun, go = site.root / "out" / one, threading.Event(), threading.Event()
    folder.mkdir(parents=True)
    (folder.parent / ".run-killed.json").write_text(json.dumps({core: "not begun"}))
    if has_earlier:
        (folder / "build.log").write_text("of an earlier build\n")
        os.utime(folder / "build.log", (1, 1))

    def meet() -> None:
        site.engine.meet = lambda: None  # once
        begun.set()
        assert go.wait(10)

    site.engine.meet = meet
    stage = "stage core-development-debian13-x86_64"
    state = f"{one}: not begun; it needs {stage}, with {core}; at work: {core}\n"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(site.job)
        assert begun.wait(10)
        assert logs(folder, one) == 0
        assert capsys.readouterr() == ("of an earlier build\n" * has_earlier, state)
        threading.Timer(0.4, go.set).start()
        assert logs(folder, "-f", one) == 0
        followed = capsys.readouterr()
        assert run.result().exit_code == 0
    assert followed.err.startswith(state)
    assert (folder / "build.log").read_text() == followed.out
    assert not [*folder.parent.glob(".run-*")]


def test_a_run_that_ends_before_a_build_begins(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(folder / "build.log", (1, 1))
    with announce_run(folder.parent, {IMAGE: "not begun"}, print):
        [run] = folder.parent.glob(".run-*")
        threading.Timer(0.4, run.unlink).start()
        assert logs(folder, "-f", IMAGE) == 0
    expected = f"{IMAGE}: not begun\n{IMAGE}: the run ended before this build began\n"
    assert capsys.readouterr() == ("", expected)


def test_other_runs_of_the_same_images_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = (
        folder.parent,
        ({IMAGE: "not begun"}, {"other": ""}, {IMAGE: "", "other": "", "a": ""}),
    )
    with contextlib.ExitStack() as held:
        held.enter_context(announce_run(out / "no folder", {}, print))  # as on a full disk
        for states in runs:
            held.enter_context(announce_run(out, states, print))
    process = rf"process {os.getpid()} on {os.uname().nodename} \(since 20[-: \d]+ UTC\)"
    line = f"{process} builds 1 image of this run in {out}, too\n"
    assert re.fullmatch(line * 2, capsys.readouterr().out)


def test_the_log_of_another_builder_stays(folder: Path) -> None:
    first, second = ImageLog(folder), ImageLog(folder)
    (folder / "failed-step.json").touch()
    first.begin()
    assert not (folder / "failed-step.json").exists()
    assert first.path.read_text() == ""
    first.path.write_text("first\n")
    second.begin()
    first.begin()
    assert first.path.read_text() == "first\n"
    first.end()
    second.begin()
    assert first.path.read_text() == ""
    second.end()


def test_what_a_check_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(folder, IMAGE, "--check", "mpi") == 2
    assert "was not verified yet" in capsys.readouterr().err
    (folder / "manifest.json").write_text(json.dumps(document({"checks": CHECKS})))
    assert logs(folder, IMAGE, "--check", "mpi") == 0
    assert capsys.readouterr().out == "oci: failed: no ranks\none\ntwo\nsif: passed: 4 ranks\n"
    assert logs(folder, IMAGE, "--check", "cudda") == 2
    shown = "unknown check: cudda\n  hint: did you mean cuda? checks: cuda, mpi\n"
    assert capsys.readouterr().err == f"build-images: {shown}"


def test_an_unknown_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(folder, IMAGE.replace("base", "bse")) == 2
    error = capsys.readouterr().err
    assert "no such image at this path or in" in error
    assert f"did you mean {IMAGE}?" in error
