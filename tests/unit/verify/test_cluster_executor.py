"""The executor for Dask's workers, with a connection that only notes what it is asked."""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import Empty

import pytest
from manifest_samples import record
from samples import image

from builder.artifacts.manifests import write_manifest
from builder.build.engines import ENGINES, Tools
from builder.build.executor import (
    AttemptEnded,
    Event,
    ExecutorFailed,
    WorkerJoined,
    WorkerLost,
)
from builder.build.run import BuildSettings, Run
from builder.build.schedule import Attempt
from builder.build.tasks import Task
from builder.build.workers import Pool, Worker
from builder.compile.spec import compile_spec
from builder.model import SitePool
from builder.model.errors import MissingPrerequisite, StepFailed, TemporaryFailure
from builder.registry import Denied, RegistryFailed
from builder.registry.failures import Transient
from builder.sources.site_store import SiteStore
from builder.sources.site_store.places import FolderStore
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.cluster.executor import DaskExecutor, pool_of, pools_of
from builder.verify.cluster.orders import (
    INTERRUPTED,
    Failure,
    Order,
    OrderResult,
    WorkerFacts,
    own_program,
)
from builder.verify.shared_images import image_tag, put_image

X86 = Pool(name="x86", architectures=("x86_64", "ppc64le"))
POWER = Pool(name="power", architectures=("ppc64le",))
GPU = Pool(name="gpu", architectures=("x86_64",), gpus=2)
Ended = Callable[[str, BaseException | None], object]


def facts(machine: str = "n1", arch: str = "x86_64", **changes: object) -> WorkerFacts:
    values: dict[str, object] = {
        "emulates": ("ppc64le",),
        "gpus": 0,
        "program": own_program(),
        "engine": "1.39",
        **changes,
    }
    return WorkerFacts(machine=machine, arch=arch, **values)  # type: ignore[arg-type]


class Noting:
    """A connection to a scheduler that is not there."""

    def __init__(self) -> None:
        self.submitted: dict[str, tuple[Order, str, Ended]] = {}
        self.cancelled: list[str] = []
        self.is_idle = True

    def watch(
        self,
        joined: Callable[[str, WorkerFacts | str], object],
        lost: Callable[[str, bool], object],
        told: Callable[[str, str, str], object],
        gone: Callable[[], object],
    ) -> None:
        self.joined, self.lost, self.told, self.gone = joined, lost, told, gone

    def submit(self, key: str, text: str, address: str, ended: Ended) -> None:
        self.submitted[key] = (Order.read(text), address, ended)

    def cancel(self, keys: Iterable[str]) -> None:
        self.cancelled += keys

    def wait_until_idle(self, keys: str, addresses: Iterable[str], seconds: float) -> bool:
        assert (*addresses, seconds) == ("tcp://n1", 10)
        assert all(key.startswith(keys) for key in self.submitted)
        return self.is_idle


class Bench:
    """An executor for one image, what it says, and its store in a folder."""

    def __init__(self, root: Path) -> None:
        (root / "cache").mkdir()
        (root / "out").mkdir()
        self.out, self.said, self.connection = root / "out", io.StringIO(), Noting()
        self.shared = SiteStore(FolderStore(root / "cache"), root)
        self.spec = compile_spec(image(root / "project"), run_checks="")
        self.image = self.spec.image
        tools = Tools(processes=Processes(), home=Home(path=root / "home"))
        settings = BuildSettings(
            project=root, out=self.out, engine="buildah", formats=("oci",), epoch=7
        )
        run = Run(
            settings=settings,
            tools=tools,
            engine=ENGINES["buildah"](tools),
            progress=Progress(stream=self.said),
            host=host_facts(),
            shared=self.shared,
        )
        self.executor = DaskExecutor(
            self.connection,  # type: ignore[arg-type]
            run,
            {self.image.identifier: self.spec},
            store=str(root / "cache"),
            project="sha256:1",
            pools=(X86, POWER),
        )

    def lines(self) -> list[str]:
        """What was said, without the times."""
        return [line.partition("] ")[2] for line in self.said.getvalue().splitlines()]

    def events(self) -> list[Event]:
        found: list[Event] = []
        while True:
            try:
                found.append(self.executor.events.get(timeout=0.01))
            except Empty:
                return found

    def begin(self, kind: str, number: int = 1) -> Attempt:
        """Start a task of a kind on the worker n1, as its attempt with a number."""
        worker = Worker(name="tcp://n1", machine="n1", pool=X86)
        name = self.image.identifier
        attempt = Attempt(name=f"{kind} {name}", number=number, worker=worker)
        work = Task(
            name=attempt.name,
            kind=kind,
            work=lambda: None,
            label=f"{kind} {name}",
            image=name,
            number=3,
        )
        self.executor.start(work, attempt)
        return attempt

    def end(self, result: OrderResult) -> list[Event]:
        """End the newest order with a result; the events that follow."""
        *_, (_, _, ended) = self.connection.submitted.values()
        ended(result.text(), None)
        return self.events()

    def entry(self, tag: str, **files: str) -> str:
        """Add an entry without a tag, as workers do; its digest."""
        store = SiteStore(self.shared._place, self.shared._scratch, tags=False)
        folder = self.out.parent / tag
        folder.mkdir()
        for name, text in {"file": tag, **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        store.put(tag, folder, tag)
        return store.added[tag]


@pytest.fixture(name="bench")
def bench_with_a_worker(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.connection.joined("tcp://n1", facts())
    assert bench.events() == [WorkerJoined(worker=Worker(name="tcp://n1", machine="n1", pool=X86))]
    return bench


def test_a_site_has_its_pools_and_others_are_made_of_what_workers_are() -> None:
    site = {
        "x86": SitePool(arch="x86_64", builds=("x86_64", "ppc64le")),
        "power": SitePool(arch="ppc64le"),
        "gpu": SitePool(arch="x86_64", gpus=2),
    }
    pools = pools_of(site)
    assert pools == (X86, POWER, GPU)
    assert pool_of(facts(), pools) == X86
    assert pool_of(facts(pool="gpu"), pools) == GPU
    assert pool_of(facts(arch="ppc64le"), pools) == POWER
    assert pool_of(facts(gpus=2), (GPU, X86)) == GPU
    assert pool_of(facts(gpus=1), (GPU, X86)) == X86
    assert pool_of(facts(gpus=1), ()) == Pool(
        name="x86_64 with 1 GPU", architectures=("x86_64", "ppc64le"), gpus=1
    )
    assert pool_of(facts(gpus=4, emulates=()), ()).name == "x86_64 with 4 GPUs"
    own = Pool(name="x86_64", architectures=("x86_64", "aarch64"))
    assert pool_of(facts(emulates=("x86_64", "aarch64")), ()) == own
    assert pool_of(facts(pool="other"), pools).name == "other"


def test_workers_that_cannot_be_used_are_named(bench: Bench) -> None:
    assert bench.executor.capacity() == ()  # of those that join, events tell
    bench.connection.joined("tcp://n2", "it does not say what it is: ModuleNotFoundError")
    bench.connection.joined("tcp://n3", facts("n3", program="sha256:0"))
    assert bench.events() == []
    assert bench.lines() == [
        "n1 joins (x86)",
        "tcp://n2 is not used: it does not say what it is: ModuleNotFoundError",
        "n3 is not used: it has another version of build-images",
    ]


def test_workers_with_other_tools_share_no_stages(bench: Bench) -> None:
    bench.connection.joined("tcp://n2", facts("n2"))
    bench.connection.joined("tcp://n3", facts("n3", engine="1.28"))
    assert bench.lines()[1:] == [
        "n2 joins (x86)",
        "n3 joins (x86)",
        "n3 has Buildah 1.28, n2 1.39: they share no stages",
    ]


def test_an_order_says_what_to_do_and_its_entries_get_tags_when_it_counts(bench: Bench) -> None:
    attempt = bench.begin("stage")
    [(key, (order, address, _))] = bench.connection.submitted.items()
    assert key.endswith(f"-{attempt.name}-1")
    assert (address, order) == (
        "tcp://n1",
        Order(
            kind="stage",
            image=bench.image.identifier,
            flavour="runtime",
            cpu="generic",
            store=str(bench.out.parent / "cache"),
            project="sha256:1",
            program=own_program(),
            engine="buildah",
            formats=("oci",),
            epoch=7,
            number=3,
            packed="",
            native_tools=True,
            offline=False,
            max_index_age=None,
        ),
    )
    assert bench.lines()[-1] == f"{bench.image.identifier}: stage on n1 (x86)"
    stage, base, image_tag = (f"{kind}-{'0' * 64}" for kind in ("stage", "base", "image"))
    entries = {tag: bench.entry(tag) for tag in (stage, base, image_tag)}
    odd = {f"{stage}/../../victim": entries[stage], f"base-{'1' * 64}": "not a digest"}
    odd[stage[:-1]] = entries[stage]
    assert bench.end(OrderResult(entries={**entries, **odd})) == [AttemptEnded(attempt=attempt)]
    assert not bench.shared.digest(stage)
    bench.executor.accept(attempt)
    assert bench.shared.digest(stage) == entries[stage]
    assert bench.shared.digest(base) == entries[base]
    tags = bench.out.parent / "cache/tags"
    assert sorted(path.name for path in tags.iterdir()) == [base, stage]  # no stage is an image
    assert not (bench.out.parent / "cache/victim").exists()


@pytest.mark.parametrize(
    ("kind", "tagged"),
    [
        ("base", ["base", "native"]),
        ("image", ["base", "native", "packed", "stage"]),
        ("stage", ["base", "native", "stage"]),
        ("verify", []),
    ],
)
def test_a_task_adds_entries_of_its_kinds_only(kind: str, tagged: list[str], bench: Bench) -> None:
    attempt = bench.begin(kind)
    tags = [f"{one}-{'0' * 64}" for one in ("base", "native", "stage", "packed", "image")]
    bench.end(OrderResult(entries={tag: bench.entry(tag) for tag in tags}))
    problem = "its worker gave no entry of the site's store"
    with pytest.raises(StepFailed, match=problem) if kind == "verify" else nullcontext():
        bench.executor.accept(attempt)
    found = bench.out.parent / "cache/tags"
    assert sorted(path.name[:-65] for path in found.glob("*")) == tagged


@pytest.mark.parametrize(
    ("kind", "outcome", "is_tagged"),
    [("verify", "verified", True), ("verify", "failed", False), ("image", "built", False)],
)
def test_an_image_comes_into_its_output_folder(
    kind: str, outcome: str, is_tagged: bool, bench: Bench
) -> None:
    run = bench.executor.run
    if kind == "image":
        run = replace(run, settings=replace(run.settings, verify=False))
        bench.executor.run = run
    folder = bench.out / bench.image.identifier
    folder.mkdir()
    (folder / "image.sif").write_text("a SIF")
    for name in ("evidence/sif.json", "files/host-contract.json", "elsewhere/of-the-user"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("{}")
    manifest = record({"outcome": outcome, "artifacts": {"oci": {}, "sif": {}}})
    write_manifest(folder, manifest, ())
    place = bench.shared._place
    of_worker = replace(run, shared=SiteStore(place, bench.shared._scratch, tags=False))
    entries = [put_image(of_worker, bench.spec, manifest, name) for name in ("packed", "image")]
    shutil.rmtree(folder)
    for name, entry in zip(("image", "verify"), entries, strict=True):
        attempt = bench.begin(name)
        bench.end(OrderResult(entry=entry))
        bench.executor.accept(attempt)
        assert folder.exists() is (name == kind)
        if name == kind:
            break
    assert (folder / "image.sif").read_text() == "a SIF"
    assert sorted(str(one.relative_to(folder)) for one in folder.rglob("*.json")) == [
        *("evidence/sif.json", "files/host-contract.json", "manifest.json"),
    ]
    assert not (folder / "elsewhere").exists()
    for old in ("contents.json.gz", "failed-step.json"):  # of an image that was there before
        (folder / old).touch()
        bench.executor._take(bench.image, entries[1])
        assert not (folder / old).exists()
    tag = image_tag(run, bench.image, manifest.inputs.base.key)
    assert bench.shared.digest(tag) == (entries[1] if is_tagged else "")


def test_a_store_that_cannot_be_read_fails_the_image(bench: Bench) -> None:
    attempt = bench.begin("image")
    bench.end(OrderResult(entry=bench.entry("packed-1")))
    bench.executor.accept(attempt)
    attempt = bench.begin("verify")
    blobs = bench.out.parent / "cache/blobs"
    shutil.rmtree(blobs)
    blobs.write_text("where a folder is to be")
    bench.end(OrderResult(entry="sha256:" + "0" * 64))
    problem = f"^{bench.image.identifier}: the site's store does not give the image: "
    with pytest.raises(TemporaryFailure, match=problem):
        bench.executor.accept(attempt)


def test_the_image_that_was_accepted_is_verified(bench: Bench) -> None:
    late, current = bench.begin("image"), bench.begin("image", 2)
    bench.end(OrderResult(entry="sha256:2"))
    bench.executor.accept(current)
    bench.begin("verify")
    *_, (order, _, _) = bench.connection.submitted.values()
    assert (late.number, order.kind, order.packed) == (1, "verify", "sha256:2")


def test_a_second_build_with_other_bytes_is_reported(bench: Bench) -> None:
    for number, digest in enumerate(("", "sha256:1", "sha256:1", "sha256:2"), start=1):
        bench.begin("image", number)
        bench.end(OrderResult(entry="sha256:0", digest=digest))
        bench.begin("stage", number)
        bench.end(OrderResult())
    reports = [line for line in bench.lines() if "not reproducible" in line]
    name = bench.image.identifier
    text = f"{name} is not reproducible: n1 built sha256:1, and n1 sha256:2; "
    assert reports == [f"{text}build-images reproduce {name} names the files that differ"]


@pytest.mark.parametrize(
    ("artifact", "problem"),
    [
        ("another", "the evidence is of other artifacts than those of the build"),
        ("the same", "the site's store does not give the image"),  # it has no manifest
        ("", "no entry sha256:0000"),
    ],
)
def test_evidence_has_to_belong_to_the_image_that_was_accepted(
    artifact: str, problem: str, bench: Bench
) -> None:
    attempt = bench.begin("image")
    files = {"image.sif": "the same", "image.oci/index.json": "the same"}
    bench.end(OrderResult(entry=bench.entry("packed-1", **files)))
    bench.executor.accept(attempt)
    files["image.oci/index.json"] = artifact
    entry = bench.entry("image-1", **files) if artifact else "sha256:" + "0" * 64
    attempt = bench.begin("verify")
    bench.end(OrderResult(entry=entry, seconds=2.5))
    with pytest.raises(Exception, match=problem):
        bench.executor.accept(attempt)
    assert bench.executor.seconds[attempt.name] == 2.5


def test_an_image_that_an_earlier_run_built_is_verified(bench: Bench) -> None:
    folder = bench.out / bench.image.identifier
    folder.mkdir()
    (folder / "image.sif").write_text("a SIF")
    manifest = write_manifest(folder, record({"artifacts": {"oci": {}, "sif": {}}}), ())
    cache, away = bench.out.parent / "cache", bench.out.parent / "away"
    cache.rename(away)
    attempt = bench.begin("verify")
    [event] = bench.events()
    assert isinstance(event, AttemptEnded)
    problem = f"{bench.image.identifier} could not be added to the site's store"
    assert (event.attempt, str(event.error).startswith(problem)) == (attempt, True)
    away.rename(cache)
    bench.begin("verify", 2)
    *_, (order, _, _) = bench.connection.submitted.values()
    assert "image.sif" in bench.shared.blobs(order.packed)
    key = manifest.inputs.base.key
    tag = image_tag(bench.executor.run, bench.image, key, "packed")
    assert bench.shared.digest(tag) == order.packed


@pytest.mark.parametrize("cause", ["machine", "task"])
def test_what_a_machine_lacks_is_tried_elsewhere(cause: str, bench: Bench) -> None:
    """It counts against the machine unless the image asks for it."""
    bench.begin("image")
    failure = Failure(message="the disk is full", exit_code=4, cause=cause)
    worker = Worker(name="tcp://n1", machine="n1", pool=X86)
    reason = "n1: the disk is full"
    assert bench.end(OrderResult(failure=failure)) == [
        WorkerLost(worker="tcp://n1", reason=reason, sound=cause == "task"),
        WorkerJoined(worker=worker),
    ]
    assert bench.lines()[-1] == "n1: the disk is full"


def test_a_store_that_does_not_answer_counts_against_nothing(bench: Bench) -> None:
    attempt = bench.begin("image")
    failure = Failure(message="no answer", exit_code=4, cause="store")
    [event] = bench.end(OrderResult(failure=failure))
    assert isinstance(event, AttemptEnded)
    assert (event.attempt, type(event.error)) == (attempt, TemporaryFailure)
    assert "run the same command when the store answers" in str(event.error)
    assert bench.lines()[-1] == "n1: no answer"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OSError(errno.EIO, "input/output error"), TemporaryFailure),
        (OSError(errno.ENOSPC, "no space left"), MissingPrerequisite),
        (Denied("h:1: 403 Forbidden"), MissingPrerequisite),
        (Transient(RegistryFailed("h:1: 503")).failure, TemporaryFailure),
    ],
)
@pytest.mark.parametrize("kind_of_task", ["stage", "verify"])
def test_a_store_that_is_away_while_a_result_is_kept(
    kind_of_task: str,
    failure: Exception,
    kind: type[Exception],
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task is tried again unless the store refuses; a tag that is refused is only told."""

    def fail(*_: object) -> bytes:
        raise failure

    entry, tag = bench.entry("stage-1"), f"stage-{'0' * 64}"
    attempt = bench.begin(kind_of_task)
    bench.end(OrderResult(entries={tag: entry}, entry=entry))
    bench.executor._packed[bench.image.identifier] = entry
    monkeypatch.setattr(FolderStore, "manifest", fail)
    if kind_of_task == "verify" or kind is TemporaryFailure:
        with pytest.raises(kind) as caught:
            bench.executor.accept(attempt)
        assert type(caught.value) is kind
    else:
        bench.executor.accept(attempt)
        assert bench.lines()[-1].startswith(f"the site's store: {tag}: ")


def test_a_worker_that_is_to_end_is_not_to_blame(bench: Bench) -> None:
    bench.begin("image")
    [lost, joined] = bench.end(OrderResult(failure=Failure(message=INTERRUPTED, exit_code=4)))
    assert isinstance(lost, WorkerLost)
    assert (lost.explained, lost.reason) == (True, "n1: interrupted")
    assert isinstance(joined, WorkerJoined)
    assert "interrupted" not in bench.said.getvalue()


def test_a_failure_of_the_task_comes_with_its_log(bench: Bench) -> None:
    bench.begin("image")
    failure = Failure(message="the build failed", tail=("99", "100"), hint="look")
    [event] = bench.end(OrderResult(failure=failure, log="1\n2\n"))
    log = bench.out / bench.image.identifier / "build.log"
    assert isinstance(event, AttemptEnded)
    assert str(event.error) == (
        f"the build failed\n  its last 2 lines:\n  | 99\n  | 100\n  log: {log}\n  hint: look"
    )
    assert log.read_text() == "1\n2\n"


def test_a_result_that_cannot_be_read_ends_its_attempt(bench: Bench) -> None:
    attempt = bench.begin("image")
    *_, (_, _, ended) = bench.connection.submitted.values()
    lost = OSError("a fault of Dask")
    for text, error in (("{", None), ("", lost)):
        ended(text, error)
        [event] = bench.events()
        assert isinstance(event, AttemptEnded)
        assert (event.attempt, type(event.error)) == (
            *(attempt, json.JSONDecodeError if text else OSError),
        )


def test_a_lost_worker_is_told_and_its_order_is_cancelled(bench: Bench) -> None:
    attempt = bench.begin("image")
    [key] = bench.connection.submitted
    bench.connection.told(key, "tcp://n1", "building")
    bench.connection.told("build-images-0-image-1", "tcp://n1", "of another run")
    bench.connection.told(key, "tcp://n9", "of nobody")
    name = bench.image.identifier
    bench.connection.told(key, "tcp://n1", f"{name}: still, for 10 s: building | 45 % | a: 45%")
    now = bench.executor.run.progress._now[name]
    assert now.summary(99) == "image on n1 (x86) building | 45 % | a: 45%"
    bench.connection.lost("tcp://n9", False)
    bench.connection.lost("tcp://n1", False)
    bench.connection.lost("tcp://n1", True)
    assert bench.events() == [
        WorkerLost(worker="tcp://n1"),
        WorkerLost(worker="tcp://n1", explained=True),
    ]
    assert set(bench.connection.cancelled) == {key}
    assert bench.lines()[2:] == ["n1: building", "n1 is lost (x86)", "n1 leaves (x86)"]
    bench.executor.cancel(attempt)
    assert bench.connection.cancelled[-1] == key


@pytest.mark.parametrize("how", ["ended", "lost", "retried"])
def test_nothing_is_told_of_a_task_that_is_over(how: str, bench: Bench) -> None:
    told = bench.executor.run.progress._now
    bench.begin("image")
    assert [*told] == [bench.image.identifier]
    if how != "ended":
        bench.connection.lost("tcp://n1", False)
    if how == "retried":
        [first] = bench.connection.submitted.values()
        bench.begin("image", 2)
        first[2](OrderResult().text(), None)  # late
    elif how == "ended":
        bench.end(OrderResult())
    assert bool(told) is (how == "retried")


def test_the_run_ends_with_its_scheduler(bench: Bench) -> None:
    bench.connection.gone()
    [event] = bench.events()
    assert isinstance(event, ExecutorFailed)
    assert str(event.error).startswith("the connection to the Dask scheduler is lost\n  hint: run")
    assert event.error.exit_code == 4


def test_an_interruption_cancels_all_orders(bench: Bench) -> None:
    bench.begin("image")
    bench.connection.is_idle = False
    bench.executor.stop()
    assert bench.connection.cancelled == list(bench.connection.submitted)
    assert bench.lines()[-1] == "some workers have not ended their tasks yet"
