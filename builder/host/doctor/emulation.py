"""Emulation of each architecture's programs on this machine, by QEMU and binfmt_misc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.host.doctor.diagnosis import Item, SystemRoots
from builder.host.doctor.programs import SETUP, Programs
from builder.model.architectures import Architecture
from builder.model.versions import first_version

GROUP = "architectures"
# QEMU 7.2 hangs in Open MPI's configure, in a test of a 128-bit compare-and-swap.
OLDEST_QEMU = 8
OWN_HANDLER = "build-images-"
_PREFIX = bytes((0x7F, *b"ELF", 2, 1))  # EI_CLASS: 64 bits; EI_DATA: little-endian


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """A handler registered in binfmt_misc."""

    name: str
    enabled: bool
    interpreter: str
    flags: str
    magic: bytes

    def serves(self, arch: Architecture) -> bool:
        """Return whether the handler runs programs of an architecture, by the ELF header."""
        return self.magic.startswith(_PREFIX) and (
            int.from_bytes(self.magic[18:20], "little") == arch.elf_machine
        )


def key_of(arch: str) -> str:
    return f"run:{arch}"


def handlers_of(folder: Path) -> list[Handler]:
    """Return the kernel's handlers, those registered by set-up first."""
    if not (folder / "status").exists():
        return []
    names = {entry.name for entry in folder.iterdir()} - {"register", "status"}
    ordered = sorted(names, key=lambda name: (not name.startswith(OWN_HANDLER), name))
    return [_handler(folder / name) for name in ordered]


def _handler(entry: Path) -> Handler:
    state, *lines = entry.read_text(errors="replace").splitlines() or [""]
    pairs = [line.partition(" ")[::2] for line in lines]
    fields = {name.rstrip(":"): value for name, value in pairs}
    try:
        magic = bytes.fromhex(fields.get("magic", ""))
    except ValueError:
        magic = b""
    return Handler(
        name=entry.name,
        enabled=state == "enabled",
        interpreter=fields.get("interpreter", ""),
        flags=fields.get("flags", ""),
        magic=magic,
    )


def emulation_item(
    arch: Architecture, *, host: str, roots: SystemRoots, programs: Programs
) -> Item:
    """Return how this machine runs programs of an architecture, or why it cannot."""
    if arch.name == host:
        return _item(arch, "native", how="native")
    folder = roots.proc / "sys/fs/binfmt_misc"
    setup = SETUP
    if arch.name != "ppc64le":
        setup = (
            f"register {arch.qemu}, version {OLDEST_QEMU} or later, in binfmt_misc with flags OCF"
        )
    if not (folder / "status").exists():
        # In a container the host's handlers may work although binfmt_misc is not visible.
        tester = programs.find("arch-test")
        tested = programs.ask(tester, arch.debian) if tester else ""
        if not isinstance(tested, str) and tested.returncode == 0:
            return _item(arch, "emulated by a handler of the host", how="emulated")
        remedy = f"mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc, then: {setup}"
        return _item(arch, "binfmt_misc is not mounted", remedy)
    if (folder / "status").read_text().strip() == "disabled":
        return _item(arch, "binfmt_misc is disabled", f"echo 1 > {folder / 'status'}")
    items = [
        _handler_item(arch, handler, _qemu_version(handler, programs), folder, setup)
        for handler in handlers_of(folder)
        if handler.serves(arch)
    ]
    if not items:
        return _item(arch, "no handler in binfmt_misc runs its programs", setup)
    return next((item for item in items if item.ok), items[0])


def _qemu_version(handler: Handler, programs: Programs) -> str:
    """Return QEMU's version; empty if its file is not visible, but kept open by the flag F."""
    if not Path(handler.interpreter).is_file():
        return ""
    done = programs.ask(handler.interpreter, "--version")
    return "" if isinstance(done, str) else first_version(done.stdout)


def _handler_item(
    arch: Architecture, handler: Handler, version: str, folder: Path, setup: str
) -> Item:
    name = f"QEMU {version}" if version else f"{handler.interpreter}, version unknown"
    text = f"emulated by {name} (handler {handler.name}, flags {handler.flags or 'none'})"
    remedy, title = "", f"handler {handler.name}"
    if not handler.enabled:
        text, remedy = f"{title} is disabled", f"echo 1 > {folder / handler.name}"
    elif "F" not in handler.flags:
        text = f"{title} lacks the flag F, so it does not work inside containers"
        remedy = setup
    elif version and int(version.partition(".")[0]) < OLDEST_QEMU:
        text = f"{title} is QEMU {version}, which hangs in Open MPI's configure"
        remedy = setup
    return _item(
        arch,
        text,
        remedy,
        how="none" if remedy else "emulated",
        handler=handler.name,
        interpreter=handler.interpreter,
        flags=handler.flags,
        version=version,
    )


def _item(arch: Architecture, text: str, remedy: str = "", **data: str) -> Item:
    is_optional = arch.name not in {"x86_64", "ppc64le"}
    data = {"how": "none", **data}
    return Item(key_of(arch.name), GROUP, arch.name, text, remedy, is_optional, data)


def native_tools_item(arch: Architecture, *, is_open: bool) -> Item:
    """Return the item for native tools in build steps of an architecture."""
    text, remedy = "compilers, shell and apt run natively in its build steps", ""
    if not is_open:
        text = "its build steps are fully emulated: the kernel's handler is not from set-up"
        remedy = SETUP
    title = f"native tools for {arch.name}"
    return Item(f"native:{arch.name}", GROUP, title, text, remedy, optional=True)
