"""An order that a worker carries out, on a machine whose engine only keeps names of images."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import ROOT
from test_check_outcomes import done, env
from test_image_job import results_of_commands  # noqa: F401 - a fixture
from test_proving import HOST
from test_stages import Site, made_site  # noqa: F401 - a fixture

from builder.artifacts.manifests import read_manifest
from builder.build.engines import DockerfileBuild, Tools
from builder.build.planning import compile_images, load_images
from builder.build.run import BuildSettings, Run
from builder.build.site_store import add_project
from builder.host.doctor import Diagnosis
from builder.host.records import Host, HostGpu, HostGpus
from builder.model import PlannedImage, Selection
from builder.model.errors import Interrupted, MissingPrerequisite, StepFailed
from builder.sources.site_store import SiteStore
from builder.sources.site_store.places import FolderStore
from builder.system.terminal import Progress
from builder.verify import shared_images
from builder.verify.cluster import task
from builder.verify.cluster.orders import Failure, Order, OrderResult, own_program
from builder.verify.preparation import ExaminedMachine

IMAGE, ARCHIVE = "one-1.0-debian13-x86_64", b"an archive"
MATRIX = "axes: {arch: [x86_64], base: [debian13], cuda: [none], mpi: [none]}\ninherit: false\n"
CORE = """\
recipe: core
version: "1.0"
about: make
development: [packages: {ospackages: [make]}]
"""
ONE = """\
recipe: one
version: "1.0"
about: a program whose source lies in the project
parent: core
development:
  - generic_autotools: {url: "local:a.tar.gz", directory: a, prefix: /opt/a, install: true}
"""
LOCK = """\
schema: build-images/lock/v1
sources:
  - {{url: "local:a.tar.gz", file: a.tar.gz, sha256: {sha256}, size: {size}, recipes: [one]}}
references: []
"""


class Worker:
    """A worker's machine, the store of its site, and the project of a run."""

    def __init__(self, site: Site) -> None:
        site.host = HOST
        self.site, self.runs, self.sources = site, list[Run](), set[str]()
        self.place = FolderStore(site.root / "store")
        self.store = SiteStore(self.place, site.root / "scratch")
        (site.root / "store").mkdir()
        project = site.root / "of-the-run"
        shutil.copytree(ROOT / "tests/data/good", project)
        shutil.copy(ROOT / "tests/images/run-checks", project / "tests/images")
        sha256 = hashlib.sha256(ARCHIVE).hexdigest()
        for name, text in {
            "matrix.yaml": MATRIX,
            "recipes/core.yaml": CORE,
            "recipes/one.yaml": ONE,
            "lock.yaml": LOCK.format(sha256=sha256, size=len(ARCHIVE)),
            "a.tar.gz": ARCHIVE.decode(),
        }.items():
            (project / name).write_text(text)
        (project / "recipes/app.yaml").unlink()
        specs = compile_images(project, load_images(project, Selection(everything=True)))
        self.project = add_project(self.store, project, specs)
        build = site.engine.build

        def noting(of: DockerfileBuild) -> None:
            self.sources |= {path.name for path in of.context.rglob("*.tar.gz")}
            build(of)

        site.engine.build = noting  # type: ignore[method-assign, assignment]

    def prepare(
        self,
        settings: BuildSettings,
        progress: Progress,
        images: Sequence[PlannedImage],
        *,
        todo: int,
        **others: object,
    ) -> Run:
        assert {*others} == {"held", "machine"}
        assert [image.identifier for image in images] == [IMAGE]
        assert todo == settings.jobs == 1
        settings.out.mkdir(parents=True)
        run = dataclasses.replace(self.site.run(settings), progress=progress)
        self.runs.append(run)
        return run

    def order(self, kind: str, **changes: Any) -> Order:
        order = Order(
            kind=kind,
            image=IMAGE,
            flavour="runtime",
            cpu="generic",
            store=str(self.site.root / "store"),
            project=self.project,
            program=own_program(),
            engine="fake",
            formats=("oci",),
            epoch=0,
            number=0,
            packed="",
            native_tools=True,
            offline=False,
            max_index_age=None,
        )
        return dataclasses.replace(order, **changes)

    def carry_out(self, kind: str, **changes: Any) -> OrderResult:
        """The result of an order; nothing is left of its output folder, and no tag is set."""
        tags, running = self.place.tags(), list[Run]()
        order = self.order(kind, **changes)
        progress = Progress(stream=self.site.said, level=2)
        try:
            return task.carry_out(order, progress, running)
        finally:
            assert [run.settings for run in running] == [run.settings for run in self.runs[-1:]]
            assert not [*self.site.home.temporary.glob("order-*")]
            assert self.place.tags() == tags

    def accept(self, result: OrderResult) -> None:
        """Set the tags of a result, as the run does that gave the order."""
        for tag, digest in result.entries.items():
            self.store.set_tag(tag, digest)


@pytest.fixture(name="worker")
def worker_of_a_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(site.home.path))
    monkeypatch.setattr(shared_images, "base_key", lambda *_: "k")
    monkeypatch.setattr(shared_images, "find_mirror", lambda: None)
    monkeypatch.setattr(task, "at_work", lambda *_, **__: contextlib.nullcontext())
    worker = Worker(site)
    monkeypatch.setattr(task, "prepare", worker.prepare)
    return worker


def kinds(result: OrderResult) -> list[str]:
    """What the entries of a result are."""
    return sorted(tag.partition("-")[0] for tag in result.entries)


CORE_STAGE = "core-development of one"
STAGES = [CORE_STAGE, "one-development of one"]


def test_an_order_for_a_base_makes_no_stage(worker: Worker) -> None:
    result = worker.carry_out("base")
    assert result == OrderResult(entries={})
    assert "base debian13" in worker.site.said.getvalue()
    assert worker.site.built() == []
    [project] = (worker.site.home.path / "projects").iterdir()
    assert project.name == worker.project.removeprefix("sha256:")[:32]
    assert not [*(worker.site.home.path / "sources").rglob("*")]
    assert worker.carry_out("base") == result  # the project is there already


def test_a_machine_is_examined_once_for_each_engine(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare, known, examined = worker.prepare, list[ExaminedMachine](), list[Diagnosis]()
    clean = list[bool]()  # whether leftovers of killed builders are not looked for

    def examine(_tools: Tools) -> Diagnosis:
        found = Diagnosis(arch="x86_64", user=f"user-{len(examined)}", items={}, abilities=())
        examined.append(found)
        return found

    monkeypatch.setattr(task, "examine_machine", examine)

    def noting(*arguments: Any, machine: ExaminedMachine, **others: Any) -> Run:
        known.append(machine)
        return prepare(*arguments, machine=machine, **others)

    @contextlib.contextmanager
    def working(*_: object, is_clean: bool) -> Iterator[None]:
        clean.append(is_clean)
        yield

    monkeypatch.setattr(task, "prepare", noting)
    monkeypatch.setattr(task, "at_work", working)
    file, progress = tmp_path / "machine", Progress(stream=worker.site.said)
    worker.site.versions["fake"] = "1.0"
    for engine in ("fake", "fake", "other"):
        task.carry_out(worker.order("base", engine=engine), progress, [], file)
    file.write_text("not JSON")
    task.carry_out(worker.order("base"), progress, [], file)
    assert [(one.engine, one.diagnosis.user, dict(one.versions)) for one in known] == [
        ("fake", "user-0", {}),
        ("fake", "user-0", {"fake": "1.0"}),
        ("other", "user-1", {}),
        ("fake", "user-2", {}),
    ]
    assert clean == [False, True, False, False]


def test_an_order_for_a_stage_makes_those_below_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another builder has cleaned the store meanwhile."""

    @contextlib.contextmanager
    def cleaned(*_: object, **__: object) -> Iterator[None]:
        shutil.rmtree(worker.site.home.temporary)
        yield

    monkeypatch.setattr(task, "at_work", cleaned)
    first = worker.carry_out("stage", number=0)
    assert (kinds(first), worker.site.built()) == (["stage"], [CORE_STAGE])
    second = worker.carry_out("stage", number=1)
    assert (kinds(second), worker.site.built()) == (["stage"], STAGES[1:])
    assert worker.sources == {"a.tar.gz"}
    assert (second.failure, second.entry) == (None, "")


def test_an_image_is_packed_and_verified_by_whoever_is_free(
    worker: Worker, results: dict[str, Any]
) -> None:
    packed = worker.carry_out("image", epoch=7)
    assert worker.site.built() == [*STAGES, "runtime of one"]
    assert worker.sources == {"a.tar.gz"}
    assert kinds(packed) == ["packed", "stage", "stage"]
    [tag] = (tag for tag in packed.entries if tag.startswith("packed-"))
    assert packed.entries[tag] == packed.entry
    algorithm, _, digits = packed.digest.partition(":")
    assert f"image.oci/blobs/{algorithm}/{digits}" in worker.store.blobs(packed.entry)
    assert {"manifest.json", "Dockerfile", "sbom.cdx.json", "build.log"} <= {
        *worker.store.blobs(packed.entry)
    }
    worker.accept(packed)
    assert worker.carry_out("image", epoch=7) == OrderResult(entry=packed.entry)
    verified = worker.carry_out("verify", packed=packed.entry, epoch=7)
    assert kinds(verified) == ["image"]
    assert [*verified.entries.values()] == [verified.entry]
    assert worker.site.built() == []
    folder = worker.site.root / "taken"
    folder.mkdir()
    worker.store.take(verified.entry, folder)
    manifest = read_manifest(folder)
    assert manifest
    assert (manifest.outcome, manifest.inputs.source_date_epoch) == ("verified", 7)
    results["sh"] = done(env("HOME=/tmp", "OTHER=x", directory="/"))
    failed = worker.carry_out("verify", packed=packed.entry, epoch=7)
    assert kinds(failed) == ["packed"]
    assert "evidence/oci.json" in worker.store.blobs(failed.entry)


@pytest.mark.parametrize("packed", ["", "sha256:" + "0" * 64])
def test_an_image_that_the_store_lacks_is_not_built_in_its_place(
    packed: str, worker: Worker
) -> None:
    with pytest.raises(MissingPrerequisite) as caught:
        worker.carry_out("verify", packed=packed)
    assert str(caught.value) == (
        f"{IMAGE}: the site's store did not give the image\n  hint: run the same command again"
    )
    assert worker.site.built() == []


def test_an_image_that_the_store_does_not_take_is_tried_elsewhere(worker: Worker) -> None:
    def spoil() -> None:
        shutil.rmtree(worker.site.root / "store", ignore_errors=True)

    worker.site.engine.meet = spoil
    with pytest.raises(MissingPrerequisite, match=f"^{IMAGE} could not be added to the site's"):
        task.carry_out(worker.order("image"), Progress(stream=worker.site.said), [])


@pytest.mark.parametrize(
    ("kind", "error", "exit_code"),
    [
        ("stage", StepFailed("exit status 2", tail=["no rule"], hint="look"), 1),
        ("image", StepFailed("exit status 2", tail=["no rule"], hint="look"), 1),
        ("stage", StepFailed("tar: exit status 2", tail=["No space left on device"]), 4),
    ],
)
def test_a_failure_comes_with_the_end_of_its_log(
    kind: str, error: StepFailed, exit_code: int, worker: Worker
) -> None:
    text = "x" * 70_000 + "end"

    def fails(build: DockerfileBuild) -> None:
        build.log.write_text(text)
        error.log = build.log
        raise error

    worker.site.engine.build = fails  # type: ignore[method-assign]
    result = worker.carry_out(kind)
    assert result.failure == Failure(
        message=error.message,
        tail=error.tail,
        hint=error.hint,
        exit_code=exit_code,
        cause="machine" if exit_code == 4 else "task",
    )
    assert result.log == (text[-65536:] if exit_code == 1 else "")


def test_a_failure_without_a_log_is_told(worker: Worker) -> None:
    def fails(build: DockerfileBuild) -> None:
        del build
        raise StepFailed("exit status 2")

    worker.site.engine.build = fails  # type: ignore[method-assign]
    failure = Failure(message="exit status 2")
    assert worker.carry_out("stage") == OrderResult(failure=failure)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"program": "sha256:0"}, "it has another version of build-images"),
        ({"project": "sha256:" + "0" * 64}, "the site's store did not give the project"),
    ],
)
def test_an_order_of_another_program_or_project_is_not_carried_out(
    changes: dict[str, str], problem: str, worker: Worker
) -> None:
    with pytest.raises(MissingPrerequisite, match=f"^{problem}"):
        worker.carry_out("base", **changes)
    assert worker.runs == []


@pytest.mark.parametrize("kind", ["base", "verify"])
def test_the_settings_of_a_run_are_those_of_its_order(kind: str, worker: Worker) -> None:
    changes = {"offline": True, "max_index_age": 3, "native_tools": False, "epoch": 5}
    with contextlib.suppress(MissingPrerequisite):  # there is no image to verify
        worker.carry_out(kind, **changes)
    [run] = worker.runs
    assert run.settings == BuildSettings(
        project=run.settings.project,
        out=run.settings.out,
        engine="fake",
        formats=("oci",),
        epoch=5,
        verify=kind == "verify",
        native_tools=False,
        offline=True,
        max_index_age=3,
    )


# ---- The process of an order ----


def ended(worker: Worker, text: str | None, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Path]:
    """The exit status of the process of an order, and the file of its result."""
    order, result = worker.site.root / "order", worker.site.root / "result"
    if text is not None:
        order.write_text(text)
    monkeypatch.setattr(sys, "argv", ["task", str(order), str(result), str(os.getppid())])
    return task.main(), result


def test_the_process_of_an_order_writes_its_result(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    status, file = ended(worker, worker.order("stage").text(), monkeypatch)
    result = OrderResult.read(file.read_text())
    assert (status, kinds(result), result.failure) == (0, ["stage"], None)
    assert 0 < result.seconds <= time.monotonic() - began + 0.01
    assert result.seconds == round(result.seconds, 2)
    assert f"{IMAGE}: building core-development" in capsys.readouterr().err
    assert (worker.site.root / "machine").exists()  # for the next order


@pytest.mark.parametrize(
    ("program", "message", "exit_code"),
    [
        ("sha256:0", "it has another version of build-images", 4),
        (None, "[Errno 2] No such file or directory: '", 4),
    ],
)
def test_the_process_of_an_order_writes_its_failure(
    program: str | None,
    message: str,
    exit_code: int,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = worker.order("base", program=program).text() if program else None
    if program:
        (worker.site.root / "machine").touch()
    status, file = ended(worker, text, monkeypatch)
    failure = OrderResult.read(file.read_text()).failure
    assert failure
    assert (status, failure.exit_code) == (0, exit_code)
    assert failure.message.startswith(message)
    assert not (worker.site.root / "machine").exists()  # it is examined again


def test_a_fault_of_the_program_ends_the_process_of_an_order(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="Expecting property name"):
        ended(worker, "{", monkeypatch)
    assert not (worker.site.root / "result").exists()


def test_an_order_that_is_not_wanted_any_more_stops_its_run(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[bool] = []

    def wait() -> None:
        steps.append(threading.current_thread().daemon)  # none keeps the process from its end
        (worker.site.root / "unwanted").touch()
        while not worker.runs[0].tools.processes.stopping:
            time.sleep(0.01)
        steps.append(True)
        raise Interrupted("interrupted")

    monkeypatch.setattr(task, "_POLL_S", 0.01)
    worker.site.engine.meet = wait
    status, file = ended(worker, worker.order("stage").text(), monkeypatch)
    assert (status, file.exists(), steps) == (130, False, [True, True])


@pytest.mark.parametrize("has_all", [True, False])
def test_a_worker_tells_what_its_machine_has(
    has_all: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(gpu=HostGpus(devices=(HostGpu(), HostGpu())), emulators=("ppc64le",))
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BUILD_IMAGES_POOL", raising=False)
    monkeypatch.setattr(task, "this_machine", lambda *_, **__: host if has_all else Host())
    monkeypatch.setattr(Tools, "has", lambda _, name: has_all and name == "buildah")
    monkeypatch.setattr(Tools, "version", lambda _, name: {"buildah": "1.39.3"}[name])
    facts = task.describe()
    found = (facts.emulates, facts.gpus, facts.engine, facts.pool)
    assert found == ((("ppc64le",), 2, "1.39.3", "") if has_all else ((), 0, "", ""))
