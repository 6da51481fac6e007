"""The CUDA toolkit of this machine, wherever its parts are: installed, or in Python's wheels."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("cudart", "cublas", "cublasLt", "nccl")
_PLACES = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/usr")
# Wheels: nvidia/cublas/include before CUDA 13, nvidia/cu13/include since.
_IN_WHEELS = "nvidia/*"

# nvcc with the wheels' folders; where there is none, c++ makes the programs without kernels.
_WRAPPER = """#!/bin/sh
{first}
exec {compiler} {folders} "$@"
"""
_WITHOUT_NVCC = """
for one in "$@"; do
    case $one in *.cu) grep -q __global__ "$one" && { echo "no nvcc for $one" >&2; exit 1; } ;; esac
done
for one in "$@"; do
    shift
    case $one in
        -cudart | shared | -gencode | arch=* | -Wno-deprecated-gpu-targets) ;;
        *.cu) set -- "$@" -x c++ "$one" -x none -lcudart ;;
        *) set -- "$@" "$one" ;;
    esac
done
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """`nvcc` is a path, or empty without one; `version` is 12.4, or empty if nothing tells it."""

    nvcc: str
    version: str
    includes: tuple[Path, ...]
    libraries: dict[str, Path]

    @property
    def library_path(self) -> str:
        return ":".join(dict.fromkeys(str(file.parent) for file in self.libraries.values()))

    def install(self, folder: Path) -> None:
        """Put an `nvcc` into a folder that finds headers and libraries where they are here."""
        links = folder / "lib"
        links.mkdir(parents=True)
        for name, file in self.libraries.items():
            (links / f"lib{name}.so").symlink_to(file)
        # nvcc looks into lib64, and its wheel has lib
        own = Path(self.nvcc).resolve().parents[1] / "lib" if self.nvcc else links
        folders = [*(f"-I{one}" for one in self.includes), f"-L{links}", f"-L{own}"]
        program = folder / "nvcc"
        program.write_text(
            _WRAPPER.format(
                first="" if self.nvcc else _WITHOUT_NVCC,
                compiler=self.nvcc or "c++",
                folders=" ".join(folders),
            )
        )
        program.chmod(0o755)


def find_toolkit() -> Toolkit:
    """What this machine has; parts may be missing."""
    homes = list(_homes())
    nvcc = shutil.which("nvcc") or _first(homes, "bin/nvcc")
    headers = [home / "include" for home in homes if (home / "include/cuda_runtime.h").is_file()]
    blas = [home / "include" for home in homes if (home / "include/cublas_v2.h").is_file()]
    # nvcc knows its own headers; those of another release must not come before them
    wanted = [*([] if nvcc else headers[:1]), *blas[:1]]
    return Toolkit(
        nvcc=nvcc,
        version=_version(nvcc, headers),
        includes=tuple(dict.fromkeys(one for one in wanted if str(one) != "/usr/include")),
        libraries={name: file for name in LIBRARIES if (file := _library(name, homes))},
    )


def _homes() -> Iterator[Path]:
    """Folders with `bin`, `include` and `lib` or `lib64`, the first that count."""
    for place in _PLACES:
        yield from sorted(Path("/").glob(place.lstrip("/")), reverse=True)
    for folder in dict.fromkeys([*sys.path, *site.getsitepackages()]):
        yield from sorted(Path(folder).glob(_IN_WHEELS), reverse=True)


def _first(homes: list[Path], name: str) -> str:
    return next((str(home / name) for home in homes if (home / name).is_file()), "")


def _library(name: str, homes: list[Path]) -> Path | None:
    for home in homes:
        for folder in ("lib64", "lib", f"lib/{_triplet()}"):
            if found := sorted((home / folder).glob(f"lib{name}.so*"), reverse=True):
                return found[0]
    return None


def _triplet() -> str:
    import platform  # noqa: PLC0415

    machine = platform.machine()
    return f"{'powerpc64le' if machine == 'ppc64le' else machine}-linux-gnu"


def _version(nvcc: str, headers: list[Path]) -> str:
    if nvcc:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
        if found := re.search(r"release (\d+\.\d+)", done.stdout):
            return found[1]
    for folder in headers:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
        if found := re.search(r"#define CUDART_VERSION\s+(\d+)", text):
            return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"
    return ""
