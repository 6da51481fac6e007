"""Orders and results as they travel, the project's entry, and the process of an order."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest
from samples import image

from builder.build.run import Run
from builder.build.site_store import add_project, take_project
from builder.compile.spec import compile_spec
from builder.model import LockedSource
from builder.model.errors import (
    BadInput,
    BuildImagesError,
    MissingPrerequisite,
    StepFailed,
    TemporaryFailure,
    UnfitMachine,
)
from builder.sources.site_store import SiteStore
from builder.sources.site_store.places import FolderStore
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.cluster import task
from builder.verify.cluster.orders import INTERRUPTED, Failure, Order, OrderResult, own_program

ORDER = Order(
    kind="stage",
    image="one-1.0-debian13-x86_64",
    flavour="runtime",
    cpu="generic",
    store="/nfs/cache",
    project="sha256:" + "1" * 64,
    program="sha256:" + "2" * 64,
    engine="buildah",
    formats=("oci", "sif"),
    epoch=0,
    number=1,
    packed="",
    native_tools=True,
    offline=False,
    max_index_age=None,
)
INTERRUPTION = Failure(message=INTERRUPTED, exit_code=4, cause="machine")


def test_orders_and_results_are_the_same_after_their_journey() -> None:
    assert Order.read(ORDER.text()) == ORDER
    failure = Failure(message="exit 7", hint="look", tail=("a", "b"), exit_code=4)
    for result in (OrderResult(entries={"base-1": "sha256:2"}), OrderResult(failure=failure)):
        assert OrderResult.read(result.text()) == result


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            StepFailed("exit status 7", tail=["a", "b"], hint="look"),
            Failure(message="exit status 7", tail=("a", "b"), hint="look"),
        ),
        (
            MissingPrerequisite("no space left", hint="look"),
            Failure(message="no space left", hint="look", exit_code=4),
        ),
        (
            UnfitMachine("the disk is full"),
            Failure(message="the disk is full", exit_code=4, cause="machine"),
        ),
        (
            TemporaryFailure("the store does not answer"),
            Failure(message="the store does not answer", exit_code=4, cause="store"),
        ),
        (BadInput("2 faults"), Failure(message="2 faults", exit_code=2)),
    ],
)
def test_an_error_keeps_what_it_tells(error: BuildImagesError, failure: Failure) -> None:
    assert Failure.of(error) == failure
    assert failure.is_of_machine is isinstance(error, MissingPrerequisite)


def test_the_projects_entry_has_what_images_are_declared_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for name in ("recipes/a.yaml", "base-images/b.yaml", "tests/images/run-checks", "files/f.sh"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "matrix.yaml").write_text("inherit: false\n")
    (project / "files/f.sh").chmod(0o755)
    for name in ("out/image.sif", "tests/images/__pycache__/x.pyc", "README.md"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("not needed")
    (tmp_path / "cache").mkdir()
    (tmp_path / "site.yaml").write_text("shared: /opt/x\n")
    monkeypatch.setenv("BUILD_IMAGES_SITE", str(tmp_path / "site.yaml"))
    store = SiteStore(FolderStore(tmp_path / "cache"), tmp_path)
    (project / "archives").mkdir()
    (project / "archives/sdk.tar").write_text("an archive of a licensee")
    urls = ("local:archives/sdk.tar", "https://example.org/a.tar")
    sources = tuple(LockedSource(url=url, file="f", sha256="0" * 64, size=1) for url in urls)
    spec = compile_spec(image(tmp_path / "other"), run_checks="")
    digest = add_project(store, project, [dataclasses.replace(spec, sources=sources)])
    other = add_project(store, project)
    assert other != digest  # without the archive
    assert add_project(store, project) == other  # workers have it already
    (tmp_path / "taken").mkdir()
    assert store.take(digest, tmp_path / "taken")
    taken = [path for path in (tmp_path / "taken").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "taken")) for path in taken) == [
        *("archives/sdk.tar", "base-images/b.yaml", "files/f.sh", "matrix.yaml", "recipes/a.yaml"),
        *("site.yaml", "tests/images/run-checks"),
    ]
    assert os.access(tmp_path / "taken/files/f.sh", os.X_OK)
    assert (tmp_path / "taken/site.yaml").read_text() == "shared: /opt/x\n"


def test_a_store_that_takes_no_project_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "tests/images").mkdir(parents=True)
    store = SiteStore(FolderStore(tmp_path / "missing"), tmp_path)
    with pytest.raises(MissingPrerequisite, match="could not be added to the site's store"):
        add_project(store, tmp_path)


@pytest.mark.parametrize(
    ("problem", "kind"), [(errno.EIO, TemporaryFailure), (errno.EACCES, MissingPrerequisite)]
)
def test_a_project_that_the_store_does_not_give(
    problem: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(problem, "no answer")

    monkeypatch.setattr(FolderStore, "manifest", fail)
    with pytest.raises(kind, match=r"did not give the project: .*no answer") as caught:
        take_project(str(tmp_path), ORDER.project, tmp_path / "projects/1", print)
    assert type(caught.value) is kind


def test_a_project_that_is_there_counts_as_used(tmp_path: Path) -> None:
    os.utime(tmp_path, (0, 0))
    take_project("/no/store", ORDER.project, tmp_path, print)
    assert tmp_path.stat().st_mtime > 0


@pytest.mark.parametrize("program", ["", "its own"])
def test_a_machine_that_cannot_do_its_work_is_unfit(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another version, or without what the examination before a task asks for."""

    def lacking(*_: object, **__: object) -> Run:
        raise MissingPrerequisite("this machine lacks 1 thing", hint="look")

    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    monkeypatch.setattr(task, "prepare", lacking)
    for name in ("take_project", "load_images", "compile_images"):
        monkeypatch.setattr(task, name, lambda *_: [])
    order = dataclasses.replace(ORDER, program=own_program() if program else "sha256:0")
    problem = "lacks 1 thing" if program else "another version"
    with pytest.raises(UnfitMachine, match=problem) as caught:
        task.carry_out(order, Progress(), [])
    assert caught.value.hint == ("look" if program else "")


# ---- The process of an order ----


@pytest.fixture(name="program")
def order_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the place of Python, which gets the words `-m MODULE ORDER RESULT PARENT`."""
    program = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def write(program: Path, *lines: str) -> None:
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)


def test_the_result_of_an_order_is_what_its_process_wrote(program: Path) -> None:
    lines = ['echo "[  12.5 s] one: building"', "echo noise", 'cat "$3" > "$4"']
    lines += ['case "$3" in */build-images-order-*) ;; *) exit 8;; esac']
    write(program, *lines, f'test "$1 $2 $5" = "-m builder.verify.cluster.task {os.getpid()}"')
    told: list[str] = []
    assert task.run_order("the order", lambda: True, told.append) == "the order"
    assert told == ["one: building"]


def test_a_machine_is_examined_once_until_an_order_fails(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders find in a file what an earlier one wrote there."""
    monkeypatch.setattr(task, "_examined", [])
    seen = tmp_path / "seen"
    look = f'machine="$(dirname "$3")/machine"; cat "$machine" >> {seen} || echo new > "$machine"'

    def order(last: str = "") -> list[str]:
        write(program, f"echo - >> {seen}", look, 'echo > "$4"', last)
        task.run_order("", lambda: True, lambda _: None)
        return seen.read_text().split()

    assert order() == ["-"]
    assert order() == ["-", "-", "new"]
    assert order('rm "$machine"')[3:] == ["-", "new"]  # as after a failure
    assert order()[5:] == ["-"]
    monkeypatch.setattr(task, "_FRESH_S", 0.0)
    assert order()[6:] == ["-"]


def test_a_process_that_ends_without_a_result_is_a_failure(program: Path) -> None:
    write(program, "echo Traceback", "exit 3")
    result = OrderResult.read(task.run_order("the order", lambda: True, lambda _: None))
    failure = Failure(
        message="the order: exit status 3", tail=("Traceback",), exit_code=4, cause="machine"
    )
    assert result == OrderResult(failure=failure, seconds=0)


def test_an_order_that_is_not_wanted_any_more_is_ended(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_ENDING_S", 0.1)
    write(program, f"echo $$ > {tmp_path}/pid", "exec sleep 60")
    text = task.run_order("the order", lambda: not (tmp_path / "pid").exists(), lambda _: None)
    assert OrderResult.read(text).failure == INTERRUPTION
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_an_order_that_hangs_is_ended(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_LIMIT_S", 1.0)
    monkeypatch.setattr(task, "_ENDING_S", 0.1)
    write(program, f"echo $$ > {tmp_path}/pid", "exec sleep 60")
    failure = OrderResult.read(task.run_order("the order", lambda: True, lambda _: None)).failure
    assert failure == Failure(
        message="the order: no result after 1 s", exit_code=4, cause="machine"
    )
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_an_order_ends_when_its_worker_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: SimpleQueue[OrderResult | BaseException | None] = SimpleQueue()
    assert task._next(events, os.getppid() + 1, tmp_path / "no") is None
    monkeypatch.setattr(task, "_POLL_S", 0.01)
    events.put(OrderResult(entry="sha256:1"))
    unwanted = tmp_path / "no"
    assert task._next(events, os.getppid(), unwanted) == OrderResult(entry="sha256:1")
    unwanted.touch()
    assert task._next(events, os.getppid(), unwanted) is None


def test_a_worker_tells_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    monkeypatch.setenv("BUILD_IMAGES_POOL", "x86")
    facts = task.describe()
    done = Processes().capture(["uname", "-nm"])
    assert done.stdout.split() == [facts.machine, facts.arch]
    assert facts.pool == "x86"
    assert facts.program.startswith("sha256:")
    assert bool(facts.engine) is bool(shutil.which("buildah"))


def test_an_order_that_is_not_wanted_ends_what_it_started_itself(
    program: Path, tmp_path: Path
) -> None:
    """No signal comes: the engine would fail before its order knew why, and nobody cleaned up."""
    ended = tmp_path / "ended"
    lines = [
        "trap 'echo signalled > " + str(ended) + "; exit 1' TERM",
        f"touch {tmp_path}/begun",
        'until test -e "$(dirname "$3")/unwanted"; do sleep 0.05; done',
        f"sleep 1; echo by itself > {ended}; exit 130",
    ]
    write(program, *lines)
    text = task.run_order("the order", lambda: not (tmp_path / "begun").exists(), lambda _: None)
    assert OrderResult.read(text).failure == INTERRUPTION
    assert ended.read_text() == "by itself\n"
