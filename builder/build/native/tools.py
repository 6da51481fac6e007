"""Native tools for a base: its compilers, shell and utilities, built for this machine.

They are packages of the base's own Debian release, in the same versions; the compilers are those
that cross-compile. They are stored by content key beside the bases. Build steps see them at
`/.native`, where `twins.c` looks for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.build.base_store import Bootstrapping, bootstrap_of
from builder.build.mirror import DebianMirror
from builder.build.native import HOST
from builder.build.native.files import digest_of, entries_of, fold, unfold
from builder.build.native.twins import descriptions
from builder.build.workspace import remove
from builder.model import BaseImage, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.system.files import note_use, read_json
from builder.system.home import LENT_AT

_FORMAT = "3"
_UTILITIES = [
    *("apt", "bash", "bzip2", "coreutils", "dash", "diffutils", "dpkg", "file", "findutils"),
    *("gawk", "grep", "gzip", "m4", "make", "mawk", "patch", "python3-minimal", "sed", "tar"),
    *("xz-utils", "zstd"),
]
_LANGUAGES = ("gcc", "g++", "gfortran")
RECORD = "native.json"
_OTHER_COMPILERS = frozenset(["julia", "llvm", "nvhpc", "pgi"])  # blocks of hpccm
# Of Debian's nvcc the passes that make the GPU's code, which is for any host; nvcc itself, and
# cudafe++ that sees the host's code, are the image's own. A mirror without non-free costs these
# twins alone. The package's dependencies, 2 GB of libraries, are not fetched.
_NVCC = "nvidia-cuda-toolkit"
_BRING_NVCC = (Path(__file__).parent / "bring-nvcc.sh").read_text()
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
    """Return the major versions of gcc that images on this base use: its own, and its nvcc's."""
    of_cuda = (toolkit.gcc for toolkit in base.cuda.distribution if toolkit.gcc)
    return tuple(sorted({*base.gcc[:1], *of_cuda}))


def lacking(base: BaseImage, arch: str, host: str) -> str:
    """Return why builds of this base get no native tools; empty if they do."""
    if arch == host:
        return f"{arch} is this machine's own architecture"
    if host != HOST:
        return f"native tools are for {HOST} machines, and this one is {host}"
    if base.bootstrap is None:
        return f"{base.name} comes from a registry, and no Debian release has its compilers"
    return ""


def described(base: BaseImage, arch: str, host: str) -> str:
    """Return the native tools for builds on this base, in words; empty without emulation."""
    if arch == host:
        return ""
    if reason := lacking(base, arch, host):
        return f"native tools: none, {reason}"
    versions, suite = " and ".join(compilers_for(base)), bootstrap_of(base).suite
    return (
        f"native tools: gcc {versions}, shell, make, utilities and apt of {suite} "
        "run as this machine's own; other compilers are emulated"
    )


def emulated_compilers(image: PlannedImage) -> str:
    """Return the compilers of an image's blocks without native tools, in words."""
    lent = compilers_for(image.base)
    names: list[str] = []
    for use in (use for stage in image.stages for use in (*stage.development, *stage.runtime)):
        version = str(use.arguments.get("version", "")).partition(".")[0]
        if use.name == "gnu" and version and version not in lent:
            names.append(f"gcc {version}")
        if use.name in _OTHER_COMPILERS:
            names.append(f"{use.name} {version}".rstrip())
    return " and ".join(dict.fromkeys(names))


def ensure_tools(base: BaseImage, arch: str, way: Bootstrapping) -> NativeTools:
    """Return the tools for a base's release and an architecture; fetched first if missing."""
    name, key = _name(base, arch), _key(base, arch, way.mirror)
    tag, what = f"native-{key}", f"native tools of {base.name} for builds of {arch}"

    def make(folder: Path, now: str) -> Mapping[str, object]:
        folder.chmod(0o755)
        if about := way.take(tag, folder, what, lambda: _taken(folder, now)):
            return about
        way.say(f"downloading {what}")
        _make(base, arch, folder, way)
        return {"name": name, "digest": digest_of(entries_of(folder / "root")), "made": now}

    share = partial(_share, tag, what, way)
    record = way.ensure(f"{name}-{key[:12]}", RECORD, make, tag, share) / RECORD
    note_use(record)
    tools = _read(record)
    assert tools
    return tools


def _share(tag: str, what: str, way: Bootstrapping, folder: Path) -> None:
    """Add tools to the site's store."""
    try:
        with TemporaryDirectory(prefix=".share-", dir=folder.parent) as folded:
            fold(folder / "root", Path(folded), entries_of(folder / "root"))
            shutil.copyfile(folder / RECORD, Path(folded) / RECORD)
            way.shared.put(tag, Path(folded), what, packed=True)
    except OSError as error:
        way.say(f"{what}: not added to the site's store: {error}")


def _taken(folder: Path, now: str) -> dict[str, object]:
    """Return the record of tools from the site's store; raise `ValueError` for damaged ones."""
    about = read_json(folder / RECORD)
    if unfold(folder, folder / "root") != about["digest"]:
        raise ValueError("other files than its record says")
    return {**about, "made": min(now, str(about["made"]))}


def stored_tools(store: Path) -> list[NativeTools]:
    return [tools for path in store.glob(f"*/{RECORD}") if (tools := _read(path))]


def _read(record: Path) -> NativeTools | None:
    about = {name: str(value) for name, value in read_json(record).items()}
    is_whole = about.keys() == {"name", "digest", "made"}
    return NativeTools(root=record.parent / "root", **about) if is_whole else None


def newest_tools(base: BaseImage, arch: str, *, store: Path) -> NativeTools | None:
    """Return the newest tools for a base's release and an architecture; None if there are none.

    For use without a mirror: tools from an archive are of the mirror of those who made them.
    """
    named = [tools for tools in stored_tools(store) if tools.name == _name(base, arch)]
    newest = max(named, key=lambda tools: tools.made, default=None)
    if newest:
        note_use(newest.root.parent / RECORD)
    return newest


def _name(base: BaseImage, arch: str) -> str:
    return f"{bootstrap_of(base).suite}-{arch}"


def _key(base: BaseImage, arch: str, mirror: DebianMirror) -> str:
    twins = (Path(__file__).parent / "twins.py").read_text()
    declared = asdict(bootstrap_of(base))
    content = [_FORMAT, arch, packages(base, arch), asdict(mirror), declared, twins]
    content.append(_BRING_NVCC if base.cuda.distribution else "")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def packages(base: BaseImage, arch: str) -> list[str]:
    """Return the packages of the base's release that hold the twins."""
    triplet = ARCHITECTURES[arch].triplet
    compilers = [
        f"{language}-{major}-{triplet}" for major in compilers_for(base) for language in _LANGUAGES
    ]
    return [*_UTILITIES, f"binutils-{triplet}", *compilers]


def _make(base: BaseImage, arch: str, folder: Path, way: Bootstrapping) -> None:
    root, packed = folder / "root", folder / "root.tar"
    way.mmdebstrap(
        base,
        packed,  # unpacked below, for files of an ordinary user's own
        variant="extract",
        arch=HOST,
        packages=packages(base, arch),
        options=[f"--extract-hook={_BRING_NVCC}"] if base.cuda.distribution else [],
        what=f"the native tools for {base.name}",
        hint="--no-native-tools builds without them",
    )
    _unpack(packed, root)
    foreign = ARCHITECTURES[arch]
    _reduce(root, foreign.triplet)
    loader = Path(os.path.realpath(root / "usr/lib64/ld-linux-x86-64.so.2")).name
    libraries = f"/usr/lib/{HOST}-linux-gnu"
    way.processes.logged(
        [
            *("patchelf", "--set-interpreter", f"{LENT_AT}{libraries}/{loader}"),
            *("--force-rpath", "--set-rpath", f"{LENT_AT}{libraries}"),
            *_programs(root),
        ],
        log=way.log,
        what="patchelf of the native tools",
    )
    for path, text in descriptions(root, foreign.triplet, foreign).items():
        file = root / "twins" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for written in (root, root / "twins", *(root / "twins").rglob("*")):  # whatever the umask
        written.chmod(0o755 if written.is_dir() else 0o644)


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
                member.uid, member.gid = os.getuid(), os.getgid()
                member.uname = member.gname = ""
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
    cross = root / "usr" / triplet
    for path in (
        *(path for path in root.iterdir() if path.name != "usr"),
        *(root / "usr/share", *root.glob("usr/lib/python3*"), cross / "lib", cross / "lib64"),
        *(path for path in cross.glob("include/*") if path.name != "c++"),
    ):
        remove(path)


def _programs(root: Path) -> Iterator[Path]:
    """Yield dynamic programs of this machine's architecture, below usr/bin and gcc's folders."""
    for name in ("bin", "libexec", "lib/apt", "lib/gcc-cross", f"lib/{_NVCC}/bin"):
        for path in sorted((root / "usr" / name).rglob("*")):
            is_program = path.is_file() and not path.is_symlink() and ".so" not in path.name
            if is_program and _is_native_program(path):
                yield path


def _is_native_program(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(20)
    machine = ARCHITECTURES[HOST].elf_machine
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == machine
