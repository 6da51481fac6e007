"""Faults at random in runs on workers: every image is still made, once, and nothing is left.

    python bench/worker_faults.py [--rounds 200] [--seed 1] [--workers 8] [--first 0] [--keep]

Each round builds an image, every third round two that share a stage, which no home and no store
has, by `build-images --on`, on the workers of a real Dask scheduler, which belong to four machines,
through a docker-registry on loopback. Scheduler, workers and registry live across rounds; what a
fault killed is started again. Each kind of fault comes equally often, in an order by the seed;
every third round has two. A fault comes after an order that is chosen at random has begun. The
command, or the same one again where it was ended, has to end well, with verified images whose bytes
are those of a local build; within 15 s no process, container or mount may be left on a machine, and
nothing half-made in the output folder.

A round depends on the seed and its number alone: `--first 120` goes on after 120 rounds. The table
comes at the end, and after Ctrl-C. It has to be root, who mounts the small disk and names the
machines.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from command import PROJECT, build_images
from faulty_proxy import Fault, Proxy, proxy_before
from outside import outside_signals
from projects import copy_of_project
from real_registry import go_environment, real_registry
from small_base import add_small_base, store_small_base
from timing import machine
from worker_machines import (
    Machines,
    Relay,
    WorkerProcess,
    machines_at_work,
    processor_time_of,
)

from builder.artifacts import oci
from builder.artifacts.flatten import entries_of_layout
from builder.artifacts.tree import comparable, tree_digest
from builder.build.workspace import SPEC_FILES
from builder.model.manifest import FILES
from builder.system.descendants import descendants, end_tree
from builder.system.files import link_or_copy, remove_tree, unmount_below
from builder.system.home import Home
from builder.system.process import Processes

_FLAVOURS = ("runtime", "development")
_RECIPE = """\
recipe: {name}
version: "1.0"
about: known content, and a number that is new in each round
{more}runtime:
  - shell: {{commands: ["true ROUND-{number}; sleep 1; mkdir -p /opt/{name}; {writes}"]}}
"""
_STAGE = 'development: [{shell: {commands: ["echo ROUND-%s; sleep 1; seq 999 > /opt/stage"]}}]\n'
_RECIPE_PARTS = {
    "alone": "checks: [numbers]\ndevelopment: []\n",
    "core": _STAGE,
    "leaf": "parent: core\ndevelopment: []\n",
}
IMAGES = {  # by recipe and flavour; those of a recipe share a stage
    name: {
        "runtime": f"{name}-1.0-small-x86_64",
        "development": f"{name}-1.0-small-development-x86_64",
    }
    for name in _RECIPE_PARTS
}
_MACHINES = 4
_SMALL_DISK = 5 << 30  # in memory; a build asks for 3 GB, and takes some MB
_TTL_S = 5  # the scheduler removes a worker that was silent for so long
_ROUNDS_OF_MACHINES = 50  # then all homes are new: old rounds would fill the small disk
_ROUNDS_OF_TWO = 3  # each so many rounds, one has two faults
_LIMIT_S = 600.0  # of one command; a busy machine takes ten times as long
_GONE_S = 15.0  # for what a fault left behind to end
_ROUNDS_OF_BASE = 5  # each so many rounds, the store has no base at first
_STORE = "site/cache"  # in the registry
_BUSY_SHARE = 3 / 4  # how often a fault meets a worker that has an order
_ORDER = re.compile(r": .* on machine-\d")  # a line of progress: an order has begun
_ORDER_S = 2.0  # how long one takes

Recording = dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What rounds share: a project, its registry and the machines; `expected` are its images."""

    folder: Path
    project: Path
    registry: StoppableRegistry
    proxy: Proxy
    machines: Machines
    expected: Recording

    @property
    def login(self) -> Path:
        return self.machines.folder.parent / "login"


@dataclass(kw_only=True, slots=True)
class StoppableRegistry:
    """A registry that can be stopped, and started again at the same address."""

    host: str
    store: Path
    folder: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        if self.process.poll() is not None:
            words = ["docker-registry", "serve", str(self.folder / "config.yml")]
            with (self.folder / "registry.log").open("ab") as log:
                self.process = subprocess.Popen(words, stdout=log, stderr=log, env=go_environment())

    def keep_bases(self) -> None:
        """Keep a copy of the entries of bases alone, for `reset`; nobody is at work."""
        for tag in self.store.glob("docker/registry/v2/repositories/**/_manifests/tags/*"):
            if not tag.name.startswith("base-"):
                shutil.rmtree(tag)
        config = str(self.folder / "config.yml")
        words = ["docker-registry", "garbage-collect", "--delete-untagged", config]
        subprocess.run(words, check=True, capture_output=True)
        shutil.copytree(self.store / "docker", self._bases)

    def reset(self, *, bases: bool) -> None:
        """Remove all that is in it, but the bases if wanted; nobody is at work."""
        remove_tree(self.store / "docker")
        if bases:
            shutil.copytree(self._bases, self.store / "docker")

    @property
    def _bases(self) -> Path:
        return self.folder / "bases"


@contextlib.contextmanager
def stoppable_registry(folder: Path) -> Iterator[StoppableRegistry]:
    with real_registry(folder, in_memory=True) as running:
        registry = StoppableRegistry(
            host=running.host, store=running.store, folder=folder, process=running.process
        )
        try:
            yield registry
        finally:
            registry.stop()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFault:
    """A fault that comes some seconds after so many orders have begun."""

    kind: str
    orders: int
    seconds: float


@dataclass(kw_only=True, slots=True)
class FaultTrial:
    """One run of the command, or several of the same; faults come while it runs."""

    site: Site
    number: int
    chance: random.Random
    recipe: str
    flavours: tuple[str, ...]
    registry: str  # its address, or that of the proxy before it
    faults: list[str] = field(default_factory=list)  # by kind, those that came
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    commands: int = 0
    spoiled: bool = False  # a fault came for which an image may fail
    failed: bool = False  # and one did
    child: subprocess.Popen[bytes] | None = None
    signals: list[signal.Signals] = field(default_factory=list)  # that faults sent to the run
    _begin: float = 0.0
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _doubles: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _planned: list[PlannedFault] = field(default_factory=list)
    _awaited: dict[Path, set[int]] = field(default_factory=lambda: collections.defaultdict(set))
    _due: list[tuple[float, str, Callable[[], object]]] = field(default_factory=list)

    @property
    def images(self) -> tuple[str, ...]:
        return tuple(IMAGES[self.recipe][flavour] for flavour in self.flavours)

    @property
    def folder(self) -> Path:
        return self.site.folder / f"round-{self.number:04}"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, kinds: Sequence[str]) -> None:
        """Run the command through some faults, and look at what came of it."""
        self.folder.mkdir()
        write_recipes(self.site.project, self.number)
        self._begin = time.monotonic()
        for kind in kinds:
            orders = self.chance.randrange(1 + 2 * len(self.images))  # a stage, images, proofs
            seconds = self.chance.uniform(0.1, _ORDER_S)
            self._planned.append(PlannedFault(kind=kind, orders=orders, seconds=seconds))
        try:
            outs = self._outs()
        finally:
            for child in self._children:
                if child.poll() is None:  # Ctrl-C
                    end_tree(child.pid, grace_s=5)
        self._look_for_leftovers()
        for out in outs:
            self._look_at(out)
        for log in sorted(self.folder.glob("*.log")):
            if re.search("Traceback|unexpected", log.read_text(errors="replace")):
                self.wrong.append(f"a traceback: {log.name}")

    def _outs(self) -> list[Path]:
        """The output folders of the run and of its doubles, once all have ended."""
        try:
            status = self._command()
        finally:
            self._undo_faults()
        if status and self.spoiled:
            self.failed = True
            self.note(f"exit code {status}; again: {self._reason()}")
            status = self._command()
        if status:
            self.lost.append(f"exit code {status}")
        return [self.out, *self._outs_of_doubles()]

    def start_double(self) -> None:
        """Start the same command on another login machine, with another output folder."""
        number = len(self._doubles) + 1
        self._doubles.append(self._start(f"-{number}", f"double-{number}"))

    def run_later(self, seconds: float, text: str, action: Callable[[], object]) -> None:
        """Do something so many seconds from now, or when the command has ended."""
        self._add_due(time.monotonic() - self._begin + seconds, text, action)

    def random_worker(self) -> WorkerProcess:
        """A worker that lives; most often one that has an order."""
        alive = [worker for worker in self.site.machines.workers if worker.is_alive]
        busy = [worker for worker in alive if worker.is_busy]
        return self.chance.choice(busy if busy and self.chance.random() < _BUSY_SHARE else alive)

    def note(self, text: str) -> None:
        self.notes.append(f"{time.monotonic() - self._begin:5.1f} s: {text}")

    def _look_at(self, out: Path) -> None:
        """Note what is wrong with an output folder."""
        missing = [name for name in self.images if not manifest_of(out / name)]
        self.lost += [f"no {out.name}/{name}" for name in missing]
        if not missing:
            self.wrong += wrong_images(out, self.images, self.number, self.site.expected)
        partial_files = [path for path in out.rglob("*") if _is_half_made(path.name)]
        self.leftovers += [f"half-made: {path.relative_to(self.folder)}" for path in partial_files]

    def _outs_of_doubles(self) -> Iterator[Path]:
        """The output folders of the doubles, once they have ended."""
        for number, child in enumerate(self._doubles, 1):
            status = _status_of(child)
            if status and self.spoiled:
                self.failed = True
                status = _status_of(self._start(f"-{number}", f"double-{number}-again"))
            if status:
                self.lost.append(f"exit code {status} of double {number}")
            yield self.folder / f"out-{number}"

    def _inject(self, kind: str) -> None:
        self.faults.append(kind)
        FAULTS[kind](self)

    def _add_due(self, seconds: float, text: str, action: Callable[[], object]) -> None:
        self._due.append((self._begin + seconds, text, action))

    def _command(self) -> int:
        """Run the command to its end, and again where a fault ended it; the last exit code."""
        while True:
            ended_by = self._run_once()
            if ended_by is None:
                return self._exit_code()
            self.note(f"exit code {self._exit_code()} after {ended_by.name}; again")
            # `python -m` ends by the signal if it came while a dataclass was defined.
            if ended_by == signal.SIGINT and self._exit_code() not in {0, 130, -signal.SIGINT}:
                self.wrong.append(f"exit code {self._exit_code()} after Ctrl-C")
            if self._exit_code() == 0:
                return 0

    def _exit_code(self) -> int:
        assert self.child is not None
        return int(self.child.returncode)

    def _run_once(self) -> signal.Signals | None:
        """Run the command once; the signal that a fault sent it, if any."""
        self.commands += 1
        self.child = self._start("", f"command-{self.commands}")
        start, before = time.monotonic(), len(self.signals)
        while self.child.poll() is None:
            self._run_planned()
            self._run_due()
            self._replace_workers()
            if time.monotonic() - start > _LIMIT_S:
                self.lost.append(f"no end after {_LIMIT_S:.0f} s")
                self.child.send_signal(signal.SIGABRT)
                end_tree(self.child.pid, grace_s=5)
            time.sleep(0.05)
        signalled = self.signals[before:]
        return signalled[-1] if signalled else None

    def _run_planned(self) -> None:
        """Let the faults come whose orders have begun."""
        if self._planned:
            logs = self.folder.glob("command-*.log")
            begun = sum(len(_ORDER.findall(log.read_text(errors="replace"))) for log in logs)
            for fault in [fault for fault in self._planned if fault.orders <= begun]:
                self._planned.remove(fault)
                self.run_later(fault.seconds, fault.kind, partial(self._inject, fault.kind))

    def _run_due(self) -> None:
        for due in [due for due in sorted(self._due) if due[0] <= time.monotonic()]:
            self._due.remove(due)
            _, text, action = due
            self.note(text)
            action()

    def _reason(self) -> str:
        """Why the last command failed, as it says."""
        text = (self.folder / f"command-{self.commands}.log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if re.search("error:|✗ .*: failed", line)]
        return " | ".join(lines[-2:]) or text[-200:]

    def _replace_workers(self) -> None:
        """Have a new worker for each that ended, some seconds later."""
        for worker in self.site.machines.workers:
            if not worker.is_alive and worker.number not in self._awaited[worker.folder]:
                self._awaited[worker.folder].add(worker.number)
                self.note(f"worker {worker.process.pid} of {worker.machine} has ended")
                self.run_later(self.chance.uniform(0.5, 4), "a new worker", worker.start)

    def _undo_faults(self) -> None:
        """Undo the faults that came, and drop those that did not."""
        ends = [due for due in self._due if due[1].startswith(("end of ", "a new worker"))]
        self._due.clear()
        self._planned.clear()
        for _, text, action in sorted(ends):
            self.note(text)
            action()

    def _look_for_leftovers(self) -> None:
        deadline = time.monotonic() + _GONE_S
        while (
            leftovers := self.site.machines.leftover_processes()
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.leftovers += leftovers
        self.leftovers += [f"mount: {place}" for place in self.site.machines.leftover_mounts()]

    def _start(self, suffix: str, log: str) -> subprocess.Popen[bytes]:
        """Start the command, with a login machine and an output folder of that suffix."""
        words = [
            *("env", "--default-signal=INT", sys.executable, "-m", "builder"),
            *("--project", str(self.site.project), "--output", f"{self.out}{suffix}"),
            *("--recipe", self.recipe, *_options(self.flavours)),
            *("--on", self.site.machines.address, "--format=oci", "--no-lint"),
        ]
        environment = {
            **os.environ,
            "BUILD_IMAGES_HOME": f"{self.site.login}{suffix}",
            "BUILD_IMAGES_STORE": f"{self.registry}/{_STORE}",
            "PYTHONFAULTHANDLER": "1",  # shows where a run hangs
        }
        with (self.folder / f"{log}.log").open("wb") as sink:
            child = subprocess.Popen(
                words,
                cwd=PROJECT,
                env=environment,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C is for the bench, which ends all
            )
        self._children.append(child)
        return child


def _status_of(child: subprocess.Popen[bytes]) -> int:
    """The exit code of a command; -1 if it had to be ended."""
    try:
        return child.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        end_tree(child.pid, grace_s=5)
        child.wait()
        return -1


def _options(flavours: Iterable[str]) -> list[str]:
    return [f"--flavour={flavour}" for flavour in flavours]


def _is_half_made(name: str) -> bool:
    return "partial" in name or (name.startswith(".") and name not in SPEC_FILES)


# ---- The faults ----


def killed_worker(trial: FaultTrial) -> None:
    """A worker is killed; a new one takes its place, as with all that end."""
    worker = trial.random_worker()
    trial.note(f"SIGKILL: worker {worker.process.pid} of {worker.machine}")
    worker.send(signal.SIGKILL)
    worker.process.wait()


def stopped_worker(trial: FaultTrial) -> None:
    """A worker is stopped for some seconds, shorter or longer than the scheduler waits."""
    worker = trial.random_worker()
    process = worker.process
    seconds = trial.chance.uniform(2, 14)
    trial.note(f"SIGSTOP: worker {process.pid} of {worker.machine} for {seconds:.1f} s")
    worker.send(signal.SIGSTOP)
    trial.run_later(seconds, "end of SIGSTOP", partial(process.send_signal, signal.SIGCONT))


def cut_connection(trial: FaultTrial) -> None:
    """A worker's connection to the scheduler is reset."""
    _harm_connection(trial, "cut", Relay.cut, trial.chance.uniform(0.1, 4))


def silent_connection(trial: FaultTrial) -> None:
    """Nothing comes through between a worker and the scheduler for some seconds."""
    _harm_connection(trial, "silent", Relay.silence, trial.chance.uniform(2, 14))


def _harm_connection(
    trial: FaultTrial, how: str, harm: Callable[[Relay], object], seconds: float
) -> None:
    worker = trial.random_worker()
    trial.note(f"{how}: worker {worker.process.pid} of {worker.machine} for {seconds:.1f} s")
    harm(worker.relay)
    trial.run_later(seconds, f"end of {how}", worker.relay.restore)


def full_disk(trial: FaultTrial) -> None:
    """The disk of one machine is full for some seconds."""
    home = trial.site.machines.homes[-1]
    room, seconds = (
        trial.chance.randrange(4 << 20),
        trial.chance.uniform(2, 8),
    )
    trial.note(f"{room} bytes are free for {seconds:.1f} s")
    set_size(home, shutil.disk_usage(home).used + room)
    trial.run_later(seconds, "end of full disk", lambda: set_size(home, _SMALL_DISK))


def set_size(disk: Path, size: int) -> None:
    """Change the size of a file system in memory."""
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=False)


def busy_registry(trial: FaultTrial) -> None:
    """The registry answers 503 for some seconds."""
    trial.spoiled = True
    fault = Fault(status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "0"})
    trial.site.proxy.decide = lambda _request, _number: fault

    def end() -> None:
        trial.site.proxy.decide = lambda _request, _number: None

    trial.run_later(trial.chance.uniform(0.5, 6), "end of 503", end)


def stopped_registry(trial: FaultTrial) -> None:
    """The registry is killed, and starts again some seconds later."""
    trial.spoiled = True
    trial.site.registry.stop()
    trial.run_later(trial.chance.uniform(0.2, 6), "end of no registry", trial.site.registry.start)


def killed_run(trial: FaultTrial) -> None:
    """The run itself is killed."""
    _signal(trial, signal.SIGKILL)


def interrupted_run(trial: FaultTrial) -> None:
    """Ctrl-C."""
    _signal(trial, signal.SIGINT)


def doubled_run(trial: FaultTrial) -> None:
    """The same command runs beside the run, with the same store and the same workers."""
    trial.start_double()


def _signal(trial: FaultTrial, number: signal.Signals) -> None:
    assert trial.child is not None
    trial.signals.append(number)
    trial.child.send_signal(number)


def kinds_of_round(seed: int, number: int) -> tuple[str, ...]:
    """The kinds of the faults of a round, from 1 on: each comes once in a cycle of rounds."""
    kinds = [_kind_at(f"{seed}-first", number - 1)]
    if number % _ROUNDS_OF_TWO == 0:
        kinds.append(_kind_at(f"{seed}-second", number // _ROUNDS_OF_TWO - 1))
    return tuple(kinds)


def _kind_at(seed: str, position: int) -> str:
    cycle, at = divmod(position, len(FAULTS))
    return random.Random(f"{seed}-{cycle}").sample(sorted(FAULTS), len(FAULTS))[at]


FAULTS: dict[str, Callable[[FaultTrial], object]] = {
    "worker killed": killed_worker,
    "worker stopped": stopped_worker,
    "connection cut": cut_connection,
    "connection silent": silent_connection,
    "disk full": full_disk,
    "registry says 503": busy_registry,
    "registry away": stopped_registry,
    "run killed": killed_run,
    "run interrupted": interrupted_run,
    "run doubled": doubled_run,
}


# ---- Images ----


def write_recipes(project: Path, number: int) -> None:
    """Other instructions for the same files: the history of the images alone differs."""
    for recipe in (project / "recipes").glob("*.yaml"):
        recipe.unlink()
    for name, more in _RECIPE_PARTS.items():
        writes = "mkdir /opt/lean; seq 9 > /opt/lean/numbers" if "checks" in more else "true"
        text = _RECIPE.format(
            name=name,
            more=more.replace("%s", _padded(number)),
            number=_padded(number),
            writes=f"seq 9999 > /opt/{name}/numbers; {writes}",
        )
        (project / f"recipes/{name}.yaml").write_text(text)


def _padded(number: int) -> str:
    """A number as recipes have it: of one width, so that no size depends on it."""
    return f"{number:04}"


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest in an image's folder; empty where there is none."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        return {}
    return manifest


def reference_digests(out: Path, recipes: Iterable[str]) -> Recording:
    """The digests of the images of round 0, which were not verified: no manifest has the trees."""
    names = [name for recipe in recipes for name in IMAGES[recipe].values()]
    layouts = {name: oci.read_layout(out / name / FILES["oci"]) for name in names}
    return {
        name: {
            "tree": tree_digest(comparable(entries_of_layout(layout))),
            "oci": layout.digest.removeprefix("sha256:"),
        }
        for name, layout in layouts.items()
    }


def digests(out: Path, images: Iterable[str], number: int) -> Recording:
    """The digests of each image's files and tree; the layout's as if its round were number 0."""
    recording = {}
    for name in images:
        layout = oci.read_layout(out / name / FILES["oci"])
        recording[name] = {
            "tree": str(manifest_of(out / name)["tree_digest"]),
            "oci": _as_number_0(layout, number),
        }
    return recording


def _as_number_0(layout: oci.Layout, number: int) -> str:
    """The digest of a layout as if its history had the number 0: nothing else of it is changed."""
    manifest = oci.blob_path(layout.path, layout.digest).read_bytes()
    name = json.loads(manifest)["config"]["digest"]
    config = oci.blob_path(layout.path, name).read_bytes()
    changed = config.replace(f"ROUND-{_padded(number)}".encode(), f"ROUND-{_padded(0)}".encode())
    digest = hashlib.sha256(changed).hexdigest()
    return hashlib.sha256(manifest.replace(name[7:].encode(), digest.encode())).hexdigest()


def wrong_images(out: Path, images: Sequence[str], number: int, expected: Recording) -> list[str]:
    """What is wrong with the images of an output folder, a line for each thing."""
    wrong = []
    for name in images:
        manifest, folder = manifest_of(out / name), out / name
        if manifest["outcome"] != "verified":
            wrong.append(f"{name}: {manifest['outcome']}")
        artifacts = {kind: artifact["digest"] for kind, artifact in manifest["artifacts"].items()}
        files = {"oci": oci.read_layout(folder / FILES["oci"]).digest}
        if artifacts != files:
            wrong.append(f"{name}: the manifest has {artifacts}, the files are {files}")
        wrong += [f"{name}: {fault}" for fault in _wrong_evidence(folder, manifest)]
    for name, recorded in digests(out, images, number).items():
        if recorded != expected[name]:
            wrong.append(f"{name}: {recorded}, and not {expected[name]}")
    return wrong


def _wrong_evidence(folder: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """The evidence that is of other files than those of the manifest, or that is not listed."""
    known = {"tree": manifest["tree_digest"]}
    known |= {kind: artifact["digest"] for kind, artifact in manifest["artifacts"].items()}
    evidence = sorted((folder / "evidence").glob("*.json"))
    listed = sorted(manifest["evidence"])
    if [path.relative_to(folder).as_posix() for path in evidence] != listed:
        yield f"the manifest lists {listed}, there is {[path.name for path in evidence]}"
    for path in evidence:
        for subject in json.loads(path.read_text())["subject"]:
            name = subject["name"].partition("/")[2]
            if f"sha256:{subject['digest']['sha256']}" != known.get(name):
                yield f"{path.name} is of other files"


# ---- The machines ----


@contextlib.contextmanager
def site_of(
    folder: Path, registry: StoppableRegistry, reference: Reference, workers: int
) -> Iterator[Site]:
    """Machines with new homes, the last one on a small disk."""
    with contextlib.ExitStack() as ends:
        project = copy_of_project(folder / "project")
        add_small_base(project)
        ends.callback(unmount_below, folder, Processes())  # the disk, and what a fault left
        homes = [folder / f"home-{number + 1}" for number in range(_MACHINES)]
        tools = Home.of_environment().path / "tools"
        for home in (*homes, folder / "login"):
            home.mkdir()
            if home == homes[-1]:
                small = ("mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK},mode=755")
                subprocess.run([*small, "tmpfs", home], check=True)
            (home / "tools").symlink_to(tools)
        for home in homes:
            shutil.copytree(reference.bases, home / "bases", copy_function=link_or_copy)
        proxy = ends.enter_context(proxy_before(registry.host))
        place = folder / "cluster"
        machines = ends.enter_context(machines_at_work(place, homes, workers=workers, ttl_s=_TTL_S))
        yield Site(
            folder=folder,
            project=project,
            registry=registry,
            proxy=proxy,
            machines=machines,
            expected=reference.digests,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The digests of the images of round 0, and the folder of the base that they are built on."""

    digests: Recording
    bases: Path


def local_build(folder: Path, registry: StoppableRegistry, recipes: Sequence[str]) -> Reference:
    """Build images on this machine alone; their base alone stays in the registry."""
    folder.mkdir()
    project = copy_of_project(folder / "project")
    add_small_base(project)
    write_recipes(project, 0)
    home = folder / "home"
    home.mkdir()
    (home / "tools").symlink_to(Home.of_environment().path / "tools")
    store_small_base(project, home)
    env = {"BUILD_IMAGES_HOME": str(home), "BUILD_IMAGES_STORE": f"{registry.host}/{_STORE}"}
    words = ["--project", project, "--format=oci", "--no-verify", "--no-lint"]
    words += [f"--recipe={recipe}" for recipe in recipes]
    status, output = build_images(*words, *_options(_FLAVOURS), env=env)
    if status:
        raise RuntimeError(output)
    registry.keep_bases()
    return Reference(digests=reference_digests(project / "out", recipes), bases=home / "bases")


@dataclass(kw_only=True, slots=True)
class Campaign:
    """What came of some rounds."""

    rounds: int = 0
    commands: int = 0
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: int = 0  # rounds in which an image failed for a fault of the registry
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    @property
    def is_wrong(self) -> bool:
        return bool(self.wrong or self.lost or self.leftovers)


def campaign(
    folder: Path, result: Campaign, *, rounds: int, seed: int, workers: int, first: int = 0
) -> None:
    """Run rounds with faults, and add to the result what came of each."""
    with contextlib.ExitStack() as ends:
        signals = ends.enter_context(outside_signals())
        registry = ends.enter_context(stoppable_registry(folder / "registry"))
        numbers = range(first + 1, first + 1 + rounds)
        recipes = {_recipe_of_round(seed, number) for number in numbers}
        reference = local_build(folder / "local", registry, sorted(recipes))
        for at in range(0, rounds, _ROUNDS_OF_MACHINES):
            place = folder / f"machines-{at // _ROUNDS_OF_MACHINES + 1}"
            place.mkdir()
            with site_of(place, registry, reference, workers) as site:
                for number in numbers[at : at + _ROUNDS_OF_MACHINES]:
                    _run_round(site, number, seed, result)
                    signals.check()
            remove_tree(place)


def _run_round(site: Site, number: int, seed: int, result: Campaign) -> None:
    """Run a round; workers that the round before started join meanwhile."""
    chance = random.Random(f"{seed}-{number}")
    kinds = kinds_of_round(seed, number)
    trial = FaultTrial(
        site=site,
        number=number,
        chance=chance,
        recipe=_recipe_of_round(seed, number),
        flavours=_FLAVOURS if len(kinds) > 1 else (chance.choice(_FLAVOURS),),
        registry=site.proxy.host if "registry says 503" in kinds else site.registry.host,
    )
    site.registry.reset(bases=number % _ROUNDS_OF_BASE != 0)
    joining = [worker for worker in site.machines.workers if not worker.is_ready]
    start, used = time.monotonic(), processor_time()
    trial.run(kinds)
    site.machines.wait_for([worker for worker in joining if worker.is_alive])
    _count(trial, f"{seed}-{number}", time.monotonic() - start, processor_time() - used, result)
    site.registry.start()
    site.machines.start_missing()
    shutil.rmtree(trial.folder, ignore_errors=True)


def _recipe_of_round(seed: int, number: int) -> str:
    return random.Random(f"{seed}-{number}-recipe").choice(sorted(IMAGES))


def processor_time() -> float:
    """Seconds of a processor that this process took so far, with all that it started."""
    own, ended = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    alive = sum(map(processor_time_of, descendants(os.getpid())))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + alive


def _count(
    trial: FaultTrial, name: str, seconds: float, processor_s: float, result: Campaign
) -> None:
    """Add a round to the result, and print it."""
    result.rounds += 1
    result.commands += trial.commands
    result.faults.update(trial.faults)
    result.failed += trial.failed
    result.seconds.append(seconds)
    result.processor_s.append(processor_s)
    for lines, total in (
        (trial.wrong, result.wrong),
        (trial.lost, result.lost),
        (trial.leftovers, result.leftovers),
    ):
        total += [f"{name}: {line}" for line in lines]
    came = ", ".join(trial.faults) or "no fault in time"
    took = f"{seconds:.1f} s, {processor_s:.1f} s of a processor, {trial.commands} commands"
    print(f"{name}: {came}: {took}", flush=True)
    if trial.failed:
        print(*(f"  {note}" for note in trial.notes if "again: " in note), sep="\n", flush=True)
    if trial.wrong or trial.lost or trial.leftovers:
        lines = [*trial.notes, *trial.wrong, *trial.lost, *trial.leftovers]
        print(*lines, f"logs: {_copy_logs(trial)}", sep="\n  ", flush=True)


def _copy_logs(trial: FaultTrial) -> Path:
    """A copy of the logs of a round, in a folder that stays."""
    target = Path(tempfile.mkdtemp(prefix=f"worker-faults-{trial.number}-"))
    (target / "notes").write_text(
        "\n".join([*trial.notes, *trial.wrong, *trial.lost, *trial.leftovers, ""])
    )
    for log in (*trial.folder.rglob("*.log"), *trial.folder.rglob("manifest.json")):
        shutil.copy(log, target / "-".join(log.relative_to(trial.folder).parts))
    for log in trial.site.machines.folder.rglob("*.log"):
        shutil.copy(log, target / "-".join(log.relative_to(trial.site.machines.folder).parts))
    return target


def main() -> int:
    """Inject faults, and count what came of it; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="rounds that are left out")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the machines")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))  # workers are to end, too
    print(machine())
    # Containers work in homes as an ordinary user does.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="worker-faults-"))
    folder.chmod(0o755)
    result = Campaign()
    try:
        campaign(
            folder,
            result,
            rounds=options.rounds,
            seed=options.seed,
            workers=options.workers,
            first=options.first,
        )
    except (KeyboardInterrupt, SystemExit) as end:
        print(f"ended early: {end or 'Ctrl-C'}")
    finally:
        print_result(result, options.seed)
        if result.rounds < options.rounds:
            print(f"--first {options.first + result.rounds} goes on from here", flush=True)
        if options.keep:
            print(f"kept: {folder}")
        else:
            remove_tree(folder)
    return 1 if result.is_wrong or result.rounds < options.rounds else 0


def print_result(result: Campaign, seed: int) -> None:
    """Print the table of a campaign."""
    median_s, processor_s = (
        statistics.median(values or [0]) for values in (result.seconds, result.processor_s)
    )
    print(
        f"{result.rounds} rounds, seed {seed}: {result.commands} commands; "
        f"a round takes {median_s:.1f} s, {processor_s:.1f} s of a processor"
    )
    for kind in FAULTS:
        print(f"{result.faults[kind]:5}  {kind}")
    print(f"{result.failed:5}  rounds in which a command failed while the registry was away")
    print(f"{len(result.wrong):5}  wrong results", *result.wrong, sep="\n       ")
    print(f"{len(result.lost):5}  lost images", *result.lost, sep="\n       ")
    print(f"{len(result.leftovers):5}  left behind", *result.leftovers, sep="\n       ")


if __name__ == "__main__":
    sys.exit(main())
