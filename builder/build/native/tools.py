"""Native tools for a base: this machine's twins of its compilers, shell and utilities.

They are the packages of the base's own Debian release, built for this machine: the same versions,
and of the compilers those that cross-compile. Kept by content key beside the bases; shown to
build steps at `/.native`, where `twins.c` looks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.build.base_store import bootstrapping, keyring_of, source_lines, staging
from builder.build.mirror import Mirror
from builder.build.native.files import digest_of, entries_of
from builder.build.native.twins import descriptions
from builder.model import BaseImage, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.system.files import note_use
from builder.system.home import LENT_AT
from builder.system.locks import locked
from builder.system.process import Processes

HOST = "x86_64"  # the one that twins.c is written for
_FORMAT = "3"
_UTILITIES = [
    *("apt", "bash", "bzip2", "coreutils", "dash", "diffutils", "dpkg", "file", "findutils"),
    *("gawk", "grep", "gzip", "m4", "make", "mawk", "patch", "python3-minimal", "sed", "tar"),
    *("xz-utils", "zstd"),
]
_LANGUAGES = ("gcc", "g++", "gfortran")
_MULTIARCH = {"ppc64le": "powerpc64le-linux-gnu", "aarch64": "aarch64-linux-gnu"}
RECORD = "native.json"
_OTHER_COMPILERS = frozenset(["julia", "llvm", "nvhpc", "pgi"])  # blocks of hpccm
# Of Debian's nvcc the passes that make the GPU's code, which is for any host; nvcc itself, and
# cudafe++ that sees the host's code, are the image's own. A mirror without non-free costs these
# twins alone. What the package depends on is not brought: 2 GB of libraries.
_NVCC = "nvidia-cuda-toolkit"
_BRING_NVCC = f"""\
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
sed 's/ main$/ non-free/' "$1"/etc/apt/sources.list > "$1"/etc/apt/sources.list.d/nvcc.list
cd "$1"/tmp
if apt-get update && apt-get download {_NVCC}
then
  dpkg-deb --extract ./{_NVCC}_*.deb cuda
  for name in usr/bin/fatbinary usr/bin/nvlink usr/bin/ptxas usr/lib/{_NVCC}/bin/cicc
  do test ! -f cuda/$name || install -D cuda/$name "$1"/$name; done
else echo "no native passes of nvcc"; fi
rm -rf ./{_NVCC}_*.deb cuda "$1"/etc/apt/sources.list.d/nvcc.list
"""
_USED = {"bin", "lib", "lib64", "sbin", "usr"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeTools:
    """Tools in the store. `root` is what build steps are shown; `digest` is over all of it.

    `name` is the release and the architecture that they stand for.
    """

    root: Path
    name: str
    digest: str
    made: str


def compilers_for(base: BaseImage) -> tuple[str, ...]:
    """The major versions of gcc that images on this base use: its own, and those of its nvcc."""
    own = base.gcc[:1]
    cuda = base.cuda.distribution if base.cuda else ()
    return tuple(sorted({*own, *(one.gcc for one in cuda if one.gcc)}))


def _packages_cuda(base: BaseImage) -> bool:
    """Return whether the base's distribution packages a CUDA toolkit."""
    return base.cuda is not None and bool(base.cuda.distribution)


def lacking(base: BaseImage, arch: str, host: str) -> str:
    """Why builds of this base are lent no native tools; empty if they are."""
    if arch == host:
        return f"{arch} is this machine's own architecture"
    if host != HOST:
        return f"native tools are for {HOST} machines, and this one is {host}"
    if arch not in _MULTIARCH:
        return f"Debian has no cross-compilers for {arch}"
    if base.bootstrap is None:
        return f"{base.name} comes from a registry, and no Debian release has its compilers' twins"
    return ""


def told(base: BaseImage, arch: str, host: str) -> str:
    """What builds on this base are lent, in words; empty where nothing is emulated."""
    if arch == host:
        return ""
    if reason := lacking(base, arch, host):
        return f"native tools: none, {reason}"
    assert base.bootstrap is not None
    versions = " and ".join(compilers_for(base))
    return (
        f"native tools: gcc {versions}, shell, make, utilities and apt of {base.bootstrap.suite} "
        "run as this machine's own; other compilers are emulated"
    )


def emulated_compilers(image: PlannedImage) -> str:
    """The compilers that an image's blocks install and that no tools are lent for, in words."""
    lent = compilers_for(image.base)
    found: dict[str, None] = {}
    for use in (one for stage in image.stages for one in (*stage.development, *stage.runtime)):
        version = str(use.arguments.get("version", "")).partition(".")[0]
        if use.name == "gnu" and version and version not in lent:
            found[f"gcc {version}"] = None
        if use.name in _OTHER_COMPILERS:
            found[f"{use.name} {version}".rstrip()] = None
    return " and ".join(found)


def ensure_tools(
    base: BaseImage,
    arch: str,
    *,
    mirror: Mirror,
    store: Path,
    processes: Processes,
    log: Path,
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    not_before: str = "",
) -> NativeTools:
    """The tools for a base's release and an architecture, brought by mmdebstrap if need be.

    `environment` is given to mmdebstrap: a proxy for packages. They are made anew if they were made
    before `not_before`: a time in UTC, ISO 8601.
    """
    key = _key(base, arch, mirror)
    name = _name(base, arch)
    folder = store / f"{name}-{key[:12]}"
    with locked(store, folder.name, stopped=lambda: processes.stopping):
        if not _is_there(folder / RECORD, not_before):
            say(f"bringing native tools of {base.name} for builds of {arch}")
            with staging(store, folder.name) as partial:
                _make(base, arch, mirror, partial, processes, log, environment or {})
                now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
                about = {
                    "name": name,
                    "digest": digest_of(entries_of(partial / "root")),
                    "made": now,
                }
                (partial / RECORD).write_text(json.dumps(about, indent=1))
                partial.chmod(0o755)
        note_use(folder / RECORD)
        record = json.loads((folder / RECORD).read_text())
    return NativeTools(root=folder / "root", **record)


def _is_there(record: Path, not_before: str) -> bool:
    try:
        return str(json.loads(record.read_text())["made"]) >= not_before
    except (OSError, ValueError, KeyError, TypeError):
        return False


def stored_tools(store: Path) -> list[NativeTools]:
    """All tools in a store."""
    found = []
    for record in store.glob(f"*/{RECORD}"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(NativeTools(root=record.parent / "root", **json.loads(record.read_text())))
    return found


def kept_tools(base: BaseImage, arch: str, *, store: Path) -> NativeTools | None:
    """The newest tools for a base's release and an architecture; None if there are none.

    For where no mirror is: tools that were brought are of the mirror of those who made them.
    """
    name = _name(base, arch)
    named = [one for one in stored_tools(store) if one.name == name]
    found = max(named, key=lambda one: one.made, default=None)
    if found:
        note_use(found.root.parent / RECORD)
    return found


def _name(base: BaseImage, arch: str) -> str:
    assert base.bootstrap is not None
    return f"{base.bootstrap.suite}-{arch}"


def _key(base: BaseImage, arch: str, mirror: Mirror) -> str:
    assert base.bootstrap is not None
    twins = (Path(__file__).parent / "twins.py").read_text()
    content = [_FORMAT, arch, packages(base, arch), asdict(mirror), asdict(base.bootstrap), twins]
    content.append(_BRING_NVCC if _packages_cuda(base) else "")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def packages(base: BaseImage, arch: str) -> list[str]:
    """The packages of the base's release that hold the twins."""
    triplet = _MULTIARCH[arch]
    compilers = [
        f"{language}-{major}-{triplet}" for major in compilers_for(base) for language in _LANGUAGES
    ]
    return [*_UTILITIES, f"binutils-{triplet}", *compilers]


def _make(
    base: BaseImage,
    arch: str,
    mirror: Mirror,
    folder: Path,
    processes: Processes,
    log: Path,
    environment: Mapping[str, str],
) -> None:
    made = base.bootstrap
    assert made is not None
    root, packed = folder / "root", folder / "root.tar"
    processes.logged(
        [
            *bootstrapping(folder),
            "--variant=extract",
            "--format=tar",  # unpacked below, for files of an ordinary user's own
            f"--architectures={ARCHITECTURES[HOST].debian}",
            f"--include={','.join(packages(base, arch))}",
            '--aptopt=Acquire::Retries "5"',
            *([f"--extract-hook={_BRING_NVCC}"] if _packages_cuda(base) else []),
            made.suite,
            str(packed),
            *source_lines(base, mirror, keyring_of(base)),
        ],
        log=log,
        env=environment,
        what=f"mmdebstrap of the native tools for {base.name}",
        hint="--no-native-tools builds without them",
    )
    _unpack(packed, root)
    _reduce(root, _MULTIARCH[arch])
    programs = list(_programs(root))
    loader = Path(os.path.realpath(root / "usr/lib64/ld-linux-x86-64.so.2")).name
    libraries = f"/usr/lib/{HOST}-linux-gnu"
    processes.logged(
        [
            "patchelf",
            "--set-interpreter",
            f"{LENT_AT}{libraries}/{loader}",
            "--force-rpath",
            "--set-rpath",
            f"{LENT_AT}{libraries}",
            *programs,
        ],
        log=log,
        what="patchelf of the native tools",
    )
    for path, text in descriptions(root, _MULTIARCH[arch], ARCHITECTURES[arch]).items():
        file = root / "twins" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for one in (root, root / "twins", *(root / "twins").rglob("*")):  # whatever the umask
        one.chmod(0o755 if one.is_dir() else 0o644)


def _unpack(packed: Path, root: Path) -> None:
    """Unpack what is used of a root file system, without devices and owners."""
    root.mkdir()
    with tarfile.open(packed) as archive:
        # An attribute: Debian 12's Python has no argument for it, and Python 3.14 needs it.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            top = member.name.removeprefix("./").partition("/")[0]
            if top in _USED and not member.isdev():
                member.mode |= 0o755 if member.isdir() else 0o444
                member.uid, member.gid, member.uname, member.gname = (
                    os.getuid(),
                    os.getgid(),
                    "",
                    "",
                )
                archive.extract(member, root, numeric_owner=True)
    packed.unlink()


def _reduce(root: Path, triplet: str) -> None:
    """Drop what no build step may meet: documentation, the release's data, a foreign libc.

    The cross-compiler is to use the libc, the headers and the libraries of the image.
    """
    for name in ("bin", "sbin", "lib", "lib64"):
        folder = root / name
        if folder.is_dir() and not folder.is_symlink():  # packages before /usr was merged
            shutil.copytree(folder, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
    for path in root.iterdir():
        if path.name != "usr":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in [root / "usr/share", *root.glob("usr/lib/python3*")]:
        shutil.rmtree(folder, ignore_errors=True)
    cross = root / "usr" / triplet
    shutil.rmtree(cross / "lib", ignore_errors=True)
    for path in [*cross.glob("lib64"), *cross.glob("include/*")]:
        if path.name == "c++":
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _programs(root: Path) -> Iterator[Path]:
    """Every dynamic program of this machine's architecture below usr/bin and gcc's own folders."""
    folders = [
        root / name
        for name in (
            *("usr/bin", "usr/libexec", "usr/lib/apt", "usr/lib/gcc-cross"),
            f"usr/lib/{_NVCC}/bin",
        )
    ]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file() or ".so" in path.name:
                continue
            if _is_native_program(path):
                yield path


def _is_native_program(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20)
    machine = ARCHITECTURES[HOST].elf_machine
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == machine
