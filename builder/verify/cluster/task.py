"""The work of a worker: an order, in a process of its own, with this machine's engine and home.

`run_order` is called in a thread of a Dask worker. It starts this module as a program, forwards its
progress, and ends it if the order is cancelled or the worker ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

from builder.artifacts.repack import shared_layers
from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.build.inputs import fetch_sources
from builder.build.planning import compile_images, load_images
from builder.build.run import BuildSettings, Run
from builder.build.site_store import store_named, take_project
from builder.build.stages import RunStages, engine_description, with_log
from builder.build.workspace import remove
from builder.host.local_host import this_machine
from builder.model import Selection, Spec
from builder.model.errors import (
    BuildImagesError,
    Interrupted,
    MissingPrerequisite,
    StepFailed,
    UnfitMachine,
)
from builder.model.records import write
from builder.system.descendants import text_of
from builder.system.files import json_record, write_atomically
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import Progress, interruptions
from builder.verify.cluster.orders import (
    INTERRUPTED,
    POOL,
    Failure,
    Order,
    OrderResult,
    WorkerFacts,
    own_program,
)
from builder.verify.main_job import run_job
from builder.verify.preparation import ExaminedMachine, examine_machine, is_disk_full, prepare
from builder.verify.shared_images import find_packed, put_image, take_entry

_PROGRESS = re.compile(r"\[ *[\d.]+ s\] ")  # begins a line of progress
_POLL_S = 0.5  # how often it is looked whether an order is still wanted
_LOG = 64 << 10  # characters of a log that are returned after a failure
_ENDING_S = 8.0  # for the steps of an order to end after an interruption
_LIMIT_S = 24 * 3600.0  # of an order: else one that hangs would hold up its run for ever
_UNWANTED = "unwanted"  # the file beside an order that tells its process to end
_MACHINE = "machine"  # the file beside an order with what an examination found
_FRESH_S = 600.0  # the machine is examined again then, and after a failure
_TELL_S = 10.0  # between two lines of progress about a long step
_examined: list[tuple[float, str]] = []  # when, and what was found; at most one


def describe() -> WorkerFacts:
    """Return the facts about this worker's machine and its build-images."""
    processes = Processes()
    home = Home.of_environment()
    machine = this_machine(processes, search_path=home.search_path())
    tools = Tools(processes=processes, home=home)
    return WorkerFacts(
        machine=platform.node(),
        arch=platform.machine(),
        emulates=machine.emulators or (),
        gpus=len(machine.gpu.devices or ()),
        program=own_program(),
        engine=tools.version("buildah") if tools.has("buildah") else "",
        pool=os.environ.get(POOL, ""),
    )


# ---- In the Dask worker ----


def run_order(text: str, wanted: Callable[[], bool], tell: Callable[[str], None]) -> str:
    """Carry out an order in a process of its own; return its result as JSON.

    The process is ended when `wanted` becomes false, or after a day. `tell` gets the lines of its
    progress.
    """
    processes = Processes()
    deadline = time.monotonic() + _LIMIT_S
    ended = threading.Event()

    def watch(unwanted: Path) -> None:
        while not ended.wait(_POLL_S):
            if not wanted() or time.monotonic() > deadline:
                # A signal would reach the engine, too. What fails for it leaves its mounts.
                unwanted.touch()
                ended.wait(_ENDING_S)
                processes.stop()
                return

    def forward(line: str) -> None:
        if match := _PROGRESS.match(line):
            tell(line[match.end() :])

    try:
        with TemporaryDirectory(prefix="build-images-order-") as folder:
            order, result, log = (Path(folder) / name for name in ("order", "result", "log"))
            order.write_text(text)
            examined_at = _recall(order.with_name(_MACHINE))
            unwanted = order.with_name(_UNWANTED)
            watcher = threading.Thread(target=watch, args=(unwanted,))
            watcher.start()
            argv = [sys.executable, "-m", __name__, str(order), str(result), str(os.getpid())]
            try:
                processes.logged(argv, log=log, what="the order", on_line=forward)
            except (StepFailed, Interrupted) as error:
                if time.monotonic() > deadline:
                    raise UnfitMachine(f"the order: no result after {_LIMIT_S:.0f} s") from error
                if unwanted.exists():
                    raise Interrupted(INTERRUPTED) from error
                raise
            finally:
                ended.set()
                watcher.join()
            _remember(order.with_name(_MACHINE), examined_at)
            return result.read_text()
    except (BuildImagesError, OSError) as error:  # it ended without a result: another may do it
        return OrderResult(failure=Failure.of_machine(error)).text()


def _recall(file: Path) -> float:
    """Write the last examination of this machine to a file, unless it is old; return its time."""
    for when, text in [_examined.pop()] if _examined else []:
        if time.monotonic() - when < _FRESH_S:
            file.write_text(text)
            return when
    return time.monotonic()


def _remember(file: Path, when: float) -> None:
    """Keep an examination for the next order; after a failure there is none."""
    if file.exists():
        _examined[:] = [(when, file.read_text())]


# ---- In the order's own process ----


def carry_out(
    order: Order, progress: Progress, running: list[Run], machine: Path = Path()
) -> OrderResult:
    """Carry out an order on this machine; its run is added to `running`, so that it can be ended.

    `machine` is the file of an examination, which is written if there is none. Raises the errors of
    the steps.
    """
    if order.program != own_program():
        raise UnfitMachine("it has another version of build-images")
    home = Home.of_environment()
    project = home.projects / order.project.removeprefix("sha256:")[:32]
    take_project(order.store, order.project, project, progress.say)
    selection = Selection(
        images=(order.image,), flavours=(order.flavour,), cpu_targets=(order.cpu,)
    )
    images = load_images(project, selection)
    specs = compile_images(project, images)
    with contextlib.ExitStack() as held:
        out = home.temporary / f"order-{secrets.token_hex(8)}"
        settings = _settings(order, project, out)
        known = _known(machine, order, home)
        try:
            run = prepare(settings, progress, images, todo=1, held=held, machine=known)
        except MissingPrerequisite as error:  # its pool says that it does such tasks
            raise UnfitMachine(str(error.args[0]), hint=error.hint) from error
        is_clean = bool(known.versions)  # the order before this one ended well, and left nothing
        with contextlib.suppress(OSError):
            known = dataclasses.replace(known, versions=run.versions)
            machine.write_text(json.dumps(write(known)))
        held.enter_context(at_work(run.tools, project, progress.say, is_clean=is_clean))
        held.callback(remove, out)
        out.mkdir(parents=True, exist_ok=True)  # another builder may have cleaned the store
        layers = held.enter_context(shared_layers(home.work))
        shared = store_named(order.store, run.tools, progress.say, tags=False)
        run = dataclasses.replace(run, layers=layers, shared=shared)
        running.append(run)
        try:
            return _result(order, run, specs)
        except StepFailed as error:
            if is_disk_full(error):
                return OrderResult(failure=Failure.of_machine(error))
            log = with_log(error, out / order.image).log
            text = text_of(log)[-_LOG:] if log else ""
            return OrderResult(failure=Failure.of(error), log=text)


def _known(file: Path, order: Order, home: Home) -> ExaminedMachine:
    """Return the machine as an earlier order of its worker found it, else examine it."""
    known = json_record(ExaminedMachine, file)
    if known and known.engine == order.engine:
        return known
    tools = Tools(processes=Processes(), home=home)
    return ExaminedMachine(engine=order.engine, diagnosis=examine_machine(tools))


def _settings(order: Order, project: Path, out: Path) -> BuildSettings:
    return BuildSettings(
        project=project,
        out=out,
        engine=order.engine,
        formats=order.formats,
        epoch=order.epoch,
        verify=order.kind == "verify",
        native_tools=order.native_tools,
        offline=order.offline,
        max_index_age=order.max_index_age,
    )


def _result(order: Order, run: Run, specs: Sequence[Spec]) -> OrderResult:
    [spec] = specs
    if order.kind == "image" and (digest := find_packed(run, spec.image)):
        return OrderResult(entry=digest)
    is_there = order.kind != "verify" or (
        order.packed and take_entry(run, spec.image, order.packed)
    )
    if not is_there:
        text = f"{order.image}: the site's store did not give the image"
        raise run.shared.error(text, hint="run the same command again")
    if order.kind in {"stage", "image"}:
        sources = fetch_sources(
            run.settings.project, specs, run.progress, offline=run.settings.offline
        )
        run = dataclasses.replace(run, sources=sources)
    if order.kind in {"base", "stage"}:
        _build_stages(order, run, spec)
        return OrderResult(entries=run.shared.added)
    results = run_job(run, specs, jobs=run.settings.jobs)
    for error in results.errors.values():
        raise error
    added = run.shared.added  # by tag; a verified image is among them
    entries = [digest for tag, digest in added.items() if tag.startswith("image-")]
    entry = entries or [put_image(run, spec, results.manifests[order.image], "packed")]
    if not entry[0]:
        text = f"{order.image} could not be added to the site's store"
        raise run.shared.error(text)
    layout = results.manifests[order.image].artifacts.get("oci")
    digest = layout.digest if layout and order.kind == "image" else ""
    return OrderResult(entries=added, entry=entry[0], digest=digest)


def _build_stages(order: Order, run: Run, spec: Spec) -> None:
    stages = RunStages(run=run, engine=engine_description(run.tools.home, run.engine))
    with run.progress.running([order.image]):
        stages.make_base(spec.image)
        for number in range(order.number + 1 if order.kind == "stage" else 0):
            stages.make(spec, number)


def main() -> int:
    """Carry out the order of a file; end early if it is unwanted, or its worker has gone."""
    order, target, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    events: SimpleQueue[OrderResult | BaseException | None] = SimpleQueue()
    running: list[Run] = []
    begin = time.monotonic()

    def work() -> None:
        try:
            request = Order.read(order.read_text())
            events.put(
                carry_out(request, Progress(every_s=_TELL_S), running, order.with_name(_MACHINE))
            )
        except BuildImagesError as error:
            events.put(OrderResult(failure=Failure.of(error)))
        except OSError as error:
            events.put(OrderResult(failure=Failure.of_machine(error)))
        except BaseException as error:  # raised in the main thread
            events.put(error)

    worker = threading.Thread(target=work, daemon=True)
    with interruptions(lambda: events.put(None)):
        worker.start()
        event = _next(events, parent, order.with_name(_UNWANTED))
        if isinstance(event, OrderResult):
            if event.failure:  # perhaps of the machine: it is examined again
                order.with_name(_MACHINE).unlink(missing_ok=True)
            seconds = round(time.monotonic() - begin, 2)
            event = dataclasses.replace(event, seconds=seconds)
            write_atomically(target, event.text(), durable=True)
            return 0
        if event is None:
            for run in running:
                run.stop()
            worker.join(_ENDING_S)
            return 130
        raise event


def _next(
    events: SimpleQueue[OrderResult | BaseException | None], parent: int, unwanted: Path
) -> OrderResult | BaseException | None:
    while os.getppid() == parent and not unwanted.exists():
        with contextlib.suppress(Empty):
            return events.get(timeout=_POLL_S)
    return None


if __name__ == "__main__":
    sys.exit(main())
