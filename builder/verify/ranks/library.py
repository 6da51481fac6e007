"""The host's MPI library in a container, in place of the container's own.

Sites call this the bind model, https://apptainer.org/docs/user/latest/mpi.html#bind-model: a
program of the image uses the host's library, if both have the same binary interface (ABI).
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Tools
from builder.facts.mpi import OPEN_MPI_SYMBOL
from builder.verify.ranks.launchers import ImageMpi, Launcher, Unfit, ask

AUTO = "auto"
_AT = "/host-mpi"

# The MPI's own libraries; the container may have the other libraries that they need.
_IS_MPI = re.compile(r"lib(mpi|open-|mca_|oshmem|ompi|pmix|prrte|mpl|opa)[\w.+-]*\.so[\d.]*")
# The container's C library is always used: two C libraries in one process do not work.
_IS_LIBC = re.compile(
    r"(linux-vdso|ld-linux[\w-]*|ld64|lib(c|m|mvec|dl|rt|pthread|resolv|util|nsl|anl))\.so[\d.]*"
)
# Intel MPI opens libfabric by name while it runs. Intel's copy of it finds the providers in the
# folder beside it only by this variable: https://ofiwg.github.io/libfabric/main/man/fabric.7.html
_FABRIC, _PROVIDERS, _PROVIDER_PATH = "libfabric.so.1", "prov", "FI_PROVIDER_PATH"
_LDD = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)  # names and paths
_LDCONFIG = re.compile(r"^\s*(\S+) \(.*\) => (/\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundLibrary:
    """The host's MPI library as it is mounted in containers.

    `search` are the folders that come first in the container's library path. `loaded` is the path
    in the container of the file that a rank has to load, and `inode` is its inode number. `mounts`
    are folders of the host by their paths in the container. `providers` is the folder of those of
    its libfabric, empty if there is none.
    """

    source: Path
    loaded: str
    inode: int
    search: tuple[str, ...]
    mounts: Mapping[str, Path]
    providers: str

    def program(self, *argv: str) -> tuple[str, ...]:
        """Return a command that looks for libraries in the folders of `search` first."""
        if self.providers:
            argv = ("env", f"{_PROVIDER_PATH}={self.providers}", *argv)
        script = (
            'LD_LIBRARY_PATH="$0${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; '
            'export LD_LIBRARY_PATH; exec "$@"'
        )
        return ("sh", "-c", script, ":".join(self.search), *argv)


@contextlib.contextmanager
def bound_library(
    where: str, mpi: ImageMpi, launcher: Launcher, *, work: Path, tools: Tools
) -> Iterator[BoundLibrary]:
    """Find the host's MPI below the folder `where`, or anywhere on this host (`auto`).

    A folder is mounted unchanged at its own path, since libraries contain the path at which they
    were installed. From a system's library folder, or a folder of links to libraries elsewhere (a
    view of Spack's), only copies of the MPI's files are mounted, and copies of the libraries that
    they need, for a container that lacks them. Raises `Unfit`.
    """
    library = _library(where, mpi, launcher, tools)
    folder = work / "host-mpi"
    prefix = None if where == AUTO else Path(where).resolve()
    if prefix and (_is_system(prefix) or not library.is_relative_to(prefix)):
        prefix = None
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield _staged(library, prefix, mpi, folder, tools)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _names(mpi: ImageMpi) -> list[str]:
    return list(dict.fromkeys((mpi.soname, *mpi.family.sonames)))


# ---- Finding the library ----


def _library(where: str, mpi: ImageMpi, launcher: Launcher, tools: Tools) -> Path:
    names = _names(mpi)
    if where == AUTO:
        candidates = _of_the_host(names, launcher, tools)
        places = "beside its launcher and where ldconfig knows libraries"
    elif Path(where).is_dir():
        candidates = (path for name in names for path in sorted(Path(where).rglob(name)))
        places = f"below {where}"
    else:
        raise Unfit(f"{where}: no such folder on this host")
    for path in candidates:
        if path.is_file() and _is_of(mpi.family.abi, path):
            return path.resolve()
    interface = f"{mpi.family.title}'s binary interface"
    raise Unfit(f"this host has no {' or '.join(names)} of {interface} ({places})")


def _of_the_host(names: Iterable[str], launcher: Launcher, tools: Tools) -> Iterator[Path]:
    prefix = Path(launcher.command[0]).resolve().parent.parent
    for name in names:
        yield from (prefix / folder / name for folder in ("lib", "lib64"))
        yield from _in_the_system(name, tools)


def _in_the_system(name: str, tools: Tools) -> list[Path]:
    """Return the paths of a library where the loader looks without being told."""
    known = tools.processes.capture(
        ["ldconfig", "-p"], env=tools.environment, timeout_s=20, check=False
    ).stdout
    return [Path(path) for known_as, path in _LDCONFIG.findall(known) if known_as == name]


def _is_of(abi: str, library: Path) -> bool:
    """Read the ABI from the file, since libraries of Open MPI 1.10 and MPICH share a name."""
    is_open_mpi = OPEN_MPI_SYMBOL in library.read_bytes()
    return is_open_mpi is (abi == "openmpi")


# ---- Mounting the library ----


def _staged(
    library: Path, prefix: Path | None, mpi: ImageMpi, folder: Path, tools: Tools
) -> BoundLibrary:
    """Copy to `folder` all files that containers need and that are not below `prefix`."""
    own, others = folder / "mpi", folder / "others"
    for staged in (folder, own, others):
        staged.mkdir()
        staged.chmod(0o755)  # regardless of the caller's umask
    fabric = _fabric(library, prefix, tools)
    providers = [path for each in fabric if _objects([path := each.parent / _PROVIDERS])]
    plugins = [
        path for path in (*_plugins(library, tools), *providers) if not _is_below(path, prefix)
    ]
    needed = _needed([library, *fabric, *_objects(plugins)], tools)
    needed |= {path.name: path for path in (library, *fabric)}
    parts = [library, *needed.values()]
    for name, path in needed.items():
        if not _is_below(path, prefix) and not _IS_LIBC.fullmatch(name):
            shutil.copy(path, (own if _IS_MPI.fullmatch(name) else others) / name)
    loaded = str(library) if prefix else f"{_AT}/{own.name}/{library.name}"
    for name in _names(mpi):
        if name != library.name:
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(loaded if prefix else library.name)
    # Plugins are mounted at their own paths; if `prefix` only has links, at the links' targets.
    paths = [path.resolve() if _is_shown(path, prefix) else path for path in plugins]
    return BoundLibrary(
        source=library,
        loaded=loaded,
        inode=(library if prefix else own / library.name).stat().st_ino,
        search=(
            f"{_AT}/{own.name}",
            *dict.fromkeys(str(path.parent) for path in parts if _is_shown(path, prefix)),
            *_usual_folders(),
            f"{_AT}/{others.name}",
        ),
        mounts={
            _AT: folder,
            **{str(path): path for path in (*paths, *([prefix] if prefix else []))},
        },
        providers=next(map(str, providers), ""),
    )


def _fabric(library: Path, prefix: Path | None, tools: Tools) -> list[Path]:
    """Return the libfabric that an MPI opens by name; empty if it opens none, or is linked to it.

    The nearest one below the MPI's own folder comes before the system's.
    """
    if _FABRIC.encode() not in library.read_bytes() or _FABRIC in _needed([library], tools):
        return []
    top = prefix or library.parent.parent
    own = [each for each in library.parents if each.is_relative_to(top) and not _is_system(each)]
    nearest = (path for folder in own for path in sorted(folder.rglob(_FABRIC)))
    return [*nearest, *_in_the_system(_FABRIC, tools)][:1]


def _plugins(library: Path, tools: Tools) -> list[Path]:
    """Return the folders of plugins that the library and its PMIx load when they start.

    Open MPI's are beside the library; Debian's folder `openmpi3` is beside it or below `openmpi`.
    """
    patterns = ["pmix"]
    if _is_of("openmpi", library):
        patterns += ["openmpi", "openmpi?", "openmpi/lib/openmpi?"]
    folders = [folder for pattern in patterns for folder in sorted(library.parent.glob(pattern))]
    needed = _needed(_objects(folders), tools)
    folders += [
        path.resolve().parent / "pmix"
        for name, path in needed.items()
        if name.startswith("libpmix.so")
    ]
    return [folder for folder in dict.fromkeys(folders) if _objects([folder])]


def _objects(folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.so"))]


def _needed(objects: Iterable[Path], tools: Tools) -> dict[str, Path]:
    """Return the libraries of objects; ldd may execute a file, so it runs as ordinary user."""
    names = [str(path) for path in objects]
    links = _LDD.findall(ask(tools, "ldd", *names, timeout_s=120).stdout) if names else []
    return {name: Path(path) for name, path in reversed(links)}  # the library's own have precedence


def _usual_folders() -> list[str]:
    """Return the library folders of containers, which take precedence over the host's copies."""
    triplets = (f"{arch}-linux-gnu" for arch in (platform.machine(), "powerpc64le"))
    multiarch = [f"{root}/{triplet}" for triplet in triplets for root in ("/lib", "/usr/lib")]
    return [*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def _is_system(folder: Path) -> bool:
    """Return whether a folder is the system's: containers break if their own is replaced."""
    own = {Path(path) for path in ("/", "/usr", "/lib", "/lib64", "/usr/lib", "/usr/lib64")}
    return folder in own or (folder.parent in own and folder.name.endswith("-linux-gnu"))


def _is_shown(path: Path, prefix: Path | None) -> bool:
    """Return whether a path is in the mounted folder, be it a link."""
    return prefix is not None and path.is_relative_to(prefix)


def _is_below(path: Path, prefix: Path | None) -> bool:
    """Return whether a file itself is in the mounted folder; a link there is not enough."""
    return prefix is not None and path.resolve().is_relative_to(prefix)
