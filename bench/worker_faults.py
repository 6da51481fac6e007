"""Faults at random in runs on workers: every image is still made, once, and nothing is left.

    python bench/worker_faults.py [--rounds 200] [--seed 1] [--workers 8] [--first 0] [--keep]

Each round builds four images that no home and no store has, by `build-images --all --on`, on the
workers of a real Dask scheduler, which belong to four machines, through a docker-registry on
loopback. One or two faults come at random moments. The command, or the same one again where it was
ended, has to end well, with verified images whose bytes are those of a local build; after 15 s no
process, container or mount may be left on a machine, and nothing half-made in the output folder.
It has to be root, who mounts the small disk and names the machines.
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
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from command import PROJECT, build_images
from faulty_proxy import Fault, Proxy, proxy_before
from outside import outside_signals
from projects import copy_of_project
from real_registry import real_registry
from small_base import add_small_base, store_small_base
from timing import machine
from worker_machines import Machines, Relay, WorkerProcess, machines_at_work

from builder.artifacts import oci
from builder.build.workspace import FILES, SPEC_FILES
from builder.system.descendants import end_tree
from builder.system.files import remove_tree, unmount_below
from builder.system.home import Home
from builder.system.process import Processes

IMAGES = tuple(f"{name}-1.0-small-x86_64" for name in ("alone", "core", "leaf", "twig"))
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
    "twig": "parent: core\ndevelopment: []\n",
}
_MACHINES = 4
_SMALL_DISK = 5 << 30  # in memory; a build asks for 3 GB, and takes some MB
_TTL_S = 5  # the scheduler removes a worker that was silent for so long
_ROUNDS_OF_MACHINES = 10  # then all homes are new: old rounds would fill the small disk
_LIMIT_S = 150.0  # of one command
_GONE_S = 15.0  # for what a fault left behind to end
_BUSY_SHARE = 3 / 4  # how often a fault meets a worker that has an order

Recording = dict[str, dict[str, str]]


@dataclass(kw_only=True, slots=True)
class Site:
    """What rounds share: a project, its registry and the machines; `expected` are its images."""

    folder: Path
    project: Path
    registry: StoppableRegistry
    proxy: Proxy
    machines: Machines
    expected: Recording = field(default_factory=dict)

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
                self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def empty(self) -> None:
        """Remove all that is in it; nobody is at work."""
        shutil.rmtree(self.store / "docker", ignore_errors=True)


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


@dataclass(kw_only=True, slots=True)
class FaultTrial:
    """One run of the command, or several of the same; faults come while it runs."""

    site: Site
    number: int
    chance: random.Random
    expected_s: float
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
    _awaited: dict[Path, set[int]] = field(default_factory=lambda: collections.defaultdict(set))
    _due: list[tuple[float, str, Callable[[], object]]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.site.folder / f"round-{self.number:04}"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, kinds: Mapping[str, Callable[[FaultTrial], object]]) -> None:
        """Run the command through some faults, and look at what came of it."""
        self.folder.mkdir()
        write_recipes(self.site.project, self.number)
        self._begin = time.monotonic()
        for kind in kinds:
            at = self.chance.uniform(0.2, self.expected_s)
            self._add_due(at, kind, partial(self._inject, kind, kinds[kind]))
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
        self.lost += [f"no {name}" for name in IMAGES if not manifest_of(self.out / name)]
        self._look_for_leftovers()
        if not self.lost:
            self.wrong += wrong_images(self.out, self.number, self.site.expected)
        partial_files = [path for path in self.out.rglob("*") if _is_half_made(path.name)]
        self.leftovers += [f"half-made: {path.relative_to(self.out)}" for path in partial_files]

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

    def _inject(self, kind: str, fault: Callable[[FaultTrial], object]) -> None:
        self.faults.append(kind)
        fault(self)

    def _add_due(self, seconds: float, text: str, action: Callable[[], object]) -> None:
        self._due.append((self._begin + seconds, text, action))

    def _command(self) -> int:
        """Run the command to its end, and again where a fault ended it; the last exit code."""
        while True:
            ended_by = self._run_once()
            if ended_by is None:
                return self._exit_code()
            self.note(f"exit code {self._exit_code()} after {ended_by.name}; again")
            if ended_by == signal.SIGINT and self._exit_code() not in {0, 130}:
                self.wrong.append(f"exit code {self._exit_code()} after Ctrl-C")
            if self._exit_code() == 0:
                return 0

    def _exit_code(self) -> int:
        assert self.child is not None
        return int(self.child.returncode)

    def _run_once(self) -> signal.Signals | None:
        """Run the command once; the signal that a fault sent it, if any."""
        self.commands += 1
        log = self.folder / f"command-{self.commands}.log"
        with log.open("wb") as sink:
            self.child = subprocess.Popen(
                self._words(), cwd=PROJECT, env=self._environment(), stdout=sink, stderr=sink
            )
        start, before = time.monotonic(), len(self.signals)
        while self.child.poll() is None:
            self._run_due()
            self._replace_workers()
            if time.monotonic() - start > _LIMIT_S:
                self.lost.append(f"no end after {_LIMIT_S:.0f} s")
                self.child.send_signal(signal.SIGABRT)
                end_tree(self.child.pid, grace_s=5)
            time.sleep(0.02)
        signalled = self.signals[before:]
        text = log.read_text(errors="replace")
        if "Traceback" in text or "unexpected" in text:
            self.wrong.append(f"a traceback: {log.name}")
        return signalled[-1] if signalled else None

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

    def _words(self) -> list[str]:
        return [
            *("env", "--default-signal=INT", sys.executable, "-m", "builder"),
            *("--project", str(self.site.project), "--all", "--output", str(self.out)),
            *("--on", self.site.machines.address),
            "--format=oci",
        ]

    def _environment(self) -> dict[str, str]:
        store = f"{self.site.proxy.host}/round-{self.number:04}/cache"
        return {
            **os.environ,
            "BUILD_IMAGES_HOME": str(self.site.login),
            "BUILD_IMAGES_STORE": store,
            "PYTHONFAULTHANDLER": "1",  # shows where a run hangs
        }


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
        trial.chance.uniform(2, trial.expected_s),
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

    trial.run_later(trial.chance.uniform(0.5, 8), "end of 503", end)


def stopped_registry(trial: FaultTrial) -> None:
    """The registry is killed, and starts again some seconds later."""
    trial.spoiled = True
    trial.site.registry.stop()
    trial.run_later(trial.chance.uniform(0.2, 8), "end of no registry", trial.site.registry.start)


def killed_run(trial: FaultTrial) -> None:
    """The run itself is killed."""
    _signal(trial, signal.SIGKILL)


def interrupted_run(trial: FaultTrial) -> None:
    """Ctrl-C."""
    _signal(trial, signal.SIGINT)


def _signal(trial: FaultTrial, number: signal.Signals) -> None:
    assert trial.child is not None
    trial.signals.append(number)
    trial.child.send_signal(number)


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


def digests(out: Path, number: int) -> Recording:
    """The digests of each image's files and tree; the layout's as if its round were number 0."""
    recording = {}
    for name in IMAGES:
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


def wrong_images(out: Path, number: int, expected: Recording) -> list[str]:
    """What is wrong with the images of an output folder, a line for each thing."""
    wrong = []
    for name in IMAGES:
        manifest, folder = manifest_of(out / name), out / name
        if manifest["outcome"] != "verified":
            wrong.append(f"{name}: {manifest['outcome']}")
        artifacts = {kind: artifact["digest"] for kind, artifact in manifest["artifacts"].items()}
        files = {"oci": oci.read_layout(folder / FILES["oci"]).digest}
        if artifacts != files:
            wrong.append(f"{name}: the manifest has {artifacts}, the files are {files}")
        wrong += [f"{name}: {fault}" for fault in _wrong_evidence(folder, manifest)]
    for name, recorded in digests(out, number).items():
        if recorded != expected.get(name, recorded):
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
def site_of(folder: Path, registry: StoppableRegistry, workers: int) -> Iterator[Site]:
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
            store_small_base(project, home)
        proxy = ends.enter_context(proxy_before(registry.host))
        place = folder / "cluster"
        machines = ends.enter_context(machines_at_work(place, homes, workers=workers, ttl_s=_TTL_S))
        yield Site(
            folder=folder,
            project=project,
            registry=registry,
            proxy=proxy,
            machines=machines,
        )


def local_build(folder: Path) -> Recording:
    """The digests of the images of round 0, built on this machine alone."""
    project = copy_of_project(folder / "project")
    add_small_base(project)
    write_recipes(project, 0)
    home = folder / "home"
    home.mkdir()
    (home / "tools").symlink_to(Home.of_environment().path / "tools")
    store_small_base(project, home)
    env = {"BUILD_IMAGES_HOME": str(home)}
    status, output = build_images("--project", project, "--all", "--format=oci", env=env)
    if status:
        raise RuntimeError(output)
    return digests(project / "out", 0)


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

    @property
    def is_wrong(self) -> bool:
        return bool(self.wrong or self.lost or self.leftovers)


def campaign(folder: Path, *, rounds: int, seed: int, workers: int, first: int = 0) -> Campaign:
    """Run rounds, each with one or two faults of kinds that are chosen at random."""
    result = Campaign()
    with contextlib.ExitStack() as ends:
        signals = ends.enter_context(outside_signals())
        registry = ends.enter_context(stoppable_registry(folder / "registry"))
        expected = local_build(_new_folder(folder / "local"))
        numbers = range(first + 1, first + 1 + rounds)
        for at in range(0, rounds, _ROUNDS_OF_MACHINES):
            place = _new_folder(folder / f"machines-{at // _ROUNDS_OF_MACHINES + 1}")
            with site_of(place, registry, workers) as site:
                site.expected = expected
                expected_s = _seconds_without_faults(site)
                for number in numbers[at : at + _ROUNDS_OF_MACHINES]:
                    _run_round(site, number, seed, expected_s, result)
                    signals.check()
            remove_tree(place)
    return result


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _seconds_without_faults(site: Site) -> float:
    """A round without a fault: how long it takes."""
    trial = FaultTrial(site=site, number=0, chance=random.Random(0), expected_s=0)
    start = time.monotonic()
    trial.run({})
    if trial.wrong or trial.lost or trial.leftovers:
        raise RuntimeError(
            f"without a fault: {trial.wrong} {trial.lost} {trial.leftovers}: {trial.folder}"
        )
    return time.monotonic() - start


def _run_round(site: Site, number: int, seed: int, expected_s: float, result: Campaign) -> None:
    chance = random.Random(f"{seed}-{number}")
    kinds = chance.sample(sorted(FAULTS), chance.choice((1, 2)))
    trial = FaultTrial(site=site, number=number, chance=chance, expected_s=expected_s)
    start = time.monotonic()
    trial.run({kind: FAULTS[kind] for kind in kinds})
    seconds = time.monotonic() - start
    result.rounds += 1
    result.commands += trial.commands
    result.faults.update(trial.faults)
    result.failed += trial.failed
    result.seconds.append(seconds)
    name = f"{seed}-{number}"
    for lines, total in (
        (trial.wrong, result.wrong),
        (trial.lost, result.lost),
        (trial.leftovers, result.leftovers),
    ):
        total += [f"{name}: {line}" for line in lines]
    came = ", ".join(trial.faults) or "no fault in time"
    print(f"{name}: {came}: {seconds:.0f} s, {trial.commands} commands", flush=True)
    if trial.failed:
        print(*(f"  {note}" for note in trial.notes if "again: " in note), sep="\n", flush=True)
    if trial.wrong or trial.lost or trial.leftovers:
        print(
            *trial.notes,
            *trial.wrong,
            *trial.lost,
            *trial.leftovers,
            sep="\n  ",
            flush=True,
        )
        print(f"  logs: {_copy_logs(trial)}", flush=True)
    site.registry.start()
    site.machines.start_missing()
    site.registry.empty()
    shutil.rmtree(trial.folder, ignore_errors=True)


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
    try:
        result = campaign(
            folder,
            rounds=options.rounds,
            seed=options.seed,
            workers=options.workers,
            first=options.first,
        )
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            remove_tree(folder)
    print_result(result, options.seed)
    return 1 if result.is_wrong else 0


def print_result(result: Campaign, seed: int) -> None:
    """Print the table of a campaign."""
    median = statistics.median(result.seconds) if result.seconds else 0
    print(
        f"{result.rounds} rounds, seed {seed}: {result.commands} commands, {median:.0f} s a round"
    )
    for kind in FAULTS:
        print(f"{result.faults[kind]:5}  {kind}")
    print(f"{result.failed:5}  rounds in which a command failed while the registry was away")
    print(f"{len(result.wrong):5}  wrong results", *result.wrong, sep="\n       ")
    print(f"{len(result.lost):5}  lost images", *result.lost, sep="\n       ")
    print(f"{len(result.leftovers):5}  left behind", *result.leftovers, sep="\n       ")


if __name__ == "__main__":
    sys.exit(main())
