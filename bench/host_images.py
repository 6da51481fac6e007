"""Small images copied out of this host: a base with a shell, and those with the host's MPI.

For tests and benchmarks where the content does not matter, and for those that start ranks: launcher
and library are of one version, as Open MPI asks for. Debian's folders are taken, on whatever
architecture the host has.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from made_formats import Node
from small_images import PATH, PROGRAMS, Base, Check, Maker, Small, layer_in

from builder.build.engines import Tools
from builder.model import FORMATS
from builder.model.manifest import MANIFEST

PROJECT = Path(__file__).resolve().parents[1]
_PROGRAM = "opt/build-images/bin/mpi"
_LIBRARIES = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
_SHELL = ("sh", "env", "cat", "uname", "hostname", "sleep", "true", "id")
_SINGLETONS = ("orted", "ssh")  # which a process without a launcher starts, and looks for
_ACCOUNTS = ("etc/passwd", "etc/group", "etc/ld.so.conf")
# No rank reads them. The plugins of hwloc are left out, too: one needs 30 MB of Unicode's tables.
_FOR_COMPILERS = re.compile(r"/include/|\.(a|la|h|mod|pc)$")
_BASE = (
    *(*PROGRAMS, "seq", "dd", "date", "echo", "touch", "mkdir", "chmod", "cp", "mv", "ln", "test"),
    *("rmdir", "stat", "getent", "tee", "sha256sum", "chown", "mkfifo"),
)
_FOLDERS = (
    *("dev", "proc", "sys", "run", "tmp", "root", "home", "mnt", "srv", "opt", "etc"),
    *("var/tmp", "var/log", "usr/local/bin"),
)
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMpi:
    """The MPI of an image of ranks: its cell, the compiler with its options, files, variables."""

    axis: str
    compiler: tuple[str, ...]
    files: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


_TRANSPORTS = ("etc/libibverbs.d", *(f"{_LIBRARIES}/{name}" for name in ("ucx", "libibverbs")))
OPEN_MPI = RankMpi(
    axis="openmpi4.1",
    compiler=("mpicc.openmpi",),
    files=(
        *("etc/openmpi", "usr/share/openmpi", "usr/share/pmix"),
        *_TRANSPORTS,
        *(f"{_LIBRARIES}/{name}" for name in ("openmpi", "pmix2")),
        # Loaded by name while a program runs.
        *(f"{_LIBRARIES}/{name}" for name in ("libnss_files.so.2", "libmunge.so.2")),
        *(f"usr/bin/{name}" for name in _SINGLETONS),
    ),
    environment={"OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
)
# Parts of the C library that only a bound library needs; every complete image has them.
_C_LIBRARY = tuple(
    f"{_LIBRARIES}/{name}" for name in ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
)
MPICH = RankMpi(axis="mpich4.0", compiler=("mpicc.mpich",), files=(*_TRANSPORTS, *_C_LIBRARY))


def mpi_of_host(folder: Path) -> RankMpi:
    """No MPI: the program needs one of MPICH's ABI, which is bound in. One is below `folder`."""
    headers, libraries = f"-I/usr/include/{_LIBRARIES[8:]}/mpich", f"-L{folder}/lib"
    return RankMpi(
        axis="intelmpi2021.13",
        compiler=("gcc", headers, libraries, "-l:libmpi.so.12"),
        files=_C_LIBRARY,
    )


def rank_image(work: Path, tools: Tools, arch: str, mpi: RankMpi = OPEN_MPI) -> Path:
    """The folder of an image whose check `mpi` a compiler of the host has compiled."""
    (work / "sif").mkdir(parents=True)
    if tools.ordinary_user:
        shutil.chown(work / "sif", tools.ordinary_user)
    program = work / "mpi"
    sources = PROJECT / "tests/images"
    options = ["-std=c99", "-O2", "-o", str(program), str(sources / "mpi.c")]
    compiler, *libraries = mpi.compiler
    subprocess.run([compiler, *options, *libraries], check=True)
    names = (*_ACCOUNTS, *mpi.files, *(f"usr/bin/{name}" for name in _SHELL))
    things = dict(_things(names, {f"/{_PROGRAM}": program}))
    blob, layer = layer_in(things, work)
    base = Base(arch=arch, blob=blob, layer=layer, things=things)
    maker = Maker(bases={arch: base}, out=work / "out", work=work, tools=tools)
    environment = {"PATH": PATH, **mpi.environment}
    check = Check(
        name="mpi",
        text=f"mpirun --oversubscribe -n 4 /{_PROGRAM} 4 multiple",
        timeout_s=180,
        needs=("mpi",),
    )
    folder = maker.make(
        Small(
            identifier=f"ranks-{arch}",
            arch=arch,
            trees={name: {} for name in FORMATS},
            environments=dict.fromkeys(FORMATS, environment),
            checks=(check,),
        )
    )
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["cell"]["mpi"] = mpi.axis
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def write_base(target: Path) -> None:
    """Write a root file system as a tar file: a shell, and what steps and checks call."""
    names = (*_ACCOUNTS, "etc/os-release", "usr/sbin/ldconfig", *(f"usr/bin/{n}" for n in _BASE))
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, thing in sorted(_things(names, {})):
            archive.addfile(thing.member(path), io.BytesIO(thing.data))


def _things(names: Iterable[str], more: dict[str, Path]) -> Iterator[tuple[str, Node]]:
    """The files by their paths in the image, with the libraries that they need.

    Each is where it is on this host, and links to it are links.
    """
    files = {str(path): path for name in names for path in _below(Path("/", name))}
    files |= {str(path): path for path in _needed([*files.values(), *more.values()])}
    files |= {str(path.resolve()): path for path in files.values()} | more
    folders = {f"/{name}" for name in _FOLDERS}
    folders |= {str(parent) for path in (*files, *folders) for parent in Path(path).parents}
    for path in folders - {"/"}:
        mode = 0o1777 if path.endswith("/tmp") else 0o755
        yield path[1:], Node(kind=tarfile.DIRTYPE, mode=mode)
    for name, target in _LINKS.items():
        yield name, Node(kind=tarfile.SYMTYPE, target=target, mode=0o777)
    for path, file in files.items():
        if (real := str(file.resolve())) != path and real in files:
            yield path[1:], Node(kind=tarfile.SYMTYPE, target=real, mode=0o777)
        else:
            yield path[1:], Node(data=file.read_bytes(), mode=file.stat().st_mode & 0o777)


def _below(path: Path) -> Iterable[Path]:
    """A file, or all files below a folder that programs use; nothing where this host has none."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if not _FOR_COMPILERS.search(str(file)))
        return [file for file in files if file.is_file()]
    return [path] if path.exists() else []


def _needed(files: Iterable[Path]) -> set[Path]:
    """The libraries that programs and libraries are linked with, and the loader, below /usr."""
    programs = [str(path) for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    names = {match[1] for match in re.finditer(r"(/\S+) \(0x", listed)}
    return {
        Path("/usr", *Path(name).parts[1:]) if name.startswith("/lib") else Path(name)
        for name in names
    }
