"""A libnvidia-ml.so.1 that says what FAKE_NVML wants: see fakes/nvml.c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fakes/nvml.c"


def fake_nvml(folder: Path) -> str:
    """The library's path, made in `folder`; skips without a compiler."""
    compiler = shutil.which("cc") or pytest.skip("cc is not installed (Debian: gcc)")
    made = folder / "libnvidia-ml.so.1"
    warnings = ["-std=gnu99", "-Wall", "-Wextra", "-Werror"]
    words = [compiler, *warnings, "-shared", "-fPIC", "-o", made, SOURCE]
    subprocess.run(list(map(str, words)), check=True)
    return str(made)
