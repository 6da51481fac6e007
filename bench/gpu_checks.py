"""All checks of a GPU on this machine itself, in no container: `ci/gpu-checks` runs it.

The programs and commands are those of tests/images/checks.yaml. They are made with what is here: a
C and C++ compiler, nvcc, and the toolkit's libraries, installed or in wheels (nvidia-cuda-runtime,
nvidia-cublas, nvidia-nccl). What cannot be made is skipped, and says why. What was found, with the
health of the GPUs, is printed and kept as JSON. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT)]

from toolkit import Toolkit, find_toolkit  # noqa: E402

from builder.host.doctor import gpus  # noqa: E402 - the project is found by the line above
from builder.load.project import load_project  # noqa: E402
from builder.model import FAILED, SKIPPED, Check, Outcome, Project  # noqa: E402
from builder.model.manifest import InImageCheck  # noqa: E402
from builder.model.templates import CudaNames, MpiNames, render, sample_names  # noqa: E402
from builder.system.host_facts import host_facts  # noqa: E402
from builder.system.process import Completed, Processes  # noqa: E402
from builder.verify.checks import outcome_of  # noqa: E402

SCHEMA = "build-images/gpu-checks/v1"
RECIPES, KERNELS = ("cuda-base", "gpu-bench"), "cuda-compute"
# The checks of frameworks, and what a Python must be able to do for them.
FRAMEWORKS = {
    "pytorch-gpu": "import torch; assert torch.version.cuda",
    "pytorch-parallel-gpu": "import torch; assert torch.version.cuda",
    "tensorflow-gpu": "import tensorflow as tf; assert tf.test.is_built_with_cuda()",
    "jax-gpu": "import jax, jax_cuda13_plugin",
    "ml-stack-gpu": "import cupy",
}
NVCC = frozenset({"gpu-code", "gpu-compute", "gpu-sass", "gpu-ptx", "gpu-memory"})
MARKS = {"passed": "✓", "failed": "✗", "skipped": "-"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the checks are made and run: this machine, with folders as images have them."""

    work: Path
    toolkit: Toolkit
    processes: Processes

    @property
    def has_kernels(self) -> bool:
        """Whether nvcc made the program that others come after."""
        return (self.work / "bin" / KERNELS).exists()

    @property
    def environment(self) -> dict[str, str]:
        path = [str(self.work / "bin"), str(self.work / "toolkit"), os.environ["PATH"]]
        libraries = [self.toolkit.library_path, os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "SRC": str(PROJECT / "tests/images"),
            "OUT": str(self.work / "bin"),
            "PATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a command: a check is judged as it is in a container."""
        return self.processes.capture(
            argv, env=self.environment, cwd=self.work, timeout_s=timeout_s, check=False
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    kept = PROJECT / "out/gpu-checks.json"
    parser.add_argument("--output", default=kept, type=Path, help="the file that keeps it all")
    given = parser.parse_args()
    started = now()
    project, toolkit, processes = load_project(PROJECT), find_toolkit(), Processes()
    if not toolkit.version:
        print("no CUDA toolkit: the layers alone are looked at, for CUDA 11.8", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        place = Place(work=Path(name), toolkit=toolkit, processes=processes)
        (place.work / "bin").mkdir()
        toolkit.install(place.work / "toolkit")
        outcomes = [told(one) for one in checked(project, place, names_for(project, toolkit))]
    health = gpus.examine(processes, releases=project.facts.cuda, search_path=os.environ["PATH"])
    print(f"\n{gpus.as_text(health, colour=False)}")
    document = {
        "schema": SCHEMA,
        "where": "on the machine itself, in no container",
        "started": started,
        "finished": now(),
        "commit": commit(),
        "host": asdict(host_facts()),
        "toolkit": {"nvcc": bool(toolkit.nvcc), "cuda": toolkit.version},
        "gpus": json.loads(gpus.as_json(health)),
        "checks": [asdict(one) for one in outcomes],
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"\nkept in {given.output}")
    return 1 if any(one.outcome == FAILED for one in outcomes) else 0


def names_for(project: Project, toolkit: Toolkit) -> Mapping[str, Any]:
    """What the commands of the checks refer to: this machine stands for a cell."""
    version = toolkit.version or "11.8"
    release = project.facts.cuda[version]
    found = shutil.which("mpirun") and shutil.which("mpicc")
    mpi = MpiNames(family="openmpi" if found else "none", version="", development=(), runtime=())
    cuda = CudaNames(
        version=version,
        route="",
        capabilities=release.capabilities,
        gcc="",
        driver=release.driver,
    )
    return {**sample_names(), "arch": platform.machine(), "cuda": cuda, "mpi": mpi}


def checked(project: Project, place: Place, names: Mapping[str, Any]) -> Iterator[Outcome]:
    chosen = [*(name for one in RECIPES for name in project.recipes[one].checks), *FRAMEWORKS]
    for check in (project.checks[name] for name in chosen if name != "cuda-clean"):
        problem = unable(check, place, names) or made(check, place, names)
        if problem:
            yield Outcome(check=check.name, outcome=SKIPPED, reason=f"not made: {problem}")
            continue
        script = place.work / check.name
        script.write_text(f"#!/bin/sh\n{command_of(check, place, names)}\n")
        script.chmod(0o755)
        yield outcome_of(
            InImageCheck(
                name=check.name,
                script=str(script),
                needs=check.needs,
                timeout_s=check.timeout_s,
            ),
            place,
        )


def command_of(check: Check, place: Place, names: Mapping[str, Any]) -> str:
    """As in an image, but for what its loader's cache, its recipe and its nvcc promise."""
    command = str(render(check.run, names))
    if not place.has_kernels:
        for part in (f"sh $SRC/after.sh gpu-compute {KERNELS} && ", f" $OUT/{KERNELS}"):
            command = command.replace(part, "")
    if check.name in FRAMEWORKS:  # the capabilities are those that a recipe promises
        command = re.sub(r"\.py( \d+)+ --", ".py --", command)
        return command.replace("python3 ", f"{sys.executable} ")
    if check.name == "cuda-runtime":
        return command.partition("&& ")[2]
    return command


def unable(check: Check, place: Place, names: Mapping[str, Any]) -> str:
    if check.name in NVCC and not place.has_kernels:
        return f"there is no {KERNELS}: no nvcc"
    if "mpi" in check.needs and names["mpi"].family == "none":
        return "no mpicc and mpirun here"
    program = FRAMEWORKS.get(check.name, "")
    words = [sys.executable, "-c", program]
    if program and subprocess.run(words, capture_output=True, check=False).returncode:
        return f"this Python has none with CUDA ({program})"
    return ""


def made(check: Check, place: Place, names: Mapping[str, Any]) -> str:
    """Make a check's programs; what went wrong, or nothing."""
    for command in check.build:
        done = place.run(["sh", "-c", str(render(command, names))], timeout_s=900)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
            return " ".join(errors[:1])[:300] or f"status {done.returncode}"
    return ""


def told(outcome: Outcome) -> Outcome:
    print(f"{MARKS[outcome.outcome]} {outcome.check:15} {outcome.outcome:8} {outcome.reason}")
    if outcome.outcome == FAILED:
        print(outcome.output)
    return outcome


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str:
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    words = ["git", "-c", "safe.directory=*", "-C", str(PROJECT), *describe]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
