"""A measurement: its quantities, runs, results, and the machine that it ran on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from builder.model.cells import FAILED, PASSED, SKIPPED
from builder.model.manifest import Outcome
from builder.model.records import plain, write

BARE = "bare"
_COLLAPSE_CHECK = "collapse"
_BUSY = 0.2  # with so much of its cores taken by others, a machine compares nothing
FLOOR = 0.5  # below half of bare, something is broken; above it, figures are for people to judge


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """This machine: `arch` as `uname -m` says.

    `driver` is the version of NVIDIA's kernel module, `loaded` if it does not say, and empty where
    there is none; `gpus` are the models of its GPUs, one an entry.
    """

    arch: str
    kernel: str
    cpu: str
    cores: int
    os: str
    driver: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One figure that a program finds.

    `name` is for programs to read, `unit` for people. `metric` is the name that Prometheus knows
    it by, which ends with its base unit, and `scale` what a value is multiplied by to be in that:
    https://prometheus.io/docs/practices/naming/#base-units
    """

    name: str
    title: str
    unit: str
    metric: str
    scale: float
    more_is_better: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """The use of a GPU: `busy` is the share of the time, 0 to 1. Unknown values are None."""

    index: int
    busy: float | None = None
    memory_bytes: int | None = None
    power_w: float | None = None

    def __str__(self) -> str:
        busy = "-" if self.busy is None else f"{self.busy:.0%}"
        return f"GPU {self.index}: {busy} busy, {megabytes(self.memory_bytes)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The whole machine at one moment, `at_s` seconds after the run began.

    `cpu` is the share of the time since the sample before in which its cores were busy, 0 to 1 for
    all cores together. `memory_bytes` is what is in use and could not be had by dropping caches.
    """

    at_s: float
    cpu: float
    memory_bytes: int
    gpus: tuple[GpuUse, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """The use of the whole machine by a run: time to completion, cores, memory, GPUs.

    `cpu` is the mean over the run, memory the most, and for each GPU the mean share of the time
    and the most memory and power. `no_gpus` says why GPUs could not be asked, or not to the end.
    `memory_bytes` is 0 if the run ended before a sample.
    """

    seconds: float
    cpu: float
    memory_bytes: int
    gpus: tuple[GpuUse, ...] = ()
    no_gpus: str = ""
    samples: tuple[Sample, ...] = ()

    @property
    def peak_bytes(self) -> int | None:
        """The most memory; None if it is unknown."""
        return self.memory_bytes or None


@dataclass(frozen=True, kw_only=True, slots=True)
class OneRun:
    """One program's run in one place: values by quantity, or the `problem` why there are none."""

    round: int
    place: str
    program: str
    use: Use
    values: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The use of the machine by all runs of one program in one place.

    Time and share of the cores are medians, memory the most; `gpus` is the mean share of the time
    in which GPUs were busy, None where none was sampled.
    """

    program: str
    place: str
    seconds: float
    cpu: float
    memory_bytes: int
    gpus: float | None = None

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Time, cores, memory and GPUs as tables show them."""
        return (
            f"{self.seconds:.1f} s",
            f"{self.cpu:.0%}",
            f"{self.memory_bytes / 1e9:.1f} GB",
            "-" if self.gpus is None else f"{self.gpus:.0%}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceFacts:
    """A place where programs ran: `bare`, or a format's run as evidence calls it."""

    name: str
    runner: str
    version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRun:
    """A user's program that ran in an image's format, or bare. Times are in UTC, as ISO 8601.

    `digest` is that of the artifact, `binds` are paths in the container. `status` is that of the
    program; after a signal 128 and the signal's number. `cpu_seconds` is the processor time of the
    program, `start_s` and `runtime_cpu_seconds` are what the container added to its time and to
    that. `use` is the program's, its share of all cores; GPUs are sampled as a whole. `emulator` is
    empty for native code, `no_gpu` if GPUs were passed.
    """

    schema: str = "build-images/run/v1"
    image: str
    arch: str
    content_key: str
    digest: str
    place: PlaceFacts
    argv: tuple[str, ...]
    binds: tuple[str, ...]
    host: HostFacts
    emulator: str
    no_gpu: str
    started: str
    finished: str
    status: int
    start_s: float
    cpu_seconds: float
    runtime_cpu_seconds: float
    use: Use

    def is_like(self, other: ProgramRun) -> bool:
        """Return whether both ran the same command on the same image to its end, without error.

        Both had the same host and folders, and GPUs or none.
        """
        return self.status == other.status == 0 and self._conditions == other._conditions

    @property
    def _conditions(self) -> tuple[object, ...]:
        return self.content_key, self.argv, self.host, sorted(self.binds), bool(self.no_gpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The median of some values, and the lowest and the highest of them."""

    median: float
    lowest: float
    highest: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(
            median=statistics.median(values),
            lowest=min(values),
            highest=max(values),
            count=len(values),
        )

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A quantity in one place.

    `ratio` compares it with bare, round by round: 1 is as fast, 2 twice as fast, whether the
    quantity is a rate or a time. `problem` says why there are no values, or none of bare.
    """

    quantity: Quantity
    program: str
    place: str
    values: Spread | None = None
    ratio: Spread | None = None
    problem: str = ""

    @property
    def text(self) -> str:
        """The median with its unit: three significant figures, without an exponent."""
        if self.values is None:
            return "no result"
        value = self.values.median
        text = f"{value:.0f}" if value >= 100 else f"{value:#.3g}"  # noqa: PLR2004 - three figures
        return f"{text} {self.quantity.unit}"

    def collapse(self, floor: float) -> str:
        """Return why this is a collapse: it did not run, or its median is below a share of bare."""
        if self.problem:
            return f"{self.program}: {self.problem}"
        if self.ratio is not None and self.ratio.median < floor:
            return f"{self.quantity.title}: {self.ratio.median:.2f} of bare, less than {floor}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A whole measurement of one image. Times are in UTC, as ISO 8601.

    `emulator` is what ran the image's code, bare as well, if it is not this machine's processor;
    `bare` says how the image's root file system was entered there. `sizes` are those of the
    programs. `others` is the share of the cores that was busy before each round, when nothing of
    ours ran.
    """

    image: str
    arch: str
    host: HostFacts
    emulator: str
    bare: str
    started: str
    finished: str
    repeats: int
    sizes: Mapping[str, int]
    places: tuple[PlaceFacts, ...]
    rows: tuple[Row, ...]
    runs: tuple[OneRun, ...]
    others: tuple[float, ...] = ()
    floor: float = FLOOR

    @property
    def is_disturbed(self) -> bool:
        """True if other programs used the machine's cores in at least half of the rounds."""
        return bool(self.others) and statistics.median(self.others) > _BUSY

    @property
    def completions(self) -> tuple[Completion, ...]:
        """Return times to completion and use of the machine, of the programs that ran."""
        groups: dict[tuple[str, str], list[Use]] = {}
        for run in self.runs:
            if not run.problem:
                groups.setdefault((run.program, run.place), []).append(run.use)
        return tuple(_completion(*ran, uses) for ran, uses in groups.items())

    @property
    def no_gpus(self) -> str:
        """The reason why GPUs could not be sampled, or not to the end; empty without one."""
        return next((run.use.no_gpus for run in self.runs if run.use.no_gpus), "")

    def collapse_in(self, place: str) -> Outcome:
        """Return the one check of a measurement: nothing is below the floor, and everything ran.

        On a machine that others keep busy, what is slow may be so by chance: then it is skipped.
        So it is where bare could not run a program, which may be the machine's doing.
        """
        not_bare = {
            row.program: row.problem for row in self.rows if row.place == BARE and row.problem
        }
        unknown = [
            f"cannot tell: {program} did not run bare: {problem}"
            for program, problem in not_bare.items()
        ]
        rows = [row for row in self.rows if row.place == place and row.program not in not_bare]
        ratios = {row.quantity.name: row.ratio.median for row in rows if row.ratio}
        if problems := [text for row in rows if (text := row.collapse(self.floor))]:
            outcome, reason = FAILED, "; ".join(dict.fromkeys(problems))
            if self.is_disturbed and not any(row.problem for row in rows):
                busy = statistics.median(self.others)
                outcome = SKIPPED
                reason = f"cannot tell: other processes kept {busy:.0%} of the cores busy: {reason}"
            reason = "; ".join([reason, *unknown])
        elif unknown:
            outcome, reason = SKIPPED, "; ".join(unknown)
        else:
            least = min(rows, key=lambda row: ratios[row.quantity.name]).quantity
            outcome = PASSED
            reason = (
                f"{len(ratios)} figures at {ratios[least.name]:.2f} of bare or more "
                f"(least: {least.title}); {self.repeats} rounds"
            )
        data = {name: round(ratio, 3) for name, ratio in ratios.items()}
        return Outcome(check=_COLLAPSE_CHECK, outcome=outcome, reason=reason, data=data)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of that check by place, without bare."""
        names = [place.name for place in self.places if place.name != BARE]
        return {name: self.collapse_in(name) for name in names}

    @property
    def has_collapsed(self) -> bool:
        """True if the check failed in one of the formats."""
        return any(outcome.outcome == FAILED for outcome in self.outcomes.values())

    def as_json(self, *, with_runs: bool = True) -> dict[str, object]:
        """Return the measurement as data; without the runs, it is what a manifest has."""
        document = {**write(self), "no_gpus": self.no_gpus}
        document |= {"completions": plain(self.completions), "outcomes": plain(self.outcomes)}
        if not with_runs:
            del document["runs"]
        return document


def megabytes(number: int | None) -> str:
    """Return bytes as outputs show them; `-` if they are unknown."""
    return "-" if number is None else f"{number / 1e6:.0f} MB"


def program_of(argv: Sequence[str]) -> str:
    """Return the program of a command for env(1), which variables may precede."""
    return next((word for word in argv if "=" not in word), argv[0])


def _completion(program: str, place: str, uses: list[Use]) -> Completion:
    busy = [gpu.busy for use in uses for gpu in use.gpus if gpu.busy is not None]
    return Completion(
        program=program,
        place=place,
        seconds=statistics.median(use.seconds for use in uses),
        cpu=statistics.median(use.cpu for use in uses),
        memory_bytes=max(use.memory_bytes for use in uses),
        gpus=statistics.fmean(busy) if busy else None,
    )
