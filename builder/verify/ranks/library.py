"""The host's MPI library in the container, before the container's own.

What sites call the bind model, https://apptainer.org/docs/user/latest/mpi.html#bind-model: a
program of the image runs with the library of the host, where both have the same binary interface.
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

# The libraries that are the MPI's; the container may have the others that they need.
_IS_MPI = re.compile(r"lib(mpi|open-|mca_|oshmem|ompi|pmix|prrte|mpl|opa)[\w.+-]*\.so[\d.]*")
# The C library is the container's: two of them in one process do not work.
_IS_LIBC = re.compile(
    r"(linux-vdso|ld-linux[\w-]*|ld64|lib(c|m|mvec|dl|rt|pthread|resolv|util|nsl|anl))\.so[\d.]*"
)
_LDD = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)  # names and paths
_LDCONFIG = re.compile(r"^\s*(\S+) \(.*\) => (/\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundLibrary:
    """The host's MPI library as containers are shown it.

    `search` are the folders that come first where the container looks for libraries; `loaded` is
    the file that a rank then has to have, by its path in the container, and `inode` its number.
    `mounts` are folders of the host by their paths in the container.
    """

    source: Path
    loaded: str
    inode: int
    search: tuple[str, ...]
    mounts: Mapping[str, Path]

    def program(self, *argv: str) -> tuple[str, ...]:
        """Return a command in the container whose libraries are looked for there first."""
        script = (
            'LD_LIBRARY_PATH="$0${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; '
            'export LD_LIBRARY_PATH; exec "$@"'
        )
        return ("sh", "-c", script, ":".join(self.search), *argv)


@contextlib.contextmanager
def bound_library(
    where: str, mpi: ImageMpi, launcher: Launcher, *, work: Path, tools: Tools
) -> Iterator[BoundLibrary]:
    """The host's MPI below the folder `where`, or wherever this host has it (`auto`).

    A folder is shown to containers as it is and at its own path, since libraries know the path that
    they were installed to. Of a system's library folder, and of one of links to a library elsewhere
    (a view of Spack's), only the files are shown that belong to the MPI, copies of them, and what
    they need where the container lacks it. Raises `Unfit`.
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


# ---- Where it is ----


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
    known = tools.processes.capture(
        ["ldconfig", "-p"], env=tools.environment, timeout_s=20, check=False
    ).stdout
    for name in names:
        yield from (prefix / folder / name for folder in ("lib", "lib64"))
        yield from (Path(path) for known_as, path in _LDCONFIG.findall(known) if known_as == name)


def _is_of(abi: str, library: Path) -> bool:
    """Look into the file, since Open MPI 1.10 and MPICH give their libraries one name."""
    is_open_mpi = OPEN_MPI_SYMBOL in library.read_bytes()
    return is_open_mpi is (abi == "openmpi")


# ---- How it is shown ----


def _staged(
    library: Path, prefix: Path | None, mpi: ImageMpi, folder: Path, tools: Tools
) -> BoundLibrary:
    """Copy to `folder` all that containers need beside what is below `prefix`."""
    own, others = folder / "mpi", folder / "others"
    for staged in (folder, own, others):
        staged.mkdir(parents=True)
        staged.chmod(0o755)  # whatever the caller's umask
    plugins = [path for path in _plugins(library, tools) if not _is_below(path, prefix)]
    needed = _needed([library, *_objects(plugins)], tools) | {library.name: library}
    for name, path in needed.items():
        if not _is_below(path, prefix) and not _IS_LIBC.fullmatch(name):
            shutil.copy(path, (own if _IS_MPI.fullmatch(name) else others) / name)
    loaded = str(library) if prefix else f"{_AT}/{own.name}/{library.name}"
    for name in _names(mpi):
        if name != library.name:
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(loaded if prefix else library.name)
    # Plugins at their own paths; where `prefix` has but a link to them, at that of its end.
    ends = [path.resolve() if prefix and path.is_relative_to(prefix) else path for path in plugins]
    return BoundLibrary(
        source=library,
        loaded=loaded,
        inode=(library if prefix else own / library.name).stat().st_ino,
        search=(
            f"{_AT}/{own.name}",
            *([str(library.parent)] if prefix else []),
            *_usual_folders(),
            f"{_AT}/{others.name}",
        ),
        mounts={
            _AT: folder,
            **{str(path): path for path in (*ends, *([prefix] if prefix else []))},
        },
    )


def _plugins(library: Path, tools: Tools) -> list[Path]:
    """Return the folders of components that the library and its PMIx load when they start.

    Open MPI's lie beside it, Debian's in a folder `openmpi3` that is beside it or below `openmpi`.
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
    """Return what objects are linked to; an ordinary user asks, since ldd may start a file."""
    names = [str(path) for path in objects]
    links = _LDD.findall(ask(tools, "ldd", *names, timeout_s=120).stdout) if names else []
    return {name: Path(path) for name, path in reversed(links)}  # the library's own have precedence


def _usual_folders() -> list[str]:
    """Return where containers have their libraries: what they have too comes before the host's."""
    triplets = (f"{arch}-linux-gnu" for arch in (platform.machine(), "powerpc64le"))
    multiarch = [f"{root}/{triplet}" for triplet in triplets for root in ("/lib", "/usr/lib")]
    return [*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def _is_system(folder: Path) -> bool:
    """Return whether a folder is the system's: no container survives its own being replaced."""
    own = {Path(path) for path in ("/", "/usr", "/lib", "/lib64", "/usr/lib", "/usr/lib64")}
    return folder in own or (folder.parent in own and folder.name.endswith("-linux-gnu"))


def _is_below(path: Path, prefix: Path | None) -> bool:
    """Return whether a file is in the folder that is shown: a link in there is not enough."""
    return prefix is not None and path.resolve().is_relative_to(prefix)
