"""Measure an image: run the programs in all places in turn, compare and record the results.

The load and the temperature of a machine change within minutes. So places are compared within a
round, in which a program runs in all places one after the other. Each round begins with another
place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from builder import facts
from builder.artifacts.manifests import write_manifest
from builder.build.run import Run, now
from builder.model import FAILED, FORMATS, PASSED, SKIPPED, Outcome
from builder.model.agreement import BENCH
from builder.model.errors import BadInput, StepFailed
from builder.model.manifest import Manifest
from builder.model.measurement import BARE, Measured, OneRun, PlaceFacts, Row, Spread, Use
from builder.model.package_indices import states_in
from builder.model.versions import split_mpi
from builder.system.process import TAIL_LINES, Completed
from builder.verify.container_output import LONGEST, last_line
from builder.verify.evidence import RunEvidence, write_evidence
from builder.verify.finished_images import OpenImage, check_runners, opened, subjects
from builder.verify.measure.programs import (
    EMULATED,
    MEASURED_S,
    PROGRAMS,
    RANKS,
    Benchmark,
    Sizes,
    Unreadable,
)
from builder.verify.measure.sampling import Gpus, Sampler, busy_share, gpu_sampler
from builder.verify.proof import emulator_of
from builder.verify.runners import DEFAULTS, RUNNERS
from builder.verify.runners.protocol import DATA_AT, Container, Runner
from builder.verify.runners.sites import BARE_FORMAT, bare_kind

_TIMEOUT_S = float(MEASURED_S)
_LOOK_S = 60.0


def measure(
    run: Run, folder: Path, *, runners: Sequence[str], repeats: int
) -> tuple[Measured, Manifest]:
    """Measure the image in an output folder; return the measurement and the updated manifest.

    The measurement is also written to the manifest and the evidence in the folder.

    Raises `BadInput` if the image has none of the programs, or no tarball for the bare run.
    """
    with opened(folder, run.tools) as image:
        check_runners(image.artifacts, runners)
        measured = _measured(run, image, runners=runners, repeats=repeats)
        return measured, record(run, image, folder, measured)


def _measured(run: Run, image: OpenImage, *, runners: Sequence[str], repeats: int) -> Measured:
    if BARE_FORMAT not in image.artifacts:
        raise BadInput(
            f"--bench: the image has no {BARE_FORMAT} tarball, which the bare run needs",
            hint="build it with --format charliecloud",
        )
    started = now()
    emulator = emulator_of(run, image.target.arch)
    family = facts.MPI_FAMILIES.get(split_mpi(image.record.cell.mpi)[0])
    sizes = EMULATED if emulator else Sizes()
    with contextlib.ExitStack() as stack:
        opening = _places(run, image, runners, stack)
        bare = next(opening)
        known = [program for program in PROGRAMS if not program.needs_gpu]
        programs = programs_in(bare[1], known, mpi=family is not None)
        if not programs:
            raise BadInput(
                f"--bench: {image.record.image} has none of the benchmark programs",
                hint=f"use recipe hpc-bench, or add {' or '.join(each.name for each in known)}; "
                "kits measure programs of GPUs",
            )
        places = [bare, *opening]
        runs, others = run_rounds(
            places,
            programs,
            sizes,
            launch=family.launch.format(ranks=RANKS) if family else "",
            repeats=repeats,
            gpus=gpu_sampler(run.tools.processes),
            say=lambda text: run.progress.step(image.target.identifier, text),
        )
    root = "the image's root file system, unpacked and entered by chroot"
    return Measured(
        image=image.record.image,
        arch=image.target.arch,
        host=run.host,
        emulator=emulator,
        bare=root if os.geteuid() == 0 else f"{root} in a user namespace",
        started=started,
        finished=now(),
        repeats=repeats,
        sizes=asdict(sizes),
        places=tuple(place for place, _ in places),
        rows=rows_of(runs, programs, [place.name for place, _ in places]),
        runs=runs,
        others=others,
    )


def _places(
    run: Run, image: OpenImage, runners: Sequence[str], stack: contextlib.ExitStack
) -> Iterator[Place]:
    """Open bare, then each format when it is needed; all share one folder for files."""
    tools, target = run.tools, image.target
    data = image.work / "data"
    data.mkdir()
    data.chmod(0o1777)  # each runner has its own ordinary user
    usual = [DEFAULTS[name] for name in FORMATS if name in image.artifacts]
    for kind in (bare_kind(target.environment), *(RUNNERS[name] for name in runners or usual)):
        run.progress.step(target.identifier, f"unpacking for {kind.name}")
        container = Container(
            artifact=image.artifacts[kind.format].path,
            work=image.work,
            tools=tools,
            directory=target.directory,
            binds={DATA_AT: data},
        )
        version = run.versions.get(kind.program) or tools.version(kind.program)
        name = BARE if kind.name == BARE else kind.run_name
        place = PlaceFacts(name=name, runner=kind.program, version=version)
        yield place, stack.enter_context(kind.open(container))


def record(run: Run, image: OpenImage, folder: Path, measured: Measured) -> Manifest:
    """Write the evidence of each format and the manifest; return the manifest.

    Formats that a busy machine could not judge have no evidence: that proves nothing about them.
    """
    files = [
        _write_evidence(run, image, folder, place, measured)
        for place in measured.places
        if place.name != BARE and measured.collapse_in(place.name).outcome != SKIPPED
    ]
    return write_manifest(folder, with_measurement(image.record, measured, files), files)


def with_measurement(manifest: Manifest, measured: Measured, evidence: Sequence[str]) -> Manifest:
    """Return a manifest in which a measurement replaces an older one.

    The outcome of the image does not change: a fast program may be wrong, and a slow one right.
    """
    return replace(
        manifest,
        evidence=tuple(sorted({*manifest.evidence, *evidence})),
        measured=measured.as_json(with_runs=False),
    )


def _write_evidence(
    run: Run, image: OpenImage, folder: Path, place: PlaceFacts, measured: Measured
) -> str:
    format_ = place.name.partition("-")[0]
    return write_evidence(
        folder,
        f"{place.name}{BENCH}",
        RunEvidence(
            identifier=measured.image,
            artifacts=subjects(image.record, image.artifacts[format_]),
            outcomes=[measured.collapse_in(place.name)],
            format=format_,
            runner=place.runner,
            runner_version=place.version,
            host=measured.host,
            started=measured.started,
            finished=measured.finished,
            emulator=measured.emulator,
            no_gpu="no measured program uses a GPU",
            tools=run.versions,
            indices=states_in(image.record.inputs),
        ),
    )


# ---- Rounds ----


Place = tuple[PlaceFacts, Runner]  # where programs run


def programs_in(
    runner: Runner, programs: Sequence[Benchmark], *, mpi: bool
) -> tuple[Benchmark, ...]:
    """Return the programs that an image has; without an MPI, only those that need none.

    Raises `StepFailed` if no command can be run in the image.
    """
    candidates = [program for program in programs if mpi or not program.needs_mpi]
    script = 'for one; do command -v "$one" >/dev/null && echo "$one"; done; exit 0'
    argv = ["sh", "-c", script, "sh", *(program.path for program in candidates)]
    completed = runner.run(argv, timeout_s=_LOOK_S)
    if completed.timed_out:
        problem = f"no answer after {_LOOK_S:.0f} s{completed.waited_for}"
        raise StepFailed(f"looking for programs in the image: {problem}")
    if completed.returncode:
        raise StepFailed(
            f"looking for programs in the image: exit status {completed.returncode}",
            tail=(completed.stderr or completed.stdout).splitlines()[-TAIL_LINES:],
        )
    paths = set(completed.stdout.split())
    return tuple(program for program in candidates if program.path in paths)


def run_rounds(
    places: Sequence[Place],
    programs: Sequence[Benchmark],
    sizes: Sizes,
    *,
    launch: str,
    repeats: int,
    gpus: Gpus,
    others: Callable[[], float] = busy_share,
    say: Callable[[str], None] = lambda _text: None,
) -> tuple[tuple[OneRun, ...], tuple[float, ...]]:
    """Return all runs in order, and the load of other processes before each round (0 to 1).

    A program that failed in a place is not run there again.
    """
    runs: list[OneRun] = []
    busy: list[float] = []
    broken: set[tuple[str, str]] = set()
    with gpus:  # one process samples them during all rounds
        for turn in range(repeats):
            first = turn % len(places)
            busy.append(round(others(), 4))
            for program in programs:
                say(f"round {turn + 1} of {repeats}: {program.name}")
                script = program.script(sizes, launch)
                for place, runner in (*places[first:], *places[:first]):
                    if (place.name, program.name) in broken:
                        continue
                    with Sampler(gpus) as sampler:
                        completed = runner.run(["sh", "-c", script], timeout_s=_TIMEOUT_S)
                    run = _run_of(completed, turn, place.name, program, sampler.use)
                    runs.append(run)
                    if run.problem:
                        broken.add((run.place, run.program))
    return tuple(runs), tuple(busy)


def _run_of(completed: Completed, turn: int, place: str, program: Benchmark, use: Use) -> OneRun:
    values: Mapping[str, float] = {}
    problem = ""
    if completed.timed_out:
        problem = f"no result after {_TIMEOUT_S:.0f} s{completed.waited_for}"
    elif completed.returncode:
        output = last_line(completed.stdout) or last_line(completed.stderr)
        problem = f"exit status {completed.returncode}: {output}"
    else:
        try:
            values = program.read(completed.stdout)
        except Unreadable as error:
            problem = str(error)
    return OneRun(
        round=turn,
        place=place,
        program=program.name,
        use=use,
        values=values,
        problem=problem[:LONGEST],
    )


def rows_of(
    runs: Sequence[OneRun], programs: Sequence[Benchmark], places: Sequence[str]
) -> tuple[Row, ...]:
    """Return each quantity in each place, compared with bare."""
    rows = []
    for program in programs:
        own = [run for run in runs if run.program == program.name]
        problems = {run.place: run.problem for run in own if run.problem}
        for quantity in program.quantities:
            values: dict[str, dict[int, float]] = {place: {} for place in places}
            for run in own:
                if run.place in values and quantity.name in run.values:
                    values[run.place][run.round] = run.values[quantity.name]
            for place in places:
                ratios = _ratios(values[place], values[BARE], more=quantity.more_is_better)
                problem = problems.get(place, "")
                if not problem and place != BARE and not ratios:
                    problem = f"nothing to compare with: {problems.get(BARE, 'bare did not run')}"
                row = Row(
                    quantity=quantity,
                    program=program.name,
                    place=place,
                    values=Spread.of([*values[place].values()]) if values[place] else None,
                    ratio=Spread.of(ratios) if ratios and place != BARE else None,
                    problem=problem,
                )
                rows.append(row)
    return tuple(rows)


def _ratios(own: Mapping[int, float], bare: Mapping[int, float], *, more: bool) -> list[float]:
    """Return the speed in each round as a share of bare's speed in the same round."""
    pairs = [(own[turn], bare[turn]) for turn in sorted(own.keys() & bare.keys())]
    return [value / other if more else other / value for value, other in pairs]


# ---- Within 1 % of bare ----

Ran = tuple[str, int, bool, Completed]  # the program, the round, whether bare, the end
_LEAST_RATIO = 0.99
_FEWEST_ROUNDS = 3  # for a decision
_NOT_SAMPLED = Use(seconds=0, cpu=0, memory_bytes=0)
_MEANINGS = {
    PASSED: "at most 1 % slower than bare in every round",
    FAILED: "more than 1 % slower than bare in every round",
    SKIPPED: "not decided, since the rounds disagree",
}
_TOO_FEW = f"not decided, since fewer than {_FEWEST_ROUNDS} rounds have both"


def against_bare(ran: Sequence[Ran], place: str) -> tuple[Outcome, ...]:
    """Return for each program whether it is at most 1 % slower in a place than bare.

    It passes if that is so in every round, and fails if it is so in none. Otherwise the noise is
    larger than the difference: then it is not decided, and skipped.
    """
    outcomes = []
    for program in PROGRAMS:
        runs = [
            _run_of(completed, turn, BARE if bare else place, program, _NOT_SAMPLED)
            for name, turn, bare, completed in ran
            if name == program.name
        ]
        rows = rows_of(runs, [program], (BARE, place)) if runs else ()
        if rows:  # of bare and of the place in turn
            problem = next((run.problem for run in runs if run.place == place and run.problem), "")
            outcomes.append(_compared(program.name, problem, rows[::2], rows[1::2]))
    return tuple(outcomes)


def _compared(program: str, ended: str, bare: Sequence[Row], own: Sequence[Row]) -> Outcome:
    """Compare the figures of a program; `ended` is how it ended badly in the container."""
    data = dict[str, object]()
    texts = dict[str, list[str]]()
    for row, other in zip(own, bare, strict=True):
        if row.ratio and row.values and other.values:
            ratio = row.ratio
            spread = f"{ratio.median:.3f} of bare ({ratio.lowest:.3f} to {ratio.highest:.3f})"
            text = f"{row.quantity.title}: {row.text}, {spread}"
            texts.setdefault(_decision(ratio), []).append(text)
            values = {"value": row.values.median, "bare": other.values.median}
            data[row.quantity.name] = {**values, "ratio": asdict(ratio)}
    if problem := bare[0].problem:
        outcome, reason = SKIPPED, f"not compared: bare: {problem}"
    elif ended and bare[0].values:
        outcome, reason = FAILED, f"it ran bare, and not in the container: {ended}"
    elif not texts:
        outcome, reason = SKIPPED, "not compared: in no round it ran both bare and in the container"
    else:
        outcome = next(each for each in (FAILED, SKIPPED, PASSED) if each in texts)
        is_few = any(row.ratio and row.ratio.count < _FEWEST_ROUNDS for row in own)
        meaning = _TOO_FEW if is_few else _MEANINGS[outcome]
        reason = f"{meaning}: {'; '.join(texts[outcome])}"
    check = f"{program}-against-bare"
    return Outcome(check=check, outcome=outcome, reason=reason[:LONGEST], data=data)


def _decision(ratio: Spread) -> str:
    if ratio.count < _FEWEST_ROUNDS or ratio.lowest < _LEAST_RATIO <= ratio.highest:
        return SKIPPED
    return PASSED if ratio.lowest >= _LEAST_RATIO else FAILED
