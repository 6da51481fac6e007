"""The native programs that stand for programs of an image, and the ways in which they start.

The format of a description is told in `twins.c`. Paths are those of the files themselves, behind
all links: `cc` and `/bin/sh` lead to whatever the image made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.model.architectures import Architecture
from builder.system.home import LENT_AT

_FOLDERS = (
    *("usr/bin", "usr/lib/apt/methods", "usr/lib/apt/solvers", "usr/lib/apt/planners"),
    "usr/lib/nvidia-cuda-toolkit/bin",
)

# Programs that tell about the machine, or change other programs by its libraries.
_FOREIGN = {"arch", "uname", "nproc", "stdbuf"}
# Those of dpkg that know which architecture is their own.
_FOREIGN |= {"dpkg", "dpkg-query", "dpkg-divert", "dpkg-statoverride", "dpkg-trigger"}
# apt knows it from its configuration.
_APT = ("apt", "apt-cache", "apt-cdrom", "apt-config", "apt-get", "apt-mark")
_PYTHON = re.compile(r"python3\.\d+")
_BINUTILS = [
    *("addr2line", "ar", "as", "c++filt", "elfedit", "gprof", "ld.bfd", "nm", "objcopy"),
    *("objdump", "ranlib", "readelf", "size", "strings", "strip"),
]
_WITH_PLUGINS = {"ar", "ld.bfd", "nm", "ranlib"}
_DRIVERS = ("gcc", "g++", "gfortran", "cpp")
_GCC_OTHERS = ("gcc-ar", "gcc-nm", "gcc-ranlib", "gcov", "gcov-dump", "gcov-tool")
_PASSES = ("cc1", "cc1plus", "f951", "collect2", "lto1", "lto-wrapper")
_SEE_HEADERS = {"cc1", "cc1plus"}


def descriptions(root: Path, triplet: str, arch: Architecture) -> dict[str, str]:
    """The description of each twin in `root`, by the path of the program in the image."""
    folders = [folder for name in _FOLDERS if (folder := root / name).is_dir()]
    found = {
        f"/{path.relative_to(root)}": f"={LENT_AT}/{path.relative_to(root)}\n"
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.name not in _FOREIGN and not path.is_symlink() and "linux-gnu-" not in path.name
    }
    for path in found:
        if path.rpartition("/")[2] in _APT:
            found[path] += f"+-oAPT::Architecture={arch.debian}\n"
        elif _PYTHON.fullmatch(name := path.rpartition("/")[2]):
            # It runs the image's own /usr/lib/python3.N; what it compiles to is for any machine.
            found[path] += f"?/usr/lib/{name}/py_compile.py\n?compileall\n"
    machine = triplet.partition("-")[0]
    found["/usr/bin/bash"] += f"$HOSTTYPE={machine}\n$MACHTYPE={machine}-unknown-linux-gnu\n"
    majors = sorted(path.name for path in (root / "usr/lib/gcc-cross" / triplet).iterdir())
    plugins = "P\n" + "".join(_plugins(root, triplet, majors))
    for name in _BINUTILS:
        program = f"/usr/bin/{triplet}-{name}"
        found[program] = f"={LENT_AT}{program}\n{plugins if name in _WITH_PLUGINS else ''}"
    for major in majors:
        found.update(_compiler(root, triplet, major))
    return {path: text for path, text in found.items() if _target(root, text).is_file()}


def _plugins(root: Path, triplet: str, majors: Iterable[str]) -> Iterator[str]:
    """The image's compilers name their own linker plugins, which native linkers cannot load."""
    for major in majors:
        native = f"{LENT_AT}{_folder_of_passes(root, triplet, major)}/liblto_plugin.so"
        for folder in ("lib", "libexec"):
            yield f"~/usr/{folder}/gcc/{triplet}/{major}/liblto_plugin.so={native}\n"


def _target(root: Path, text: str) -> Path:
    return root / text.splitlines()[0].removeprefix(f"={LENT_AT}/")


def _compiler(root: Path, triplet: str, major: str) -> Iterator[tuple[str, str]]:
    """gcc's programs of one major version.

    The driver is told to look for its passes among the native tools, and for everything that
    goes into a program or that a program is compiled with - headers, start files, libraries -
    where the image's own compiler looks.
    """
    own = f"/usr/lib/gcc/{triplet}/{major}"
    passes = _folder_of_passes(root, triplet, major)
    headers = (
        ">C_INCLUDE_PATH=/usr/local/include\n"
        f">CPLUS_INCLUDE_PATH=/usr/include/c++/{major}:/usr/include/{triplet}/c++/{major}:"
        f"/usr/include/c++/{major}/backward:/usr/local/include\n"
    )
    driver = (
        # The image's own may offload to GPUs, and then links more; cross-compilers need not.
        "!-fopenmp\n!-fopenacc\n"
        f"$GCC_EXEC_PREFIX=/usr/lib/gcc/\n"
        f">COMPILER_PATH={LENT_AT}{passes}\n"
        "LLIBRARY_PATH\n"  # which cross-compilers take no notice of
        f"{headers}"
    )
    for name in _DRIVERS:
        program = f"/usr/bin/{triplet}-{name}-{major}"
        yield program, f"={LENT_AT}{program}\n{driver}"
    for name in _GCC_OTHERS:  # gcc-ar looks for the linker's plugin from where it lies itself
        program = f"/usr/bin/{triplet}-{name}-{major}"
        yield program, f"={LENT_AT}{program}\n0{LENT_AT}{program}\n"
    for name in _PASSES:
        for folder in (own, own.replace("/usr/lib/", "/usr/libexec/")):
            # The driver says where headers are, but to these the image's own has nothing to say.
            told = f"+-iprefix\n+{own}/\n{headers}" if name in _SEE_HEADERS else ""
            yield f"{folder}/{name}", f"={LENT_AT}{passes}/{name}\n{told}"


def _folder_of_passes(root: Path, triplet: str, major: str) -> str:
    """Below usr/libexec from gcc 13 on, below usr/lib before."""
    for folder in ("libexec", "lib"):
        path = f"/usr/{folder}/gcc-cross/{triplet}/{major}"
        if (root / path.lstrip("/") / "cc1").exists():
            return path
    return f"/usr/lib/gcc-cross/{triplet}/{major}"
