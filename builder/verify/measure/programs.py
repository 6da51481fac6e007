"""Benchmark programs: how each is started, and which figures its output has.

They are defined in programs.yaml.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from builder.artifacts.manifests import PROGRAMS as CHECK_PROGRAMS
from builder.model.measurement import Quantity
from builder.model.records import read
from builder.system.files import table_beside
from builder.verify.container_output import data_of
from builder.verify.runners.protocol import DATA_AT

RANKS = 2
MEASURED_S = 900  # the longest that a measured program may take
_LEAST, _MOST = 1e-30, 1e30  # of a figure; ratios of such are finite


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The problem sizes of the programs, for runs of some seconds each.

    `hpl` is the order of HPL's matrix. HPC Challenge derives its arrays from it; they fit into
    caches if it is small. `memory_mib` is the size of one of three arrays. `largest` is the size of
    the largest message in bytes, `rounds` the repetitions of small ones. fio writes and reads
    `file_mib`, and reads at random for `seconds`.
    """

    hpl: int = 2048
    memory_mib: int = 256
    largest: int = 1 << 22
    rounds: int = 1000
    file_mib: int = 128
    seconds: int = 2


# Emulated code takes 10 to 100 times as long.
EMULATED = Sizes(hpl=192, memory_mib=32, largest=1 << 20, rounds=100, file_mib=64, seconds=2)


class Unreadable(Exception):
    """Raised if the output of a program does not have its figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A quantity in a program's output: the value of `field`, multiplied by `factor`."""

    field: str
    quantity: Quantity
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A benchmark program that an image may have.

    `path` is the file that it needs; `commands` are for sh(1), with names of sizes in braces;
    `output` is the kind of its output, and `ranks` the field with its number of ranks, if any.
    """

    name: str
    path: str
    commands: str
    output: str
    figures: tuple[Figure, ...]
    ranks: str = ""
    needs_mpi: bool = False
    needs_gpu: bool = False

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return tuple(figure.quantity for figure in self.figures)

    def script(self, sizes: Sizes, launch: str) -> str:
        """Return the script for sh(1); `launch` starts two ranks."""
        return self.commands.format(
            path=self.path,
            launch=launch,
            ranks=RANKS,
            folder=DATA_AT,
            block=min(128, sizes.hpl // 2),
            **asdict(sizes),
        )

    def read(self, text: str) -> dict[str, float]:
        """Return the values in a program's output by quantity; raises `Unreadable`."""
        fields = _FIELDS[self.output](text)
        if self.ranks and str(fields.get(self.ranks)) != str(RANKS):
            raise Unreadable(f"it ran on {fields.get(self.ranks)} ranks, not on {RANKS}")
        return {
            figure.quantity.name: _number(fields.get(figure.field), figure)
            for figure in self.figures
        }


def _number(value: object, figure: Figure) -> float:
    """Return a figure, which has to be positive and credible; raises `Unreadable`."""
    try:
        number = float(value) * figure.factor  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise Unreadable(f"its output has no {figure.field}: {str(value)[:40]!r}") from None
    if not _LEAST < number < _MOST:  # nor NaN
        raise Unreadable(f"its {figure.field} is {value}, expected a positive, finite number")
    return number


# ---- Outputs, as values by field ----


def _summary(text: str) -> dict[str, object]:
    """Return the lines NAME=VALUE of HPC Challenge."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    summary: dict[str, object] = {name.strip(): value.strip() for name, _, value in pairs}
    if summary.get("Success") != "1":
        raise Unreadable(f"its output says Success={summary.get('Success', 'nothing')}")
    return summary


_ROW = re.compile(r"^(\d+)\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)


def _table(text: str) -> dict[str, object]:
    """Return the rows SIZE VALUE of an OSU micro-benchmark."""
    rows = {int(size): value for size, value in _ROW.findall(text)}
    largest = {"value for the largest message": rows[max(rows)]} if rows else {}
    return {**largest, **{f"value for {size} bytes": rows[size] for size in rows}}


def _jobs(text: str) -> dict[str, object]:
    """Return bandwidth and rate of each job in fio's JSON, which notes may precede."""
    fields = {}
    try:
        for job in json.loads(text[text.index("{") :])["jobs"]:
            name = job["jobname"]
            if job["error"]:
                raise Unreadable(f"its job {name} has the error {job['error']}")
            for direction in ("read", "write"):
                fields[f"{name} {direction} bw_bytes"] = job[direction]["bw_bytes"]
                fields[f"{name} {direction} iops"] = job[direction]["iops"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"its output is not the JSON of its jobs ({error!r})") from None
    return fields


_FIELDS: Mapping[str, Callable[[str], Mapping[str, object]]] = {
    "summary": _summary,
    "data": data_of,
    "table": _table,
    "jobs": _jobs,
}

_TABLE = "programs.yaml"
PROGRAMS = read(tuple[Benchmark, ...], table_beside(__file__, _TABLE), _TABLE)


# ---- Kits ----


@dataclass(frozen=True, kw_only=True, slots=True)
class KitProgram:
    """A program of an image that a kit measures, in a container and bare."""

    name: str
    argv: tuple[str, ...]
    needs_gpu: bool
    timeout_s: int = MEASURED_S


def programs_for_kits(paths: Container[str]) -> tuple[KitProgram, ...]:
    """Return the programs of checks, one process each, of an image with these regular files."""
    programs = []
    for program in PROGRAMS:
        path = f"{CHECK_PROGRAMS}{PurePosixPath(program.path).name}"
        if program.output == "data" and not program.needs_mpi and path in paths:
            _exec, _, *arguments = shlex.split(program.script(Sizes(), ""))
            argv = (f"/{path}", *arguments)
            programs.append(KitProgram(name=program.name, argv=argv, needs_gpu=program.needs_gpu))
    return tuple(programs)
