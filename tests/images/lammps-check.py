"""Regression cases of LAMMPS: ranks compute the values that upstream's logs of the cases have.

Usage: lammps-check.py RANKS FOLDER COMMAND...

FOLDER has upstream's cases: inputs, data, and logs named log.DATE.CASE.g++.RANKS. COMMAND starts
LAMMPS on RANKS ranks, for example `mpirun -n 4 lmp`.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Steps of the first `run` of each input. Rounding differs by processor, compiler and FFT, and
# grows with each step: upstream's own logs of `peptide` on 1 and 4 ranks differ by 1e-4 after 100
# steps, and by 1e-3 after 250. Cases with `velocity ... loop geom`, such as `melt`, cannot be
# compared: their random velocities depend on the last bits of the coordinates, and processors with
# fused multiply-add (POWER) round those otherwise.
CASES = {
    "peptide": 50,  # KSPACE (PPPM by FFTW), MOLECULE, RIGID (SHAKE)
    "shear": 100,  # MANYBODY (EAM)
}
# A value may differ by either: the tolerances of upstream's tools/regression-tests/config.yaml, and
# one unit of the last digit that is printed (4 decimals, or 8 digits).
ABSOLUTE, RELATIVE = 2e-4, 2e-7
TIMEOUT_S = 600

STEP = re.compile(r"-+ Step +(\d+) -+ CPU")
NAMED = re.compile(r"(\w+) += +(-?[\d.]+(?:e[-+]?\d+)?|-?nan|-?inf)\b")
LOOP = re.compile(r"^Loop time of \S+ on (\d+) procs", re.MULTILINE)


class Wrong(Exception):
    """LAMMPS did not compute what it has to."""


def columns(lines):
    """Thermodynamic values by step, of a table with a line of names above it."""
    rows, names = {}, []
    for line in lines:
        words = line.split()
        if words[:1] == ["Step"]:
            names = words[1:]
        elif names and len(words) == len(names) + 1 and words[0].isdigit():
            rows[int(words[0])] = dict(zip(names, map(float, words[1:])))  # noqa: B905
    return rows


def paragraphs(lines):
    """The same, of a paragraph `NAME = VALUE ...` for each step (thermo_style multi)."""
    rows, row = {}, {}
    for line in lines:
        match = STEP.match(line)
        if match:
            row = rows.setdefault(int(match.group(1)), {})
        else:
            row.update((name, float(value)) for name, value in NAMED.findall(line))
    return rows


def thermo(log: str):
    """The values of the first run in a log, by step and name."""
    lines = log.partition("Loop time of")[0].splitlines()
    is_table = any(line.split()[:1] == ["Step"] for line in lines)
    return columns(lines) if is_table else paragraphs(lines)


def shortened(text: str, steps: int) -> str:
    """An input with its first run only, of so many steps."""
    head, run, _ = re.split(r"(?m)^(run)\s+\d+.*$", text, maxsplit=1)[:3]
    return f"{head}{run} {steps}\n"


def output_of(case: str, folder: Path, command: "list[str]") -> str:
    """LAMMPS's output for a case, which lies in a folder of its own."""
    script = folder / f"in.{case}"
    script.write_text(shortened(script.read_text(), CASES[case]))
    call = [*command, "-in", script.name, "-log", "none", "-nocite"]
    try:
        done = subprocess.run(
            call, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Wrong(f"{case}: no result after {TIMEOUT_S} s") from None
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        errors = re.findall(r"ERROR.*", done.stdout + done.stderr)
        reason = f": {errors[0]}" if errors else ""
        raise Wrong(f"{case}: LAMMPS ended with exit status {done.returncode}{reason}")
    return done.stdout


def compare(case: str, ours, reference) -> "tuple[int, float]":
    """The number of values that agree, and their largest difference, relative if that is less."""
    count, largest = 0, 0.0
    for step, values in sorted(reference.items()):
        for name, expected in values.items():
            value = ours.get(step, {}).get(name)
            if value is None:
                raise Wrong(f"{case}: no {name} of step {step}")
            apart = abs(value - expected)
            if not (apart <= ABSOLUTE or apart <= RELATIVE * abs(expected)):  # NaN as well
                raise Wrong(f"{case}: {name} of step {step} is {value}, upstream has {expected}")
            count += 1
            largest = max(largest, min(apart, apart / max(abs(expected), 1e-300)))
    return count, largest


def run_case(case: str, ranks: int, cases: Path, command: "list[str]") -> "tuple[int, float]":
    logs = sorted(cases.glob(f"{case}/log.*.{case}.g++.{ranks}"))
    if len(logs) != 1:
        raise Wrong(f"{cases}/{case} has {len(logs)} logs of {ranks} ranks, not one")
    reference = thermo(logs[0].read_text())
    expected = {step: row for step, row in reference.items() if step <= CASES[case]}
    if not {0, CASES[case]} <= set(expected):
        raise Wrong(f"{logs[0]} has no values of step {CASES[case]}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, case)
        shutil.copytree(str(cases / case), str(work))
        output = output_of(case, work, command)
    started = [int(number) for number in LOOP.findall(output)]
    if started != [ranks]:
        raise Wrong(f"{case}: LAMMPS ran on {started} ranks, expected one run on {ranks}")
    return compare(case, thermo(output), expected)


def check(ranks: int, cases: Path, command: "list[str]") -> str:
    found = {case: run_case(case, ranks, cases, command) for case in CASES}
    values = sum(count for count, _ in found.values())
    differences = {case: largest for case, (_, largest) in found.items()}
    print("data: " + json.dumps({"ranks": ranks, "values": values, "differences": differences}))
    return f"{values} values of {', '.join(CASES)} on {ranks} ranks agree with upstream's logs"


def main(arguments: "list[str]") -> int:
    if len(arguments) < 3 or not arguments[0].isdigit():
        print("usage: lammps-check.py RANKS FOLDER COMMAND...")
        return 2
    ranks, folder, *command = arguments
    try:
        print(check(int(ranks), Path(folder), command))
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
