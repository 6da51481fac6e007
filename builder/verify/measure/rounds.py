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
from builder.verify.measure.measurement import BARE, OneRun, PlaceFacts, Row, Spread, Unreadable
from builder.verify.measure.programs import Program, Sizes
from builder.verify.measure.sampling import Sampler, busy_share
from builder.verify.runners import Runner

TIMEOUT_S = 900.0
_LOOK_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """All runs in their order, and how busy others kept the machine before each round (0 to 1)."""

    runs: tuple[OneRun, ...]
    others: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where programs run."""

    facts: PlaceFacts
    runner: Runner


def programs_in(runner: Runner, programs: Sequence[Program], *, mpi: bool) -> tuple[Program, ...]:
    """Those programs that an image holds; without an MPI, those that need none.

    Raises `StepFailed` when the image cannot be entered to look.
    """
    wanted = [one for one in programs if mpi or not one.needs_mpi]
    script = 'for one; do command -v "$one" >/dev/null && echo "$one"; done; exit 0'
    done = runner.run(["sh", "-c", script, "sh", *(one.path for one in wanted)], timeout_s=_LOOK_S)
    if done.timed_out:
        problem = f"no answer after {_LOOK_S:.0f} s{_waiting(done)}"
        raise StepFailed(f"looking for programs in the image: {problem}")
    if done.returncode:
        raise StepFailed(
            f"looking for programs in the image: exit status {done.returncode}",
            tail=(done.stderr or done.stdout).splitlines()[-TAIL_LINES:],
        )
    there = set(done.stdout.split())
    return tuple(one for one in wanted if one.path in there)


def run_rounds(
    places: Sequence[Place],
    programs: Sequence[Program],
    sizes: Sizes,
    *,
    launch: str,
    repeats: int,
    sampler: Callable[[], Sampler] = Sampler,
    others: Callable[[], float] = busy_share,
    say: Callable[[str], None] = lambda _text: None,
) -> Rounds:
    """Run everything. A program that failed in a place is not tried there again."""
    runs: list[OneRun] = []
    busy: list[float] = []
    broken: set[tuple[str, str]] = set()
    with sampler().gpus:  # asked by one process for as long as all rounds take
        for turn in range(repeats):
            first = turn % len(places)
            busy.append(round(others(), 4))
            for program in programs:
                say(f"round {turn + 1} of {repeats}: {program.name}")
                for place in (*places[first:], *places[:first]):
                    if (place.facts.name, program.name) in broken:
                        continue
                    one = _one(turn, place, program, program.script(sizes, launch), sampler())
                    runs.append(one)
                    if one.problem:
                        broken.add((one.place, one.program))
    return Rounds(runs=tuple(runs), others=tuple(busy))


def _one(turn: int, place: Place, program: Program, script: str, sampler: Sampler) -> OneRun:
    with sampler:
        done = place.runner.run(["sh", "-c", script], timeout_s=TIMEOUT_S)
    values, problem = _read(program, done)
    return OneRun(
        round=turn,
        place=place.facts.name,
        program=program.name,
        use=sampler.use,
        values=values,
        problem=problem,
    )


def _read(program: Program, done: Completed) -> tuple[Mapping[str, float], str]:
    if done.timed_out:
        return {}, f"no result after {TIMEOUT_S:.0f} s{_waiting(done)}"[:LONGEST]
    if done.returncode:
        said = last_line(done.stdout) or last_line(done.stderr)
        return {}, f"exit status {done.returncode}: {said}"[:LONGEST]
    try:
        return program.read(done.stdout), ""
    except Unreadable as error:
        return {}, str(error)[:LONGEST]


def _waiting(done: Completed) -> str:
    """What a command that had to be ended waited for."""
    return f"; it was waiting for: {', '.join(done.waiting)}" if done.waiting else ""


def rows_of(
    runs: Sequence[OneRun], programs: Sequence[Program], places: Sequence[str]
) -> tuple[Row, ...]:
    """Each quantity in each place, compared with bare."""
    rows = []
    for program in programs:
        mine = [one for one in runs if one.program == program.name]
        problems = {one.place: one.problem for one in mine if one.problem}
        for quantity in program.quantities:
            found = {
                place: {
                    one.round: one.values[quantity.name]
                    for one in mine
                    if one.place == place and quantity.name in one.values
                }
                for place in places
            }
            for place in places:
                ratios = _ratios(found[place], found[BARE], more=quantity.more_is_better)
                problem = problems.get(place, "")
                if not problem and place != BARE and not ratios:
                    problem = f"nothing to compare with: {problems.get(BARE, 'bare did not run')}"
                rows.append(
                    Row(
                        quantity=quantity,
                        program=program.name,
                        place=place,
                        values=Spread.of(list(found[place].values())) if found[place] else None,
                        ratio=Spread.of(ratios) if ratios and place != BARE else None,
                        problem=problem,
                    )
                )
    return tuple(rows)


def _ratios(here: Mapping[int, float], bare: Mapping[int, float], *, more: bool) -> list[float]:
    """Return how fast it is, as shares of bare's speed in the same round."""
    both = [(here[turn], bare[turn]) for turn in sorted(here.keys() & bare.keys())]
    return [one / other if more else other / one for one, other in both]
