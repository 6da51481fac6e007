"""Whether programs of each architecture run here: natively, or through QEMU and binfmt_misc."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build import binfmt, native
from builder.host.doctor.diagnosis import Item, Roots
from builder.host.doctor.programs import SETUP, answer
from builder.model.architectures import Architecture
from builder.model.versions import first_version
from builder.system.process import Processes

GROUP = "architectures"
# QEMU 7.2 never ends in Open MPI's configure (a test of a 128-bit compare-and-swap).
OLDEST_QEMU = 8
OWN_HANDLER = "build-images-"
_PREFIX = bytes((0x7F, *b"ELF", 2))  # EI_CLASS: 64 bits
_MACHINE = slice(18, 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """One entry of binfmt_misc."""

    name: str
    enabled: bool
    interpreter: str
    flags: str
    magic: bytes

    def serves(self, arch: Architecture) -> bool:
        machine = int.from_bytes(self.magic[_MACHINE], "little")
        return (
            self.magic.startswith(_PREFIX)
            and self.magic[5:6] == bytes((arch.elf_data,))
            and machine == arch.elf_machine
        )


def key_of(arch: str) -> str:
    return f"run:{arch}"


def handlers_of(folder: Path) -> list[Handler]:
    """The handlers that the kernel has, those of set-up first."""
    if not (folder / "status").exists():
        return []
    entries = [entry for entry in folder.iterdir() if entry.name not in {"register", "status"}]
    found = [_handler(entry) for entry in sorted(entries)]
    return sorted(found, key=lambda one: not one.name.startswith(OWN_HANDLER))


def _handler(entry: Path) -> Handler:
    lines = entry.read_text(errors="replace").splitlines()
    pairs = [line.partition(" ")[::2] for line in lines[1:]]
    words = {name.rstrip(":"): value for name, value in pairs}
    try:
        magic = bytes.fromhex(words.get("magic", ""))
    except ValueError:
        magic = b""
    return Handler(
        name=entry.name,
        enabled=lines[:1] == ["enabled"],
        interpreter=words.get("interpreter", ""),
        flags=words.get("flags", ""),
        magic=magic,
    )


def runs(
    arch: Architecture, *, host: str, roots: Roots, processes: Processes, search_path: str
) -> Item:
    """Return how this machine runs programs of an architecture, or why it does not."""
    if arch.name == host:
        return _item(arch, ok=True, text="native", how="native")
    folder = roots.proc / "sys/fs/binfmt_misc"
    if not (folder / "status").exists():
        return _out_of_sight(arch, processes=processes, search_path=search_path)
    if (folder / "status").read_text().strip() == "disabled":
        remedy = f"echo 1 > {folder / 'status'}"
        return _item(arch, ok=False, text="binfmt_misc is disabled", remedy=remedy)
    serving = [one for one in handlers_of(folder) if one.serves(arch)]
    if not serving:
        text = "no handler in binfmt_misc runs its programs"
        return _item(arch, ok=False, text=text, remedy=_remedy(arch))
    judged = [
        _judged(arch, one, folder=folder, processes=processes, search_path=search_path)
        for one in serving
    ]
    return next((item for item in judged if item.ok), judged[0])


def lends(arch: Architecture, *, host: str, roots: Roots) -> list[Item]:
    """Return whether build steps of an architecture run native tools; nothing where they cannot."""
    if arch.name == host or host != native.HOST:
        return []
    ok = binfmt.is_open(arch.name, roots.proc / "sys/fs/binfmt_misc")
    text = "compilers, shell and apt run as this machine's own in its build steps"
    if not ok:
        text = "its build steps are emulated whole: the kernel's handler is not that of set-up"
    return [
        Item(
            key=f"native:{arch.name}",
            group=GROUP,
            title=f"native tools for {arch.name}",
            ok=ok,
            text=text,
            remedy="" if ok else SETUP,
            optional=True,
        )
    ]


def _judged(
    arch: Architecture,
    handler: Handler,
    *,
    folder: Path,
    processes: Processes,
    search_path: str,
) -> Item:
    version = _qemu_version(handler, processes=processes, search_path=search_path)
    data = {
        "how": "emulated",
        "handler": handler.name,
        "interpreter": handler.interpreter,
        "flags": handler.flags,
        "version": version,
    }
    problem, remedy = _problem(arch, handler, version, folder)
    name = f"QEMU {version}" if version else f"{handler.interpreter}, version out of sight"
    text = f"emulated by {name} (handler {handler.name}, flags {handler.flags or 'none'})"
    if problem:
        return _item(arch, ok=False, text=problem, remedy=remedy, **{**data, "how": "none"})
    return _item(arch, ok=True, text=text, **data)


def _problem(arch: Architecture, handler: Handler, version: str, folder: Path) -> tuple[str, str]:
    """What keeps a handler from being of use, and what to do about it; empty if nothing does."""
    if not handler.enabled:
        return f"handler {handler.name} is disabled", f"echo 1 > {folder / handler.name}"
    if "F" not in handler.flags:
        return (
            f"handler {handler.name} lacks the flag F, so it does not work inside containers",
            _remedy(arch),
        )
    if version and int(version.partition(".")[0]) < OLDEST_QEMU:
        return (
            f"handler {handler.name} is QEMU {version}, which hangs in Open MPI's configure",
            _remedy(arch),
        )
    return "", ""


def _qemu_version(handler: Handler, *, processes: Processes, search_path: str) -> str:
    """Empty when the interpreter is out of sight: the flag F keeps it open all the same."""
    if not Path(handler.interpreter).is_file():
        return ""
    done = answer(processes, [handler.interpreter, "--version"], search_path=search_path)
    return "" if isinstance(done, str) else first_version(done.stdout)


def _out_of_sight(arch: Architecture, *, processes: Processes, search_path: str) -> Item:
    """In a container the host's handlers may serve where binfmt_misc is not to be seen."""
    tester = shutil.which("arch-test", path=search_path)
    argv = [tester, arch.debian] if tester else []
    tested = answer(processes, argv, search_path=search_path) if argv else ""
    if not isinstance(tested, str) and tested.returncode == 0:
        return _item(arch, ok=True, text="emulated by a handler of the host", how="emulated")
    remedy = "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc, then: " + _remedy(arch)
    return _item(arch, ok=False, text="binfmt_misc is not mounted", remedy=remedy)


def _remedy(arch: Architecture) -> str:
    if arch.name == "ppc64le":
        return SETUP
    return f"register {arch.qemu}, version {OLDEST_QEMU} or later, in binfmt_misc with flags OCF"


def _item(arch: Architecture, *, ok: bool, text: str, remedy: str = "", **data: str) -> Item:
    shown: Mapping[str, str] = {"how": "none", **data}
    return Item(
        key=key_of(arch.name),
        group=GROUP,
        title=arch.name,
        ok=ok,
        text=text,
        remedy=remedy,
        optional=arch.name not in {"x86_64", "ppc64le"},
        data=shown,
    )
