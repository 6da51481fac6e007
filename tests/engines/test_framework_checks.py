"""The checks of frameworks and benchmarks that are not built here, on stand-ins of those."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from check_programs import SOURCES
from harness import run_program

pytestmark = pytest.mark.engines

RIGHT = "printf '# OSU\\n4  1.5  Pass\\n8  1.6  Pass\\n4096  2.5  Pass\\n'"


def ended(*command: str | Path, **variables: str) -> tuple[int, str]:
    """The exit status and the finding."""
    done = run_program(*command, env=variables)
    return done.status, done.finding


def osu(folder: Path, script: str) -> tuple[int, str]:
    """osu-check.sh over benchmarks of which osu_bw is `script`, without a launcher."""
    for name in ("osu_latency", "osu_bw", "osu_allreduce"):
        program = folder / "pt2pt" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script if name == 'osu_bw' else RIGHT}\n")
        program.chmod(0o755)
    return ended("sh", SOURCES / "osu-check.sh", folder, "env")


@pytest.mark.parametrize(
    ("script", "status", "finding"),
    [
        (RIGHT, 0, "3 benchmarks exchange messages"),
        ("exit 9", 1, "osu_bw ended with exit status 9"),
        (RIGHT.replace("4096  2.5  Pass", "4096  2.5  Fail"), 1, "osu_bw found 2 sizes right"),
        ("echo 4 1.5", 1, "osu_bw found 0 sizes right"),
    ],
)
def test_osu_judges_what_the_benchmarks_print(
    script: str, status: int, finding: str, tmp_path: Path
) -> None:
    code, text = osu(tmp_path, script)
    assert (code, text[: len(finding)]) == (status, finding)


def test_osu_needs_its_benchmarks(tmp_path: Path) -> None:
    code, finding = ended("sh", SOURCES / "osu-check.sh", tmp_path, "env")
    assert (code, finding) == (1, f"there is no osu_latency below {tmp_path}")


@pytest.mark.parametrize("name", ["horovod", "chainermn"])
def test_a_missing_framework_is_a_finding(name: str) -> None:
    code, finding = ended(sys.executable, SOURCES / f"{name}-check.py", "2")
    assert code == 1
    assert finding.startswith("cannot import")
    assert ended(sys.executable, SOURCES / f"{name}-check.py")[0] == 2


def mlperf(folder: Path, flatten: str) -> tuple[int, str]:
    """mlperf-check.py of the base, with stand-ins for what it imports."""
    (folder / "torch.py").write_text(
        "class T(list):\n    def view(self, *_): return self\n"
        "def arange(n): return T(range(int(n)))\ndef ones(n): return T([1.0] * n)\n"
        "equal = list.__eq__\n"
    )
    (folder / "apex_C.py").write_text(
        f"def flatten(tensors): return {flatten}\n"
        "def unflatten(flat, tensors):\n    flat = iter(flat)\n"
        "    return [type(t)(next(flat) for _ in t) for t in tensors]\n"
    )
    for name in ("apex", "amp_C", "mlperf_compliance/__init__", "mlperf_compliance/mlperf_log"):
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    return mlperf_again(folder)


def mlperf_again(folder: Path) -> tuple[int, str]:
    script = SOURCES / "mlperf-check.py"
    return ended(sys.executable, script, "base", PYTHONPATH=str(folder))


def test_mlperf_takes_a_step_and_judges_it(tmp_path: Path) -> None:
    code, finding = mlperf(tmp_path, "sum(map(list, tensors), [])")
    assert (code, finding.partition(",")[0]) == (0, "base: 5 modules")
    code, finding = mlperf(tmp_path, "sum(map(list, tensors), [])[::-1]")
    assert code == 1
    assert finding.startswith("apex_C.unflatten gave")
    (tmp_path / "amp_C.py").unlink()
    assert mlperf_again(tmp_path) == (1, "ModuleNotFoundError: No module named 'amp_C'")
