"""Facts about compilers: since which release they take an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibrary:
    """A shared library that wheels may rely on, though not every image has it.

    `deb` and `rpm` are the packages that have it, and `with_it` those whose dependencies bring it.
    """

    soname: str
    deb: str
    rpm: str
    with_it: tuple[str, ...] = ()


# In every image: glibc, and the run-time libraries of gcc, https://peps.python.org/pep-0599/
IN_EVERY_IMAGE = re.compile(
    r"(ld-linux.*|ld64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|libcrypt"
    r"|libgcc_s|libstdc\+\+|libz|libanl)\.so(\.[\d.]+)?"
)
# PEP 599 lets wheels rely on these. Packages: https://packages.debian.org (search for files) and
# https://git.centos.org/rpms (their spec files).
HOST_LIBRARIES: Mapping[str, HostLibrary] = {
    library.soname: library
    for library in (
        HostLibrary(soname="libICE.so.6", deb="libice6", rpm="libICE", with_it=("libsm6", "libSM")),
        HostLibrary(soname="libSM.so.6", deb="libsm6", rpm="libSM"),
        HostLibrary(
            soname="libX11.so.6",
            deb="libx11-6",
            rpm="libX11",
            with_it=("libxext6", "libxrender1", "libXext", "libXrender"),
        ),
        HostLibrary(soname="libXext.so.6", deb="libxext6", rpm="libXext"),
        HostLibrary(soname="libXrender.so.1", deb="libxrender1", rpm="libXrender"),
        HostLibrary(soname="libGL.so.1", deb="libgl1", rpm="mesa-libGL"),
        HostLibrary(soname="libglib-2.0.so.0", deb="libglib2.0-0", rpm="glib2"),
        HostLibrary(soname="libgthread-2.0.so.0", deb="libglib2.0-0", rpm="glib2"),
        HostLibrary(soname="libgomp.so.1", deb="libgomp1", rpm="libgomp", with_it=("gcc",)),
        HostLibrary(soname="libexpat.so.1", deb="libexpat1", rpm="expat", with_it=("python3",)),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishersIndex:
    """An index that has some versions of a package. `url` begins its address; `example` is one."""

    package: str
    versions: str
    url: str
    example: str
    source: str


_REDIST = "https://developer.download.nvidia.com/compute/redist"
_DALI = "https://docs.nvidia.com/deeplearning/dali/archives"
PUBLISHERS_INDEXES = (
    PublishersIndex(
        package="nvidia-dali",
        versions=">=0.8,<0.23",
        url=f"{_REDIST}/cuda/",
        example=f"{_REDIST}/cuda/10.0",
        source=f"{_DALI}/dali_0110_beta/dali-developer-guide/docs/installation.html",
    ),
    PublishersIndex(
        package="nvidia-dali-cuda100",
        versions=">=0.23,<1.5",
        url=_REDIST,
        example=_REDIST,
        source=f"{_DALI}/dali_0250/user-guide/docs/installation.html",
    ),
)
