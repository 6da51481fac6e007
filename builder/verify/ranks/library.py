"""The host's MPI library in the container, before the container's own.

What sites call the bind model, https://apptainer.org/docs/user/latest/mpi.html#bind-model: a
program of the image runs with the library of the host, where both have the same binary interface.
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines import Tools
from builder.facts.mpi import OPEN_MPI_SYMBOL
from builder.verify.ranks.launchers import ImageMpi, Launcher, Unfit, ask
from builder.verify.runners import Mount

AUTO = "auto"
_AT = "/host-mpi"
_OWN, _OTHERS = "mpi", "others"  # folders below it
_SYSTEM = Path("/usr/bin")  # where the programs are whose library is in a system's folder

# The libraries that are the MPI's; what else they need, the container may have too.
_IS_MPI = re.compile(r"lib(mpi|open-|mca_|oshmem|ompi|pmix|prrte|mpl|opa)[\w.+-]*\.so[\d.]*")
# The C library is the container's: two of them in one process do not work.
_IS_LIBC = re.compile(
    r"(linux-vdso|ld-linux[\w-]*|ld64|lib(c|m|mvec|dl|rt|pthread|resolv|util|nsl|anl))\.so[\d.]*"
)
_LDD = re.compile(r"^\s*(?P<name>\S+) => (?P<path>/\S+)", re.MULTILINE)
_LDCONFIG = re.compile(r"^\s*(?P<name>\S+) \(.*\) => (?P<path>/\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMpi:
    """The host's library as containers are shown it.

    `search` are the folders that come first where the container looks for libraries; `loaded` is
    the file that a rank then has to have, by its path in the container, and `inode` its number.
    """

    source: Path
    loaded: str
    inode: int
    search: tuple[str, ...]
    mounts: tuple[Mount, ...]

    def program(self, *words: str) -> tuple[str, ...]:
        """A command in the container whose libraries are looked for there first."""
        script = (
            'LD_LIBRARY_PATH="$0${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; '
            'export LD_LIBRARY_PATH; exec "$@"'
        )
        return ("sh", "-c", script, ":".join(self.search), *words)


@contextlib.contextmanager
def shown(
    where: str, mpi: ImageMpi, launcher: Launcher, *, work: Path, tools: Tools
) -> Iterator[HostMpi | Unfit]:
    """The host's MPI below the folder `where`, or wherever this host has it (`auto`).

    A folder is shown to containers whole and at its own path, since libraries know the path that
    they were installed to. Of a system's library folder, and of one of links to a library elsewhere
    (a view of Spack's), only the files are shown that belong to the MPI, copies of them, and what
    they need where the container lacks it.
    """
    library = _library(where, mpi, launcher, tools)
    if isinstance(library, Unfit):
        yield library
        return
    folder = work / "host-mpi"
    whole = None if where == AUTO else Path(where).resolve()
    if whole and (_is_system(whole) or not library.is_relative_to(whole)):
        whole = None
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield _staged(library, whole, mpi, folder, tools)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- Where it is ----


def _library(where: str, mpi: ImageMpi, launcher: Launcher, tools: Tools) -> Path | Unfit:
    names = tuple(dict.fromkeys((mpi.soname, *mpi.family.sonames)))
    if where == AUTO:
        candidates = _of_the_host(names, launcher, tools)
        looked = "beside its launcher and where ldconfig knows libraries"
    else:
        if not Path(where).is_dir():
            return Unfit(reason=f"{where}: no such folder on this host")
        candidates = (path for name in names for path in sorted(Path(where).rglob(name)))
        looked = f"below {where}"
    for path in candidates:
        if path.is_file() and _is_of(mpi.family.abi, path):
            return path.resolve()
    wanted = " or ".join(names)
    return Unfit(
        reason=f"this host has no {wanted} of {mpi.family.title}'s binary interface ({looked})"
    )


def _of_the_host(names: tuple[str, ...], launcher: Launcher, tools: Tools) -> Iterator[Path]:
    prefix = Path(launcher.command[0]).resolve().parent.parent
    known = tools.processes.capture(
        ["ldconfig", "-p"], env=tools.environment, timeout_s=20, check=False
    ).stdout
    for name in names:
        yield from (prefix / folder / name for folder in ("lib", "lib64"))
        yield from (Path(one["path"]) for one in _LDCONFIG.finditer(known) if one["name"] == name)


def _is_of(abi: str, library: Path) -> bool:
    """By what is in the file, since Open MPI 1.10 and MPICH give their libraries one name."""
    is_open_mpi = OPEN_MPI_SYMBOL in library.read_bytes()
    return is_open_mpi is (abi == "openmpi")


# ---- How it is shown ----


def _staged(
    library: Path, whole: Path | None, mpi: ImageMpi, folder: Path, tools: Tools
) -> HostMpi:
    for shown_to_ranks in (folder, folder / _OWN, folder / _OTHERS):
        shown_to_ranks.mkdir(parents=True)
        shown_to_ranks.chmod(0o755)  # whatever the caller's umask
    plugins = [one for one in _plugins(library, tools) if not _is_below(one, whole)]
    needed = _needed([library, *_objects(plugins)], tools)
    needed[library.name] = library
    for name, path in needed.items():
        if not _is_below(path, whole) and not _IS_LIBC.fullmatch(name):
            part = _OWN if _IS_MPI.fullmatch(name) else _OTHERS
            shutil.copy(path, folder / part / name)
    loaded = str(library) if whole else f"{_AT}/{_OWN}/{library.name}"
    for name in dict.fromkeys((mpi.soname, *mpi.family.sonames)):
        link = folder / _OWN / name
        if name != library.name:
            link.unlink(missing_ok=True)
            link.symlink_to(loaded if whole else library.name)
    mounts = [Mount(path=folder, at=_AT), *_in_place(plugins, whole)]
    if whole:
        mounts.append(Mount(path=whole, at=str(whole)))
    return HostMpi(
        source=library,
        loaded=loaded,
        inode=(library if whole else folder / _OWN / library.name).stat().st_ino,
        search=(
            f"{_AT}/{_OWN}",
            *([str(library.parent)] if whole else []),
            *_usual_folders(),
            f"{_AT}/{_OTHERS}",
        ),
        mounts=tuple(mounts),
    )


def _in_place(plugins: list[Path], whole: Path | None) -> list[Mount]:
    """Folders at their own paths; where `whole` has but a link to one, at that of its end."""
    ends = [one.resolve() if whole and one.is_relative_to(whole) else one for one in plugins]
    return [Mount(path=one, at=str(one)) for one in ends]


def _plugins(library: Path, tools: Tools) -> list[Path]:
    """The folders of components that the library and its PMIx load when they start."""
    found = [library.parent / "openmpi", library.parent / "pmix"]
    if program := _ompi_info(library):
        told = _told(tools, str(program), "--parsable", "--path", "pkglibdir")
        found += [Path(line.rpartition(":")[2]) for line in told.splitlines()[:1]]
    objects = _objects(one for one in found if one.is_dir())
    for name, path in _needed(objects, tools).items():
        if name.startswith("libpmix.so"):
            found.append(path.resolve().parent / "pmix")
    return [one for one in dict.fromkeys(found) if list(_objects([one]))]


def _ompi_info(library: Path) -> Path | None:
    """The program that came with an Open MPI: another's components would be another MPI's.

    A system's library lies in its library folder or, as Debian 10's, in `openmpi/lib` below it.
    """
    if not _is_of("openmpi", library):
        return None
    folder, prefix = library.parent, library.parent.parent
    own, systems = prefix / "bin/ompi_info", _SYSTEM / "ompi_info"
    if own.is_file():
        return own
    is_systems = _is_system(folder) or _is_system(prefix.parent)
    return systems if is_systems and systems.is_file() else None


def _objects(folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.so"))]


def _needed(objects: Iterable[Path], tools: Tools) -> dict[str, Path]:
    """Everything that shared objects are linked to, by name, as this host finds it."""
    names = [str(path) for path in objects]
    if not names:
        return {}
    found: dict[str, Path] = {}
    for one in _LDD.finditer(_told(tools, "ldd", *names)):
        found.setdefault(one["name"], Path(one["path"]))  # the library's own come first
    return found


def _told(tools: Tools, *command: str) -> str:
    """What a program says, as an ordinary user: ldd starts files of folders that a caller named."""
    return ask(tools, *command, timeout_s=120).stdout


def _usual_folders() -> list[str]:
    """Return where containers have their libraries: what they have too comes before the host's."""
    triplets = (f"{arch}-linux-gnu" for arch in (platform.machine(), "powerpc64le"))
    multiarch = [f"{root}/{one}" for one in triplets for root in ("/lib", "/usr/lib")]
    return [*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def _is_system(folder: Path) -> bool:
    """Whether a folder is the system's: no container survives having its own replaced by it."""
    own = {Path(one) for one in ("/", "/usr", "/lib", "/lib64", "/usr/lib", "/usr/lib64")}
    return folder in own or (folder.parent in own and folder.name.endswith("-linux-gnu"))


def _is_below(path: Path, whole: Path | None) -> bool:
    """Return whether a file is in the folder that is shown whole: a link in there is not enough."""
    return whole is not None and path.resolve().is_relative_to(whole)
