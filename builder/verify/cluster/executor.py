"""The executor that carries tasks to Dask's workers, one task a worker at a time.

Dask plans nothing here: each task is submitted to the worker that the schedule chose, when that
worker is free. Bytes go through the site's store; the entries that workers add get their tags here,
when the schedule accepts the result.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from builder.artifacts.manifests import read_manifest
from builder.build.executor import AttemptEnded, Event, ExecutorFailed, WorkerJoined, WorkerLost
from builder.build.run import Run
from builder.build.schedule import Attempt
from builder.build.site_store import store_named
from builder.build.tasks import Task
from builder.build.workers import Pool, Worker
from builder.build.workspace import output_folder
from builder.model import PlannedImage, SitePool, Spec
from builder.model.errors import (
    BuildImagesError,
    MissingPrerequisite,
    StepFailed,
    TemporaryFailure,
    UnfitMachine,
)
from builder.model.manifest import FILES, LOG
from builder.verify.cluster.connection import Connection
from builder.verify.cluster.orders import (
    INTERRUPTED,
    MACHINE,
    STORE,
    Order,
    OrderResult,
    WorkerFacts,
    own_program,
)
from builder.verify.shared_images import image_tag, put_image, take_entry

# Kinds of the entries that workers add for each kind of task; others get no tag.
_ADDS = {
    "base": ("base-", "native-"),
    "stage": ("base-", "native-", "stage-"),
    "image": ("base-", "native-", "stage-", "packed-"),
    "verify": (),
}
_TAG, _DIGEST = re.compile(r"[a-z]+-[0-9a-f]{64}"), re.compile(r"sha256:[0-9a-f]{64}")
_TRIED = (
    "it was tried again for a minute; run the same command when the store answers: what is "
    "finished is kept"
)
_ENDING_S = 10.0  # for workers to end their orders after an interruption


def pools_of(site: Mapping[str, SitePool]) -> tuple[Pool, ...]:
    """Return the pools of a site."""
    return tuple(
        Pool(
            name=name,
            architectures=(one.arch, *(arch for arch in one.builds if arch != one.arch)),
            gpus=one.gpus,
        )
        for name, one in site.items()
    )


def pool_of(worker: WorkerFacts, pools: Sequence[Pool]) -> Pool:
    """Return a worker's pool: that which it names, one that fits it, or one of its own kind."""
    for pool in pools:
        if pool.name == worker.pool:
            return pool
    for pool in () if worker.pool else pools:
        if pool.architectures[0] == worker.arch and pool.gpus <= worker.gpus:
            return pool
    emulates = [arch for arch in worker.emulates if arch != worker.arch]
    gpus = f" with {worker.gpus} GPU{'s'[: worker.gpus - 1]}" if worker.gpus else ""
    return Pool(
        name=worker.pool or f"{worker.arch}{gpus}",
        architectures=(worker.arch, *emulates),
        gpus=worker.gpus,
    )


def _artifacts(blobs: Mapping[str, str]) -> dict[str, str]:
    """Return the files of an entry that belong to an image's artifacts."""
    tops = {*FILES.values()}
    return {path: digest for path, digest in blobs.items() if path.partition("/")[0] in tops}


class _Ended(MissingPrerequisite):
    """A worker ended an order because it is to end itself."""


@dataclass(kw_only=True, slots=True)
class _Known:
    """A worker that joined, and how its machine is called in messages."""

    worker: Worker
    facts: WorkerFacts


class DaskExecutor:
    """Carries the tasks of a run to workers, and takes what they made from the site's store.

    `specs` are those of the run's images by identifier, `project` the digest of the project's entry
    in the store, whose name is `store`. `seconds` are the durations of tasks that ended, by name.
    """

    def __init__(
        self,
        connection: Connection,
        run: Run,
        specs: Mapping[str, Spec],
        *,
        store: str,
        project: str,
        pools: Sequence[Pool] = (),
    ) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.pools = tuple(pools)
        self.run = run
        self.seconds: dict[str, float] = {}
        self._connection, self._specs = connection, specs
        self._store, self._project = store, project
        self._keys = f"build-images-{secrets.token_hex(4)}-"  # no other run has such keys
        self._known: dict[str, _Known] = {}
        self._packed: dict[str, str] = {}  # digests of entries, by image
        self._built: dict[str, tuple[str, str]] = {}  # digest of an OCI layout, machine; by image
        self._tasks: dict[Attempt, Task] = {}
        self._results: dict[Attempt, OrderResult] = {}
        self._last: dict[str, Attempt] = {}  # the last attempts, by image
        connection.watch(self._joined, self._lost, self._told, self._gone)

    def capacity(self) -> Sequence[Worker]:
        """Return no workers: those that are there join by events."""
        return ()

    def start(self, task: Task, attempt: Attempt) -> None:
        """Submit a task to the worker of an attempt."""
        known = self._known[attempt.worker.name]
        where = f"on {known.facts.machine} ({attempt.worker.pool.name})"
        self.run.progress.step(task.image, f"{task.label.removesuffix(f' {task.image}')} {where}")
        self._tasks[attempt], self._last[task.image] = task, attempt
        try:
            order = self._order(task)
        except MissingPrerequisite as error:
            self._pause(attempt)
            self.events.put(AttemptEnded(attempt=attempt, error=error))
            return
        self._connection.submit(
            self._key(attempt),
            order.text(),
            attempt.worker.name,
            lambda text, error: self._ended(attempt, text, error),
        )

    def cancel(self, attempt: Attempt) -> None:
        """Cancel an attempt; its worker ends the order within seconds."""
        self._connection.cancel([self._key(attempt)])

    def accept(self, attempt: Attempt) -> None:
        """Set the tags of what a task added; move a verified image to the output folder."""
        task, result = self._tasks.pop(attempt), self._results.pop(attempt)
        self.seconds[task.name] = result.seconds
        for tag, digest in result.entries.items():
            is_valid = _TAG.fullmatch(tag) and _DIGEST.fullmatch(digest)
            if not is_valid or not tag.startswith(_ADDS[task.kind]):
                continue
            if isinstance(error := self._set_tag(tag, digest), TemporaryFailure):
                raise error  # else others would make it, too
        if task.kind == "image":
            self._packed[task.image] = result.entry
        if task.kind == "verify" or (task.kind == "image" and not self.run.settings.verify):
            self._take(self._specs[task.image].image, result.entry)

    def _take(self, image: PlannedImage, entry: str) -> None:
        """Fill an image's output folder; its artifacts have to be those that were packed."""
        name, shared = image.identifier, self.run.shared
        what = f"{name}: the site's store does not give the image"
        if not _DIGEST.fullmatch(entry):
            raise StepFailed(f"{name}: its worker gave no entry of the site's store")
        try:
            packed, taken = (_artifacts(shared.blobs(one)) for one in (self._packed[name], entry))
        except (BuildImagesError, OSError) as error:
            raise shared.error(what, error, hint=_TRIED) from error
        if packed != taken:
            raise StepFailed(f"{name}: the evidence is of other artifacts than those of the build")
        run = self._with_new_store()
        if not take_entry(run, image, entry):
            raise run.shared.error(what, hint=_TRIED)
        manifest = read_manifest(self.run.settings.out / name)
        if manifest and manifest.outcome == "verified":
            self._set_tag(image_tag(self.run, image, manifest.inputs.base.key), entry)

    def _with_new_store(self) -> Run:
        """Return the run with a new store: a failure for one image says nothing of others."""
        store = store_named(self._store, self.run.tools, self.run.progress.say)
        return replace(self.run, shared=store)

    def stop(self) -> None:
        """Cancel everything, and wait until the workers have ended their orders."""
        running = [*self._tasks]
        self._connection.cancel(self._key(attempt) for attempt in running)
        addresses = [attempt.worker.name for attempt in running]
        if not self._connection.wait_until_idle(self._keys, addresses, _ENDING_S):
            self.run.progress.say("some workers have not ended their tasks yet")

    def close(self) -> None:
        """Do nothing: the workers stay, and take tasks of other runs."""

    # ---- Orders and their results ----

    def _key(self, attempt: Attempt) -> str:
        return f"{self._keys}{attempt.name}-{attempt.number}"

    def _order(self, task: Task) -> Order:
        settings, cell = self.run.settings, self._specs[task.image].image.cell
        return Order(
            kind=task.kind,
            image=task.image,
            flavour=cell.flavour,
            cpu=cell.cpu,
            store=self._store,
            project=self._project,
            program=own_program(),
            engine=settings.engine,
            formats=tuple(settings.formats),
            epoch=settings.epoch,
            number=task.number,
            packed=self._packed_entry(task.image) if task.kind == "verify" else "",
            native_tools=settings.native_tools,
            offline=settings.offline,
            max_index_age=settings.max_index_age,
        )

    def _packed_entry(self, name: str) -> str:
        """Return the digest of a packed image's entry; one that an earlier run built is added."""
        folder, spec = self.run.settings.out / name, self._specs[name]
        if name not in self._packed and (manifest := read_manifest(folder)):
            run = self._with_new_store()
            self._packed[name] = put_image(run, spec, manifest, "packed")
            if not self._packed[name]:
                del self._packed[name]
                what = f"{name} could not be added to the site's store"
                raise run.shared.error(what, hint=_TRIED)
        return self._packed.get(name, "")

    def _ended(self, attempt: Attempt, text: str, error: BaseException | None) -> None:
        """Report the end of an attempt. `text` is its result; called in Dask's thread."""
        self._pause(attempt)
        if error is None:
            try:
                result = self._results[attempt] = OrderResult.read(text)
                error = self._error(attempt, result)
                self._compare(attempt, result.digest)
            except Exception as broken:  # nobody else would hear of it, and the run would wait
                error = broken
        known = self._known[attempt.worker.name]
        if isinstance(error, MissingPrerequisite) and not isinstance(error, _Ended):
            self.run.progress.say(f"{known.facts.machine}: {error.args[0]}")
        if isinstance(error, TemporaryFailure) or not isinstance(error, MissingPrerequisite):
            self.events.put(AttemptEnded(attempt=attempt, error=error))
            return
        lost = WorkerLost(
            worker=attempt.worker.name,
            explained=isinstance(error, _Ended),
            reason=f"{known.facts.machine}: {error}",
            sound=not isinstance(error, UnfitMachine),
        )
        self.events.put(lost)
        self.events.put(WorkerJoined(worker=known.worker))

    def _compare(self, attempt: Attempt, digest: str) -> None:
        """Say it if an image was built twice, and the second build gave other bytes."""
        if digest and attempt in self._tasks:
            image, machine = self._tasks[attempt].image, attempt.worker.machine
            first, at = self._built.setdefault(image, (digest, machine))
            if first != digest:
                text = f"{at} built {first[:19]}, and {machine} {digest[:19]}"
                hint = f"build-images reproduce {image} names the files that differ"
                self.run.progress.say(f"{image} is not reproducible: {text}; {hint}")

    def _error(self, attempt: Attempt, result: OrderResult) -> BuildImagesError | None:
        """Return the error of a result, if any, with its log in the image's output folder."""
        failure = result.failure
        if failure is None:
            return None
        if failure.message == INTERRUPTED:
            return _Ended(failure.message)
        if failure.cause == STORE:
            return TemporaryFailure(failure.message, hint=_TRIED)
        if failure.is_of_machine:
            kind = UnfitMachine if failure.cause == MACHINE else MissingPrerequisite
            return kind(failure.message, hint=failure.hint)
        log: Path | None = None
        if result.log:
            folder = self.run.settings.out / self._tasks[attempt].image
            output_folder(folder)
            log = folder / LOG
            log.write_text(result.log)
        return StepFailed(
            failure.message,
            tail=failure.tail,
            first_error=failure.first_error,
            log=log,
            hint=failure.hint,
        )

    def _pause(self, attempt: Attempt) -> None:
        """Show that nothing runs for the image of an attempt, unless a later attempt does."""
        for image, last in [*self._last.items()]:
            if last == attempt:
                self.run.progress.pause(image)

    def _set_tag(self, tag: str, digest: str) -> MissingPrerequisite | None:
        """Let a tag name an entry; return the error of the store, if any."""
        try:
            self.run.shared.set_tag(tag, digest)
        except (BuildImagesError, OSError) as failure:
            error = self.run.shared.error(f"the site's store: {tag}", failure, hint=_TRIED)
            self.run.progress.say(str(error.args[0]))
            return error
        return None

    # ---- Workers ----

    def _joined(self, address: str, facts: WorkerFacts | str) -> None:
        """Add a worker; `facts` is a text if it cannot be used."""
        say = self.run.progress.say
        if isinstance(facts, str):
            say(f"{address} is not used: {facts}")
        elif facts.program != own_program():
            say(f"{facts.machine} is not used: it has another version of build-images")
        else:
            pool = pool_of(facts, self.pools)
            others = {one.facts.engine: one.facts.machine for one in self._known.values()}
            worker = Worker(name=address, machine=facts.machine, pool=pool)
            self._known[address] = _Known(worker=worker, facts=facts)
            say(f"{facts.machine} joins ({pool.name})")
            if others and facts.engine not in others:
                [(engine, machine), *_] = others.items()
                say(
                    f"{facts.machine} has Buildah {facts.engine}, {machine} {engine}: "
                    "they share no stages"
                )
            self.events.put(WorkerJoined(worker=worker))

    def _lost(self, address: str, is_expected: bool) -> None:
        if known := self._known.get(address):
            how = "leaves" if is_expected else "is lost"
            self.run.progress.say(f"{known.facts.machine} {how} ({known.worker.pool.name})")
            lost = [attempt for attempt in [*self._tasks] if attempt.worker.name == address]
            for attempt in lost:
                self._pause(attempt)
            self._connection.cancel(map(self._key, lost))
            self.events.put(WorkerLost(worker=address, explained=is_expected))

    def _gone(self) -> None:
        self.events.put(
            ExecutorFailed(
                error=MissingPrerequisite(
                    "the connection to the Dask scheduler is lost",
                    hint="run the same command again: what is finished is kept",
                )
            )
        )

    def _told(self, key: str, address: str, line: str) -> None:
        """Show a line of a worker's progress, beside the image if the attempt is its last one."""
        known = self._known.get(address)
        if known and key.startswith(self._keys):
            last = (image for image, last in [*self._last.items()] if self._key(last) == key)
            self.run.progress.relay(next(last, ""), known.facts.machine, line)
