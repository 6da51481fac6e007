"""Compiling all shipped specs in one process, against one `hpccm` command for each spec.

The `hpccm` commands are given recipe files in hpccm's own language that hold the same blocks.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import interleaved, report

from builder.compile.spec import COMPILER, block_faults, compile_spec
from builder.load.project import load_project
from builder.model import BlockUse, PlannedImage, Selection
from builder.plan import make_plan

PROJECT = Path(__file__).resolve().parents[1]
FORMATS = ("docker", "singularity")


def block(stage: str, use: BlockUse) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in use.arguments.items())
    return f"{stage} += {use.name}({arguments})"


def hpccm_recipe(image: PlannedImage) -> str:
    """The same image in hpccm's own language."""
    base = (
        f"image={image.base_image!r}, _arch={image.cell.arch!r}, "
        f"_distro={image.base.hpccm_distro!r}"
    )
    lines = [f"Stage0 += baseimage({base}, _as='development')"]
    lines += [block("Stage0", use) for stage in image.stages for use in stage.development]
    lines += [f"Stage1 += baseimage({base}, _as='runtime')", "Stage1 += Stage0.runtime()"]
    lines += [block("Stage1", use) for stage in image.stages for use in stage.runtime]
    return "\n".join(lines) + "\n"


def main() -> None:
    project = load_project(PROJECT, block_faults=block_faults)
    images = make_plan(project, Selection(everything=True), compiler=COMPILER).images
    run_checks = (PROJECT / "tests/images/run-checks").read_text()
    command = shutil.which("hpccm", path=str(Path(sys.executable).parent))
    assert command is not None

    def ours() -> None:
        for image in images:
            compile_spec(image, run_checks=run_checks)

    with tempfile.TemporaryDirectory() as name:
        recipes = []
        for image in images:
            recipe = Path(name) / f"{image.identifier}.py"
            recipe.write_text(hpccm_recipe(image))
            recipes.append(recipe)

        def theirs() -> None:
            for recipe in recipes:
                for format_ in FORMATS:
                    subprocess.run(
                        [
                            command,
                            "--recipe",
                            recipe,
                            "--format",
                            format_,
                            "--singularity-version",
                            "3.6",
                        ],
                        check=True,
                        stdout=subprocess.DEVNULL,
                    )

        times = interleaved({"in one process": ours, "one hpccm command a spec": theirs}, repeats=5)
    specs = len(images) * len(FORMATS)
    report(times, ours="one hpccm command a spec", against="in one process", reach="at least 20")
    for name, found in times.items():
        print(f"  {name:42} {specs / statistics.median(found):8.0f} specs a second")


if __name__ == "__main__":
    main()
