"""MPIs, Slurm and container runtimes of this host, from the output of their programs."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from builder.facts.mpi import MPI_FAMILIES, OPEN_MPI_SYMBOL, launcher_family
from builder.host.doctor import SystemRoots
from builder.host.doctor.machine import restricted_namespaces
from builder.host.doctor.programs import Programs
from builder.host.records import HostMpi, HostRuntime, HostSlurm
from builder.model.exact_json import part
from builder.model.versions import first_version

_LAUNCHERS = ("mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich")
_FOLDERS = ("lib", "lib64", "lib/release")  # Intel MPI uses the last one
# IBM and HPE use their own names; other names are bindings for other languages.
_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_(ibm|cray|gnu|nvidia|intel|amd|aocc)(_\d+)?)\.so\.\d+")
_SYMBOL = re.compile(rb"GLIBC_(\d+(?:\.\d+)+)\0")
_LDD = re.compile(r"=> (/\S+)")
_C_LIBRARY = re.compile(r"/(libc|libm|libpthread|libdl|librt|libresolv|libutil|ld[-\w]*)[.-]")
_EXTERNAL = re.compile(r"MCA pmix: ext")
_PMI = re.compile(r"^(none|openmpi|cray_shasta|pmi\w*)$")
_LISTED = re.compile(r"^srun:\s*|[,:]")
_FILTERS = ("etc/containers/seccomp.json", "usr/share/containers/seccomp.json")
_ALLOWED, _NO_SUCH_CALL = "SCMP_ACT_ALLOW", (38, "ENOSYS")
_RULE = re.compile(r"^\s*userns\b", re.MULTILINE)
_ATTACHED = re.compile(r'^\s*(?:profile\s+\S+\s+)?"?((?:/|@\{)[^\s"]+)"?[^\n]*\{\s*$', re.MULTILINE)
_GLOB = re.compile(r"@\{\w+\}|\*\*|[*?{},]|[^@*?{},]+|@")
_GLOBS = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def mpis(programs: Programs, variables: Mapping[str, str]) -> tuple[HostMpi, ...] | None:
    """Return the MPIs whose launchers are on the search path, and Cray's found by `variables`.

    Returns None if there are launchers, but none of a known family.
    """
    known: dict[tuple[str, str], HostMpi] = {}
    if cray := _cray_mpich(programs, variables):
        known[cray.family, cray.version] = cray
    paths = {name: path for name in _LAUNCHERS if (path := programs.find(name))}
    for name, path in paths.items():
        output = programs.output(name, "--version")
        if family := launcher_family(output):
            mpi = _mpi(programs, family, Path(path), first_version(output))
            known.setdefault((mpi.family, mpi.version), mpi)
    return tuple(known.values()) if known or not paths else None


def _cray_mpich(programs: Programs, variables: Mapping[str, str]) -> HostMpi | None:
    """Return the Cray MPICH that a module has loaded; it has no launcher on the search path.

    intro_mpi(3) of the Cray environment: https://cpe.ext.hpe.com/docs/latest/mpt/mpich/intro_mpi.html
    """
    folder = variables.get("CRAY_MPICH_DIR")
    if not folder:
        return None
    libraries = _in_folders([Path(folder, name) for name in ("lib", "lib-abi-mpich")])
    return HostMpi(
        family="craympich",
        version=variables.get("CRAY_MPICH_VERSION", ""),
        libraries=_names(libraries),
        glibc=_glibc(programs, libraries),
    )


def _mpi(programs: Programs, family: str, launcher: Path, version: str) -> HostMpi:
    # A separate program prints MVAPICH2's version.
    name = programs.output("mpiname", "-a") if family == "mpich" else ""
    if name.startswith("MVAPICH2"):
        family, version = "mvapich2", first_version(name)
    # Debian has the libraries of all MPIs in one prefix; Open MPI's library needs its helpers.
    prefixes = dict.fromkeys([launcher.parent.parent, launcher.resolve().parent.parent])
    folders = [
        folder
        for prefix in prefixes
        for folder in (*(prefix / name for name in _FOLDERS), *prefix.glob("lib/*-linux-gnu"))
    ]
    is_open_mpi = "openmpi" in {family, MPI_FAMILIES[family].made_from}
    libraries = [
        file
        for file in _in_folders(folders)
        if (data := _content(file)) and (OPEN_MPI_SYMBOL in data) == is_open_mpi
    ]
    pmix = ""  # means the PMIx of its series; it may be built with an external one
    if family == "openmpi" and _EXTERNAL.search(programs.output("ompi_info")):
        pmix = first_version(programs.output("pmix_info", "--version"))
    return HostMpi(
        family=family,
        version=version,
        launcher=str(launcher),
        libraries=_names(libraries),
        glibc=_glibc(programs, libraries),
        pmix=pmix,
    )


def _names(libraries: list[Path]) -> tuple[str, ...] | None:
    return tuple(sorted({library.name for library in libraries})) or None


def _in_folders(folders: list[Path]) -> list[Path]:
    """Return the libraries to which programs are linked, without duplicates."""
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    named = {file.resolve(): file for file in files if _LIBRARY.fullmatch(file.name)}
    return list(named.values())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _glibc(programs: Programs, libraries: list[Path]) -> str:
    """Return the newest glibc symbol version that libraries and their dependencies need."""
    output = programs.output("ldd", *map(str, libraries)) if libraries else ""
    files = {*libraries, *map(Path, _LDD.findall(output))} if output else set()
    versions = [
        tuple(map(int, name.split(b".")))
        for file in files
        if not _C_LIBRARY.search(str(file))
        for name in _SYMBOL.findall(_content(file))
    ]
    return ".".join(map(str, max(versions))) if versions else ""


def slurm(programs: Programs) -> HostSlurm:
    """Return Slurm's version, and the kinds of PMI that srun lists."""
    if programs.find("srun") is None:
        return HostSlurm(pmi=())
    listed = programs.output("srun", "--mpi=list").splitlines()
    words = [word for line in listed for word in _LISTED.sub(" ", line).split()]
    kinds = tuple(dict.fromkeys(word for word in words if _PMI.fullmatch(word)))
    return HostSlurm(version=first_version(programs.output("srun", "--version")), pmi=kinds or None)


def runtimes(programs: Programs, roots: SystemRoots) -> dict[str, HostRuntime]:
    """Return the container runtimes that are installed and answer.

    Docker counts only if its daemon answers. CRI-O starts containers for Kubernetes.
    """

    def runtime(*argv: str, **known: bool | None) -> HostRuntime | None:
        output = programs.output(*argv)
        return HostRuntime(version=first_version(output), **known) if output else None

    answers = {
        "apptainer": _apptainer(programs, roots, "apptainer"),
        "singularity": _apptainer(programs, roots, "singularity"),
        "charliecloud": runtime(
            *("ch-run", "--version"),
            cdi=_has_cdi(programs),
            profile=_profile(roots, programs.find("ch-run")),
        ),
        "podman": runtime(
            *("podman", "--version"),
            clone3=allows_clone3(roots),
            profile=_profile(roots, programs.find("podman")),
        ),
        "docker": runtime("docker", "version", "--format", "{{.Server.Version}}"),
        "crio": runtime("crio", "--version"),
    }
    return {name: one for name, one in answers.items() if one is not None}


def _apptainer(programs: Programs, roots: SystemRoots, name: str) -> HostRuntime | None:
    output = programs.output(name, "--version")
    if not output or (name == "singularity" and "apptainer" in output):  # a link to it
        return None
    libexec = re.search(r"^LIBEXECDIR=(\S+)$", programs.output(name, "buildcfg"), re.MULTILINE)
    starter = Path(libexec[1]) / name / "bin/starter" if libexec else None
    return HostRuntime(
        version=first_version(output),
        setuid=_is_setuid(starter.with_name("starter-suid")) if starter else None,
        profile=_profile(roots, starter),
    )


def _is_setuid(file: Path) -> bool:
    try:
        status = file.stat()
    except OSError:
        return False
    return bool(status.st_mode & stat.S_ISUID) and status.st_uid == 0


def _has_cdi(programs: Programs) -> bool | None:
    """Return whether ch-run has the option --cdi; None if its help does not list options."""
    usage = programs.output("ch-run", "--help", check=False)
    return "--cdi" in usage if "--set-env" in usage else None


def _profile(roots: SystemRoots, program: Path | str | None) -> bool | None:
    """Return whether a program's profile allows user namespaces; None if it needs no profile."""
    if program is None or not restricted_namespaces(roots):
        return None
    return has_profile(roots, Path(program))


def has_profile(roots: SystemRoots, program: Path) -> bool | None:
    """Return whether AppArmor allows a program user namespaces; None if profiles are unreadable.

    https://gitlab.com/apparmor/apparmor/-/wikis/unprivileged_userns_restriction
    """
    folder = roots.etc / "apparmor.d"
    try:
        texts = [
            file.read_text(errors="replace")
            for file in folder.iterdir()
            if file.is_file() and not (folder / "disable" / file.name).is_symlink()
        ]
    except OSError:
        return None
    attached = [path for text in texts if _RULE.search(text) for path in _ATTACHED.findall(text)]
    names = (str(program), str(program.resolve()))
    return any(re.fullmatch(_pattern(path), name) for path in attached for name in names)


def _pattern(attachment: str) -> str:
    """Return a regular expression for paths; a variable, such as @{multiarch}, matches anything."""
    return "".join(
        ".*" if glob.startswith("@{") else _GLOBS.get(glob) or re.escape(glob)
        for glob in _GLOB.findall(attachment)
    )


def allows_clone3(roots: SystemRoots) -> bool | None:
    """Return whether Podman's filter allows clone3, or answers that it does not exist.

    Returns None without a filter file: the program's built-in filter is used then.
    """
    file = next((one for name in _FILTERS if (one := roots.top / name).is_file()), None)
    if file is None:
        return None
    try:
        document = json.loads(file.read_text())
        rules = [
            rule
            for rule in part(document, "syscalls") or []
            if "clone3" in rule.get("names", []) and not part(rule, "includes", "caps")
        ]
        if any(rule.get("action") == _ALLOWED for rule in rules):
            return True
        errors = [rule.get("errno", rule.get("errnoRet")) for rule in rules]
        default = document.get("defaultErrno", document.get("defaultErrnoRet"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return all(error in _NO_SUCH_CALL for error in errors or [default])
