"""Planning and compiling 1,000 cells in both formats, against hpccm alone, on one core each.

Ours reads the project, plans it and compiles it with everything that is looked at on the way.
hpccm alone makes the same texts, in this process, from objects and arguments that are known
beforehand. One `hpccm` command for each spec is run for some of the cells, and counted in cells a
second.
"""

from __future__ import annotations

import argparse
import functools
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hpccm_alone import Script, play_all, scripts
from projects import write_project
from specs import FORMATS, hpccm_recipe
from timing import interleaved, report

from builder.compile.spec import COMPILER, block_faults, compile_spec
from builder.load.project import load_project
from builder.model import PlannedImage, Selection
from builder.plan import make_plan

RECIPES, BASES = 25, 10
COMMANDS = 10  # cells that the hpccm command compiles in each run


def planned(root: Path) -> Sequence[PlannedImage]:
    project = load_project(root, block_faults=block_faults)
    return make_plan(project, Selection(everything=True), compiler=COMPILER).images


def ours(root: Path, run_checks: str) -> None:
    """What one run of `build-images spec` does, but for the writing of files."""
    for image in planned(root):
        compile_spec(image, run_checks=run_checks)


def commands(recipes: Sequence[Path]) -> None:
    program = shutil.which("hpccm", path=str(Path(sys.executable).parent))
    assert program is not None
    for recipe in recipes:
        for name in FORMATS:
            command = [program, "--recipe", str(recipe), "--format", name]
            command += ["--singularity-version", "3.6"]
            subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )


def recipe_files(images: Sequence[PlannedImage], folder: Path) -> list[Path]:
    files = []
    for image in images:
        files.append(folder / f"{image.identifier}.py")
        files[-1].write_text(hpccm_recipe(image))
    return files


def noted(images: Sequence[PlannedImage]) -> list[Script]:
    """What hpccm alone needs; it must make the very same texts."""
    found: list[Script] = []
    for image in images:
        for script, text in scripts(image):
            assert script.play() == text, f"{image.identifier}: hpccm alone makes another text"
            found.append(script)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repeats", type=int, nargs="?", default=5)
    repeats = parser.parse_args().repeats
    logging.getLogger().addHandler(logging.NullHandler())  # hpccm's warnings cost no time
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        cells = write_project(root, recipes=RECIPES, bases=BASES)
        run_checks = (root / "tests/images/run-checks").read_text()
        images = planned(root)
        recipes = recipe_files(images[:: len(images) // COMMANDS], Path(name))
        alone = noted(images)
        times = interleaved(
            {
                "plan and compile": functools.partial(ours, root, run_checks),
                "hpccm alone": functools.partial(play_all, alone),
                "hpccm commands": functools.partial(commands, recipes),
            },
            repeats=repeats,
        )
    report(times, ours="plan and compile", against="hpccm alone", reach="at most 1.3")
    rates = {
        "plan and compile": cells / statistics.median(times["plan and compile"]),
        "hpccm commands": len(recipes) / statistics.median(times["hpccm commands"]),
    }
    for one, rate in rates.items():
        print(f"  {one:42} {rate:8.1f} cells a second, both formats")
    print(f"  ratio: {rates['plan and compile'] / rates['hpccm commands']:.0f}   (reach: 40)")


if __name__ == "__main__":
    main()
