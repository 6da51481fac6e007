"""What compilers fix: since which release they take an option."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerFlag:
    """An option and the first release that takes it under this name."""

    name: str
    since: str
    source: str


_GCC = "https://gcc.gnu.org"
_CXX, _C = f"{_GCC}/projects/cxx-status.html", f"{_GCC}/onlinedocs/gcc-{{}}/gcc/"
# `-std=c++14` is `-std=c++1y` before GCC 5, https://gcc.gnu.org/gcc-5/changes.html
GCC_FLAGS = (
    *(
        CompilerFlag(name=f"-std={name}{standard}", since=since, source=source)
        for standard, since, source in (
            ("++11", "4.7", _CXX),
            ("++14", "5", _CXX),
            ("++17", "5", _CXX),
            ("++20", "10", _CXX),
            ("++23", "11", _CXX),
            ("11", "4.7", f"{_GCC}/gcc-4.7/changes.html"),
            ("17", "8", f"{_GCC}/gcc-8/changes.html"),
            ("99", "3.0", f"{_GCC}/onlinedocs/gcc/Standards.html"),
        )
        for name in ("c", "gnu")
    ),
    *(
        CompilerFlag(
            name=name, since=since, source=f"{_GCC}/gcc-{since.split('.')[0]}/changes.html"
        )
        for name, since in (
            ("-mcpu=power9", "6"),
            ("-mcpu=power10", "10"),
            ("-march=x86-64-v2", "11"),
            ("-march=x86-64-v3", "11"),
            ("-march=x86-64-v4", "11"),
        )
    ),
    CompilerFlag(name="-mcpu=power8", since="4.8", source=f"{_GCC}/gcc-4.8/changes.html"),
)

_CUDA = "https://docs.nvidia.com/cuda/archive/{}/cuda-toolkit-release-notes/"
NVCC_FLAGS = (
    CompilerFlag(name="-std=c++11", since="7.0", source=_CUDA.format("7.0")),
    CompilerFlag(name="-std=c++14", since="9.0", source=_CUDA.format("9.0")),
    CompilerFlag(name="-std=c++17", since="11.0", source=_CUDA.format("11.0")),
    CompilerFlag(name="-std=c++20", since="12.0", source=_CUDA.format("12.0.0")),
)
