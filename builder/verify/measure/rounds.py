"""The run: programs in all places by turns, round after round, and what they found compared.

What a machine does besides, and how warm it is, changes within minutes. So places are compared
within a round, in which a program runs in all of them right after each other, and each round
begins with another place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from builder.model.errors import StepFailed
from builder.system.process import TAIL_LINES, Completed
from builder.verify.container_output import LONGEST, last_line
from builder.verify.measure.measurement import BARE, OneRun, PlaceFacts, Row, Spread
from builder.verify.measure.programs import Program, Sizes, Unreadable
from builder.verify.measure.sampling import Gpus, Sampler, busy_share
from builder.verify.runners import Runner

_TIMEOUT_S = 900.0
_LOOK_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """All runs in their order, and how busy others kept the machine before each round (0 to 1)."""

    runs: tuple[OneRun, ...]
    others: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place where programs run."""

    facts: PlaceFacts
    runner: Runner


def programs_in(runner: Runner, programs: Sequence[Program], *, mpi: bool) -> tuple[Program, ...]:
    """Return those programs that an image holds; without an MPI, those that need none.

    Raises `StepFailed` when the image cannot be entered to look.
    """
    candidates = [program for program in programs if mpi or not program.needs_mpi]
    script = 'for one; do command -v "$one" >/dev/null && echo "$one"; done; exit 0'
    argv = ["sh", "-c", script, "sh", *(program.path for program in candidates)]
    completed = runner.run(argv, timeout_s=_LOOK_S)
    if completed.timed_out:
        problem = f"no answer after {_LOOK_S:.0f} s{_waiting(completed)}"
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
    programs: Sequence[Program],
    sizes: Sizes,
    *,
    launch: str,
    repeats: int,
    gpus: Gpus,
    others: Callable[[], float] = busy_share,
    say: Callable[[str], None] = lambda _text: None,
) -> Rounds:
    """Run everything. A program that failed in a place is not tried there again."""
    runs: list[OneRun] = []
    busy: list[float] = []
    broken: set[tuple[str, str]] = set()
    with gpus:  # asked by one process for as long as all rounds take
        for turn in range(repeats):
            first = turn % len(places)
            busy.append(round(others(), 4))
            for program in programs:
                say(f"round {turn + 1} of {repeats}: {program.name}")
                script = program.script(sizes, launch)
                for place in (*places[first:], *places[:first]):
                    if (place.facts.name, program.name) in broken:
                        continue
                    run = _run(turn, place, program, script, Sampler(gpus))
                    runs.append(run)
                    if run.problem:
                        broken.add((run.place, run.program))
    return Rounds(runs=tuple(runs), others=tuple(busy))


def _run(turn: int, place: Place, program: Program, script: str, sampler: Sampler) -> OneRun:
    with sampler:
        completed = place.runner.run(["sh", "-c", script], timeout_s=_TIMEOUT_S)
    values: Mapping[str, float] = {}
    problem = ""
    if completed.timed_out:
        problem = f"no result after {_TIMEOUT_S:.0f} s{_waiting(completed)}"
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
        place=place.facts.name,
        program=program.name,
        use=sampler.use,
        values=values,
        problem=problem[:LONGEST],
    )


def _waiting(completed: Completed) -> str:
    """Return what a command that had to be ended waited for."""
    return f"; it was waiting for: {', '.join(completed.waiting)}" if completed.waiting else ""


def rows_of(
    runs: Sequence[OneRun], programs: Sequence[Program], places: Sequence[str]
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
    """Return how fast it is, as shares of bare's speed in the same round."""
    pairs = [(own[turn], bare[turn]) for turn in sorted(own.keys() & bare.keys())]
    return [value / other if more else other / value for value, other in pairs]
