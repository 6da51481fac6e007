"""What programs of this host say of themselves: MPIs, Slurm, container runtimes."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.facts.mpi import MPI_FAMILIES, OPEN_MPI_SYMBOL, launcher_family
from builder.host.doctor import Roots
from builder.host.doctor.programs import answer
from builder.host.records import HostMpi, HostRuntime, HostSlurm
from builder.model.exact_json import part
from builder.model.versions import first_version
from builder.system.process import Completed, Processes

_LAUNCHERS = ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich")
_FOLDERS = ("lib", "lib64", "lib/release")  # the last is Intel MPI's
# Those of IBM and HPE have names of their own; other names are those of MPI's other languages.
_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_(ibm|cray|gnu|nvidia|intel|amd|aocc)(_\d+)?)\.so\.\d+")
_SYMBOL = re.compile(rb"GLIBC_(\d+(?:\.\d+)+)\0")
_LDD = re.compile(r"=> (/\S+)")
_C_LIBRARY = re.compile(r"/(libc|libm|libpthread|libdl|librt|libresolv|libutil|ld[-\w]*)[.-]")
_EXTERNAL = re.compile(r"MCA pmix: ext")
_PMI = re.compile(r"^(none|openmpi|cray_shasta|pmi\w*)$")
_LISTED = re.compile(r"^srun:\s*|[,:]")


class Programs:
    """Asks programs of one search path. What cannot be asked is not known."""

    def __init__(self, processes: Processes, search_path: str) -> None:
        self._processes, self._path = processes, search_path

    def find(self, name: str) -> str | None:
        return shutil.which(name, path=self._path)

    def ask(self, *argv: str) -> Completed | None:
        """What a program prints; None if it is not there, does not start or does not end."""
        found = self.find(argv[0])
        if found is None:
            return None
        done = answer(self._processes, [found, *argv[1:]], search_path=self._path)
        return None if isinstance(done, str) else done

    def said(self, *argv: str) -> str:
        """What a program that ended well printed."""
        done = self.ask(*argv)
        return done.stdout + done.stderr if done and done.returncode == 0 else ""


def mpis(programs: Programs, variables: Mapping[str, str]) -> tuple[HostMpi, ...] | None:
    """The MPIs whose launchers are on the search path, each once, and Cray's, by `variables`.

    None where there are launchers, and none is of a family that is known.
    """
    found: dict[tuple[str, str], HostMpi] = {}
    if cray := _cray_mpich(programs, variables):
        found[cray.family, cray.version] = cray
    paths = {name: path for name in _LAUNCHERS if (path := programs.find(name))}
    for name, path in paths.items():
        said = programs.said(name, "--version")
        family = launcher_family(said)
        if family:
            one = _mpi(programs, family, Path(path), said)
            found.setdefault((one.family, one.version), one)
    return tuple(found.values()) if found or not paths else None


def _cray_mpich(programs: Programs, variables: Mapping[str, str]) -> HostMpi | None:
    """The Cray MPICH that a module has loaded: it has no launcher to be found by.

    intro_mpi(3) of the Cray environment: https://cpe.ext.hpe.com/docs/latest/mpt/mpich/intro_mpi.html
    """
    folder = variables.get("CRAY_MPICH_DIR")
    if not folder:
        return None
    libraries = _in_folders([Path(folder, name) for name in ("lib", "lib-abi-mpich")])
    return HostMpi(
        family="craympich",
        version=variables.get("CRAY_MPICH_VERSION", ""),
        libraries=tuple(sorted({one.name for one in libraries})) if libraries else None,
        glibc=_glibc(programs, libraries),
    )


def _mpi(programs: Programs, family: str, launcher: Path, said: str) -> HostMpi:
    version = first_version(said)
    # MVAPICH2 is told by a program of its own.
    named = programs.said("mpiname", "-a") if family == "mpich" else ""
    if named.startswith("MVAPICH2"):
        family, version = "mvapich2", first_version(named)
    libraries = _libraries(launcher, family)
    return HostMpi(
        family=family,
        version=version,
        launcher=str(launcher),
        libraries=tuple(sorted({one.name for one in libraries})) if libraries else None,
        glibc=_glibc(programs, libraries),
        pmix=_pmix(programs) if family == "openmpi" else "",
    )


def _libraries(launcher: Path, family: str) -> list[Path]:
    """The libraries of the prefix that a launcher lies in; Debian has all MPIs in one."""
    prefixes = dict.fromkeys([launcher.parent.parent, launcher.resolve().parent.parent])
    folders = [
        folder
        for prefix in prefixes
        for folder in (*(prefix / name for name in _FOLDERS), *prefix.glob("lib/*-linux-gnu"))
    ]
    return [file for file in _in_folders(folders) if _is_of(file, family)]


def _in_folders(folders: list[Path]) -> list[Path]:
    """The libraries that programs are linked to, each once."""
    found = [
        file
        for folder in folders
        if folder.is_dir()
        for file in folder.iterdir()
        if _LIBRARY.fullmatch(file.name)
    ]
    return list({file.resolve(): file for file in found}.values())


def _is_of(library: Path, family: str) -> bool:
    """Return whether a library is of a family: Open MPI's asks for its own helpers by name."""
    try:
        is_open_mpi = OPEN_MPI_SYMBOL in library.read_bytes()
    except OSError:
        return False
    return is_open_mpi == ("openmpi" in {family, MPI_FAMILIES[family].made_from})


def _glibc(programs: Programs, libraries: list[Path]) -> str:
    """The newest symbols of the C library that libraries, and those that they need, ask for."""
    if not libraries:
        return ""
    said = programs.said("ldd", *map(str, libraries))
    if not said:
        return ""
    files = {*libraries, *map(Path, _LDD.findall(said))}
    versions = [one for file in files if not _C_LIBRARY.search(str(file)) for one in _asked(file)]
    return ".".join(map(str, max(versions))) if versions else ""


def _asked(file: Path) -> Iterator[tuple[int, ...]]:
    try:
        names = _SYMBOL.findall(file.read_bytes())
    except OSError:
        return
    for name in names:
        yield tuple(int(part) for part in name.split(b"."))


def _pmix(programs: Programs) -> str:
    """The PMIx beside an Open MPI that was built with one; empty if it is its series' own."""
    if not _EXTERNAL.search(programs.said("ompi_info")):
        return ""
    return first_version(programs.said("pmix_info", "--version"))


def slurm(programs: Programs) -> HostSlurm:
    """Slurm's version, and the kinds of PMI that its srun offers."""
    if programs.find("srun") is None:
        return HostSlurm(pmi=())
    version = first_version(programs.said("srun", "--version"))
    listed = programs.said("srun", "--mpi=list")
    words = [word for line in listed.splitlines() for word in _LISTED.sub(" ", line).split()]
    kinds = tuple(dict.fromkeys(word for word in words if _PMI.fullmatch(word)))
    return HostSlurm(version=version, pmi=kinds or None)


def runtimes(programs: Programs, roots: Roots) -> dict[str, HostRuntime]:
    """The container runtimes that are here and answer."""
    found = {
        "apptainer": _apptainer(programs, roots, "apptainer"),
        "singularity": _apptainer(programs, roots, "singularity"),
        "charliecloud": _charliecloud(programs, roots),
        "podman": _podman(programs, roots),
        "docker": _docker(programs),
        "crio": _crio(programs),
    }
    return {name: one for name, one in found.items() if one is not None}


def _profile(roots: Roots, program: Path | str | None) -> bool | None:
    """Return whether AppArmor lets a program make user namespaces; None where none is asked."""
    if program is None or not restricted_namespaces(roots):
        return None
    return has_profile(roots, Path(program))


def _apptainer(programs: Programs, roots: Roots, name: str) -> HostRuntime | None:
    said = programs.said(name, "--version")
    if not said or (name == "singularity" and "apptainer" in said):  # a link to it
        return None
    libexec = re.search(r"^LIBEXECDIR=(\S+)$", programs.said(name, "buildcfg"), re.MULTILINE)
    starter = Path(libexec[1]) / name / "bin/starter" if libexec else None
    return HostRuntime(
        version=first_version(said),
        setuid=_is_setuid(starter.with_name("starter-suid")) if starter else None,
        profile=_profile(roots, starter),
    )


def _is_setuid(file: Path) -> bool:
    try:
        found = file.stat()
    except OSError:
        return False
    return bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0


def _charliecloud(programs: Programs, roots: Roots) -> HostRuntime | None:
    done = programs.ask("ch-run", "--version")
    if done is None or done.returncode:
        return None
    usage = programs.ask("ch-run", "--help")
    text = usage.stdout + usage.stderr if usage else ""
    cdi = "--cdi" in text if "--set-env" in text else None
    version = first_version(done.stdout + done.stderr)
    return HostRuntime(version=version, cdi=cdi, profile=_profile(roots, programs.find("ch-run")))


def _podman(programs: Programs, roots: Roots) -> HostRuntime | None:
    said = programs.said("podman", "--version")
    if not said:
        return None
    profile = _profile(roots, programs.find("podman"))
    return HostRuntime(version=first_version(said), clone3=allows_clone3(roots), profile=profile)


def _crio(programs: Programs) -> HostRuntime | None:
    """The service that starts containers for Kubernetes."""
    said = programs.said("crio", "--version")
    return HostRuntime(version=first_version(said)) if said else None


def _docker(programs: Programs) -> HostRuntime | None:
    """Its daemon is what matters; without one that answers, there is no Docker."""
    said = programs.said("docker", "version", "--format", "{{.Server.Version}}")
    return HostRuntime(version=first_version(said)) if said else None


_RESTRICTION = "sys/kernel/apparmor_restrict_unprivileged_userns"
_FILTERS = ("etc/containers/seccomp.json", "usr/share/containers/seccomp.json")
_ALLOWED, _NO_SUCH_CALL = "SCMP_ACT_ALLOW", (38, "ENOSYS")
_RULE = re.compile(r"^\s*userns\b", re.MULTILINE)
_ATTACHED = re.compile(r'^\s*(?:profile\s+\S+\s+)?"?((?:/|@\{)[^\s"]+)"?[^\n]*\{\s*$', re.MULTILINE)
_GLOB = re.compile(r"@\{\w+\}|\*\*|[*?{},]|[^@*?{},]+|@")
_GLOBS = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def restricted_namespaces(roots: Roots) -> bool:
    """Return whether AppArmor lets only programs with a profile make user namespaces."""
    try:
        return (roots.proc / _RESTRICTION).read_text().strip() == "1"
    except OSError:
        return False


def has_profile(roots: Roots, program: Path) -> bool | None:
    """Return whether a profile lets a program make user namespaces; None if it cannot be read.

    https://gitlab.com/apparmor/apparmor/-/wikis/unprivileged_userns_restriction
    """
    folder = roots.etc / "apparmor.d"
    try:
        files = [file for file in folder.iterdir() if file.is_file()]
        texts = [file.read_text(errors="replace") for file in files if _is_on(folder, file)]
    except OSError:
        return None
    attached = [path for text in texts if _RULE.search(text) for path in _ATTACHED.findall(text)]
    names = (str(program), str(program.resolve()))
    return any(_pattern(path).fullmatch(name) for path in attached for name in names)


def _is_on(folder: Path, profile: Path) -> bool:
    return not (folder / "disable" / profile.name).is_symlink()


def _pattern(attachment: str) -> re.Pattern[str]:
    """An attachment as a pattern of paths; a variable, such as @{multiarch}, is anything."""
    return re.compile("".join(map(_part, _GLOB.findall(attachment))))


def _part(glob: str) -> str:
    return ".*" if glob.startswith("@{") else _GLOBS.get(glob) or re.escape(glob)


def allows_clone3(roots: Roots) -> bool | None:
    """Whether the filter of Podman and its kin lets clone3 through, or says that there is none.

    None if the file is not there: the filter is then the one that came with the program.
    """
    file = next((one for name in _FILTERS if (one := roots.top / name).is_file()), None)
    if file is None:
        return None
    try:
        return _answers_clone3(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _answers_clone3(document: dict[str, object]) -> bool:
    rules = [
        one
        for one in part(document, "syscalls") or []
        if "clone3" in one.get("names", []) and not part(one, "includes", "caps")
    ]
    if any(one.get("action") == _ALLOWED for one in rules):
        return True
    errors = [one.get("errno", one.get("errnoRet")) for one in rules]
    default = document.get("defaultErrno", document.get("defaultErrnoRet"))
    return all(one in _NO_SUCH_CALL for one in errors or [default])
