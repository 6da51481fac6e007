"""The checks of the packaged stack, with packages that are made up: what passes, what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT

SOURCES = ROOT / "tests/images"
PACKAGES = ("numpy", "cv2", "keras", "google", "numba", "pandas", "sklearn", "jupyterlab")
NAMES = (
    *("NumPy and SciPy", "OpenCV", "Keras", "Protobuf", "Numba", "pandas", "scikit-learn"),
    *("JupyterLab", "CuPy", "cuDNN", "NCCL"),
)
# An ELF header for NVIDIA's machine, the kernel's name, and PTX.
CUPY = """
import struct, sys, types
WRONG = {wrong!r}
__version__ = "14"
class nvrtc:
    createProgram = staticmethod(lambda *text: [])
    compileProgram = staticmethod(lambda program, options: program.extend(options))
    getVersion = staticmethod(lambda: (13, 0))
    def getCUBIN(program):
        name = b"" if WRONG == "kernel" else b"scale"
        return b"\\x7fELF" + bytes(14) + struct.pack("<H", 62 if WRONG == "elf" else 190) + name
    def getPTX(program):
        target = "sm_70" if WRONG == "ptx" else program[0].partition("=")[2]
        return ("// made up\\n.target " + target).encode()
cuda = sys.modules["cupy.cuda"] = types.ModuleType("cupy.cuda")
cuda.nvrtc = nvrtc
"""
# What the libraries say: both numbers are 2.32.3, or 2.32.4.
CTYPES = """
import ctypes, importlib.metadata, pathlib
class Library:
    def __init__(self, path): assert path.endswith(".so.9") or path.endswith(".so.2"), path
    def ncclGetVersion(self, reference):
        reference._obj.value = {number}
        return {status}
    class cudnnGetVersion:
        def __new__(cls): return {number}
class File:
    name = "{library}"
    def locate(self): return pathlib.Path("/nowhere") / self.name
importlib.metadata.files = lambda package: [File()]
importlib.metadata.version = lambda package: "2.32.3"
ctypes.CDLL = Library
"""


def ended(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and lines of the check, in a Python that finds the packages of a folder first."""
    done = subprocess.run(
        [sys.executable, str(SOURCES / "ml-stack-check.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_each_missing_package_is_named(tmp_path: Path) -> None:
    for name in (*PACKAGES, "cupy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not here')\n")
    status, lines = ended(tmp_path, "75")
    assert status == 1
    wrong = json.loads(lines[-2].removeprefix("data: "))["wrong"]
    assert [one.partition(":")[0] for one in wrong] == list(NAMES)
    for one in wrong[:-2]:
        assert one.endswith(": ImportError: it is not here")
    assert lines[:-2] == [f"wrong {one}" for one in wrong]
    assert lines[-1] == "wrong: " + "; ".join(wrong)


def test_without_capabilities_nothing_of_cuda_is_looked_at(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not here')\n")
    _, lines = ended(tmp_path)
    assert [line for line in lines[:-2] if line.split()[1] in {"CuPy:", "cuDNN:", "NCCL:"}] == []
    assert ended(tmp_path, "sm_75") == (2, ["usage: ml-stack-check.py [CAPABILITY...]"])


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("", "ok CuPy 14: NVRTC 13.0 compiles for sm_75, sm_90"),
        ("elf", "wrong CuPy: NVRTC's code is no ELF for GPUs"),
        ("kernel", "wrong CuPy: the kernel is not in NVRTC's code"),
        ("ptx", "wrong CuPy: PTX for 75 has [['.target', 'sm_70']]"),
    ],
)
def test_cupy_compiles_for_each_capability(wrong: str, line: str, tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not here')\n")
    (tmp_path / "cupy.py").write_text(CUPY.format(wrong=wrong))
    assert line in ended(tmp_path, "75", "90")[1]


@pytest.mark.parametrize(
    ("library", "number", "status", "line"),
    [
        ("libcudnn.so.9", 23203, 0, "ok cuDNN 2.32.3: the library's version is its wheel's"),
        (
            "libcudnn.so.9",
            23204,
            0,
            "wrong cuDNN: the library says [2, 32, 4], its wheel [2, 32, 3]",
        ),
        ("libnccl.so.2", 23203, 0, "ok NCCL 2.32.3: the library's version is its wheel's"),
        ("libnccl.so.2", 23204, 0, "wrong NCCL: the library says [2, 32, 4], its wheel [2, 32, 3]"),
        ("libnccl.so.2", 23203, 1, "wrong NCCL: ncclGetVersion fails"),
    ],
)
def test_libraries_are_those_of_their_wheels(
    library: str, number: int, status: int, line: str, tmp_path: Path
) -> None:
    for name in (*PACKAGES, "cupy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not here')\n")
    made_up = CTYPES.format(library=library, number=number, status=status)
    (tmp_path / "sitecustomize.py").write_text(made_up)
    assert line in ended(tmp_path, "75")[1]
