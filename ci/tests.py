#!/usr/bin/env python3
"""Runs all tests: each file of engine tests in a process of its own, and the unit tests in a few.

The longest start first, as `tests/durations.json` has them. A further file starts whenever the
processors have nothing to do, so that tests that wait run beside those that compute. Files that
want the default images start when `test_main_job.py`, which builds them, has ended. mypy runs
beside them, for it takes one processor for most of a minute.

Only the standard library is used: it runs before anything is known of the virtual environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

PROJECT = Path(__file__).resolve().parents[1]
DURATIONS = PROJECT / "tests/durations.json"
RESULTS = PROJECT / "out/test-results"
MAIN_JOB = "tests/engines/test_main_job.py"
# The fixtures of tests/engines/conftest.py that stand on the images of the main job.
IMAGES = re.compile(r"\b(hpc_base|main_job|python_mpi|small_images|unpacked): ")
UNIT_PARTS = 4  # processes of unit tests: each starts in 2 s, and none is the last to end
SMALL_S = 15  # shorter files share a process
UNKNOWN_S = 60  # of a file that is not in the table yet
MOST_PER_CPU = 2  # jobs at once, where all of them wait
IDLE = 0.2  # of all processors: from here on there is room for another job
LOOK_S = 3.0
NEED_GB = 15  # in the builder's home, in out/ and, meanwhile, in /tmp
LIMIT_S = {False: 1800, True: 7200}
TYPES = "mypy"  # the job that is no pytest
TYPES_S = 60.0
INTERRUPTED = threading.Event()
NO_TESTS = 5  # pytest's exit status where all tests of a file were left out


@dataclass(frozen=True, kw_only=True)
class Job:
    """Test files that one pytest runs; none where mypy checks the types."""

    name: str
    files: tuple[str, ...]
    seconds: float
    wants_images: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test of a result file; `why` is the reason of a skipped one."""

    name: str
    seconds: float
    outcome: str
    why: str = ""


@dataclass(kw_only=True)
class Running:
    """A job that has been started."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    cpu_s: float = 0.0  # of all its processes, once it has ended

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def has_ended(self) -> bool:
        if self.process.returncode is None:
            ended, status, use = os.wait4(self.process.pid, os.WNOHANG)
            if ended:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = use.ru_utime + use.ru_stime
        return self.process.returncode is not None


# ---- What there is to run ----


def recorded() -> dict[str, float]:
    """Seconds by test file, as the last recorded run had them."""
    table: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return table


def test_files(folder: str) -> list[str]:
    """The test files of a folder, relative to the project."""
    return sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / folder).rglob("test_*.py"))


def all_jobs(seconds: dict[str, float]) -> list[Job]:
    """The types, and every test file in exactly one job; the longest first."""
    types = Job(name=TYPES, files=(), seconds=TYPES_S)
    jobs = [types, *unit_jobs(seconds), *engine_jobs(seconds)]
    return sorted(jobs, key=lambda job: (MAIN_JOB not in job.files, -job.seconds))


def unit_jobs(seconds: dict[str, float]) -> list[Job]:
    """The unit tests in parts that take about as long."""
    parts: list[list[str]] = [[] for _ in range(UNIT_PARTS)]
    sums = [0.0] * UNIT_PARTS
    for file in sorted(test_files("tests/unit"), key=lambda file: -seconds.get(file, 1.0)):
        least = sums.index(min(sums))
        parts[least].append(file)
        sums[least] += seconds.get(file, 1.0)
    return [
        Job(name=f"unit-{number}", files=tuple(sorted(part)), seconds=total)
        for number, (part, total) in enumerate(zip(parts, sums, strict=True), 1)
        if part
    ]


def engine_jobs(seconds: dict[str, float]) -> list[Job]:
    """A job a file; the short ones share two, one of which wants the default images."""
    jobs: list[Job] = []
    small: dict[bool, list[str]] = {False: [], True: []}
    for file in test_files("tests/engines"):
        takes = seconds.get(file, UNKNOWN_S)
        wants = bool(IMAGES.search((PROJECT / file).read_text())) and file != MAIN_JOB
        if takes < SMALL_S:
            small[wants].append(file)
        else:
            name = Path(file).stem.removeprefix("test_")
            jobs.append(Job(name=name, files=(file,), seconds=takes, wants_images=wants))
    for wants, files in small.items():
        total = sum(seconds.get(file, UNKNOWN_S) for file in files)
        name = "short-with-images" if wants else "short"
        if files:
            jobs.append(Job(name=name, files=tuple(files), seconds=total, wants_images=wants))
    return jobs


# ---- Running them ----


def command_of(job: Job, long: bool) -> list[str]:
    """A pytest of its own, which hears SIGINT though a shell's background jobs ignore it."""
    if job.name == TYPES:
        return ["env", "--default-signal=INT", str(PROJECT / ".venv/bin/mypy"), "--strict"]
    options = ["-p", "no:cacheprovider", "-o", "junit_duration_report=total", "-v"]
    chosen = ["-m", "long or campaign"] if long else []
    result = f"--junitxml={RESULTS / job.name}.xml"
    pytest = str(PROJECT / ".venv/bin/pytest")
    return ["env", "--default-signal=INT", pytest, *options, result, *chosen, *job.files]


def start(job: Job, long: bool) -> Running:
    environment = {**os.environ, "BUILD_IMAGES_TEST_RUN": str(os.getpid())}
    if long:
        environment["BUILD_IMAGES_LONG"] = "1"
    # Where no compiled module is kept, each of thousands of commands compiles all of them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log_of(job).open("wb") as log:
        process = subprocess.Popen(
            command_of(job, long),
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Running(job=job, process=process)


def log_of(job: Job) -> Path:
    return RESULTS / f"{job.name}.log"


class Processors:
    """How idle the processors are: over the last `LOOK_S` seconds, and not at all before that."""

    def __init__(self) -> None:
        self._last, self._when, self._idle = self._read(), time.monotonic(), 0.0

    @staticmethod
    def _read() -> tuple[int, int]:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        numbers = [int(text) for text in fields]
        free = numbers[3] + numbers[4]  # idle, or waiting for a disk
        if os.nice(0) == 0:
            free += numbers[1]  # what has a lower priority gives way
        return free, sum(numbers)

    def idle(self) -> float:
        """The idle part of their time, from 0 to 1."""
        if time.monotonic() - self._when >= LOOK_S:
            before, self._last, self._when = self._last, self._read(), time.monotonic()
            self._idle = (self._last[0] - before[0]) / max(1, self._last[1] - before[1])
        return self._idle

    def forget(self) -> None:
        """A job has started: what was idle before is taken."""
        self._last, self._when, self._idle = self._read(), time.monotonic(), 0.0


def run(jobs: Sequence[Job], long: bool) -> list[Job]:
    """Run the jobs; those that failed."""
    waiting, running, failed = list(jobs), list[Running](), list[Job]()
    processors = Processors()
    try:
        while waiting or running:
            if INTERRUPTED.is_set():  # not in between: a job that is being started would go on
                raise KeyboardInterrupt
            for ended in [started for started in running if has_ended(started, LIMIT_S[long])]:
                running.remove(ended)
                if not report(ended):
                    failed.append(ended.job)
            job = next_job(waiting, running)
            if job and has_room(len(running), processors.idle()):
                waiting.remove(job)
                running.append(start(job, long))
                processors.forget()
            else:
                time.sleep(0.1)
    finally:
        end(running)
    return failed


def cpus() -> int:
    return len(os.sched_getaffinity(0))


def has_room(running: int, idle: float) -> bool:
    """Whether another job may start beside those that run."""
    return running < cpus() or (running < MOST_PER_CPU * cpus() and idle >= IDLE)


def next_job(waiting: Sequence[Job], running: Iterable[Running]) -> Job | None:
    """The first that can start: images are there once the main job neither waits nor runs."""
    images = not any(
        MAIN_JOB in job.files for job in (*waiting, *(started.job for started in running))
    )
    return next((job for job in waiting if images or not job.wants_images), None)


def has_ended(started: Running, limit_s: float) -> bool:
    if started.seconds > limit_s:
        end([started])
    return started.has_ended()


def end(running: Iterable[Running]) -> None:
    """End them as Ctrl-C does, so that they end what their tests have started."""
    for started in running:
        if not started.has_ended():
            os.killpg(started.process.pid, signal.SIGINT)
    for started in running:
        try:
            started.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(started.process.pid, signal.SIGKILL)
            started.process.wait()


# ---- What came of it ----


def cases_of(job: Job) -> list[Case]:
    """The tests of a job's result file; none where pytest did not come to write it."""
    file = RESULTS / f"{job.name}.xml"
    if not file.exists():
        return []
    return [case_of(element) for element in ET.parse(file).iter("testcase")]  # ours


def case_of(element: ET.Element) -> Case:
    name = f"{element.get('classname', '')}::{element.get('name', '')}"
    seconds = float(element.get("time") or 0)
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (child := element.find(tag)) is not None:
            return Case(name=name, seconds=seconds, outcome=outcome, why=child.get("message", ""))
    return Case(name=name, seconds=seconds, outcome="passed")


def report(ended: Running) -> bool:
    """Print how a job ended, with all that it printed where it failed; whether it was well."""
    counts = Counter(case.outcome for case in cases_of(ended.job))
    good = ended.process.returncode in {0, NO_TESTS}
    empty = "no tests" if ended.job.files else "types"
    numbers = ", ".join(f"{counts[name]} {name}" for name in sorted(counts)) or empty
    took = f"{ended.seconds:6.1f} s, {ended.cpu_s:6.1f} s of a processor"
    print(f"{'ok  ' if good else 'FAIL'} {took}  {ended.job.name}: {numbers}")
    if not good:
        print(log_of(ended.job).read_text(errors="replace"))
    sys.stdout.flush()
    return good


def file_seconds(jobs: Iterable[Job]) -> dict[str, float]:
    """Seconds by test file, over all its tests."""
    sums: dict[str, float] = {}
    for job in jobs:
        for case in cases_of(job):
            file = file_of(case, job)
            sums[file] = sums.get(file, 0.0) + case.seconds
    return {file: round(seconds, 1) for file, seconds in sorted(sums.items())}


def file_of(case: Case, job: Job) -> str:
    """The file that a test is in: result files name its module, and a class below it."""
    module = case.name.partition("::")[0] + "."
    own = (f for f in job.files if module.startswith(f"{f[:-3].replace('/', '.')}."))
    return next(own, job.files[0])  # what failed before its tests were known has no module


def print_closing(jobs: Sequence[Job], failed: Sequence[Job]) -> None:
    cases = [case for job in jobs for case in cases_of(job)]
    print("\nthe ten slowest tests (all: out/test-results/durations.json):")
    for case in sorted(cases, key=lambda case: -case.seconds)[:10]:
        print(f"  {case.seconds:6.1f} s  {case.name}")
    for line in untried(cases):
        print(line)
    for job in failed:
        print(f"failed: {job.name}  (log: {log_of(job).relative_to(PROJECT)})")
    counts = Counter(case.outcome for case in cases)
    # A job that ended badly without a test that failed is counted, too.
    silent = sum(not any(case.outcome == "failed" for case in cases_of(job)) for job in failed)
    print(
        f"{counts['passed']} passed, {counts['failed'] + silent} failed, "
        f"{counts['skipped']} skipped"
    )


def untried(cases: Iterable[Case]) -> list[str]:
    """One line: how many tests were not tried on this machine, for which reasons."""
    reasons = Counter(case.why for case in cases if case.outcome == "skipped")
    if not reasons:
        return []
    listed = "; ".join(f"{count} x {why}" for why, count in reasons.most_common())
    return [f"not tried on this machine: {listed}"]


# ---- Before all ----


def free_gb() -> tuple[str, int]:
    """The builder's home, and the gigabytes that are free there."""
    program = "from builder.system.home import Home; print(Home.of_environment().path)"
    words = [str(PROJECT / ".venv/bin/python"), "-c", program]
    home = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    folder = Path(home.strip())
    while not folder.exists():
        folder = folder.parent
    return home.strip(), shutil.disk_usage(folder).free >> 30


def interrupt(*_: object) -> None:
    for again in (signal.SIGINT, signal.SIGTERM):  # asked again, it would not end the others
        signal.signal(again, signal.SIG_IGN)
    INTERRUPTED.set()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/tests.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="the campaigns, in full")
    parser.add_argument("--record", action="store_true", help="rewrite tests/durations.json")
    options = parser.parse_args(arguments)
    home, free = free_gb()
    if free < NEED_GB:
        text = f"ci/tests.py: {home}: {free} GB free, and all tests need {NEED_GB} GB"
        hint = "'build-images gc --free --unused-for 0' removes what earlier builds left there"
        print(f"{text}; nothing was begun\n  hint: {hint}", file=sys.stderr)
        return 4
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    jobs = [job for job in all_jobs(recorded()) if job.files or not options.long]
    try:
        failed = run(jobs, options.long)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    seconds = file_seconds(jobs)
    (RESULTS / "durations.json").write_text(json.dumps(seconds, indent=1) + "\n")
    if options.record:
        DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n")
    print_closing(jobs, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
