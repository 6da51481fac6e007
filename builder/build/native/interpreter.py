"""A QEMU that runs native twins: `twins.c` put before the entry point of a static QEMU.

`python -m builder.build.native.interpreter QEMU TARGET` writes it; `ci/setup` registers it with
binfmt_misc (flags OCPF), by a name that ends with its version. It is QEMU itself with one more
loadable segment, so it needs no second program inside containers, and costs two system calls where
no native tools are shown.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.model.errors import BadInput, BuildImagesError
from builder.system.process import Processes

_HERE = Path(__file__).parent
_PAGE = 0x1000
_LOAD, _NOTE = 1, 4  # p_type, see elf(5)
_READ_AND_EXECUTE = 5  # p_flags
_X86_64 = 62  # e_machine
_ONWARD = 8  # bytes of `onward`, before `start`
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_COMPILE = [
    *("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fpie", "-mno-sse"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fcf-protection=none"),
    *("-nostdlib", "-static", "-Wl,--build-id=none"),
]


def with_twins(qemu: bytes, code: bytes) -> bytes:
    """A static QEMU for x86_64 with `code` (the compiled `twins.c`) run before it.

    The code takes the place of the last note in the program header: notes tell about a program,
    nothing of it needs them to run.
    """
    fields = list(_HEADER.unpack(qemu[: _HEADER.size].ljust(_HEADER.size, b"\0")))
    ident, machine, entry, table, entry_size, count = (fields[n] for n in (0, 2, 4, 5, 9, 10))
    if ident[:5] != b"\x7fELF\x02" or machine != _X86_64 or entry_size != _SEGMENT.size:
        raise BadInput("this QEMU is not a 64-bit program for x86_64")
    segments = list(_segments(qemu, table, count))
    last = max((n for n, segment in enumerate(segments) if segment[0] == _LOAD), default=0)
    notes = [n for n, segment in enumerate(segments) if segment[0] == _NOTE and n > last]
    if not notes:
        raise BadInput("this QEMU has no note in its program header that could make room")
    offset = _up(len(qemu))
    address = _up(max(s[3] + s[6] for s in segments if s[0] == _LOAD))
    code = struct.pack("<q", entry - address) + code[_ONWARD:]
    segments[notes[-1]] = (
        _LOAD,
        _READ_AND_EXECUTE,
        offset,
        address,
        address,
        len(code),
        len(code),
        _PAGE,
    )
    fields[4] = address + _ONWARD
    made = bytearray(qemu.ljust(offset, b"\0") + code)
    _HEADER.pack_into(made, 0, *fields)
    for n, segment in enumerate(segments):
        _SEGMENT.pack_into(made, table + n * _SEGMENT.size, *segment)
    return bytes(made)


def compiled_code(processes: Processes) -> bytes:
    """`twins.c` as machine code for x86_64, by this machine's gcc."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "twins"
        script = f"-Wl,-T,{_HERE / 'twins.ld'}"
        processes.capture([*_COMPILE, script, "-o", target, _HERE / "twins.c"])
        return target.read_bytes()


def _segments(program: bytes, table: int, count: int) -> Iterator[tuple[int, ...]]:
    for n in range(count):
        yield _SEGMENT.unpack_from(program, table + n * _SEGMENT.size)


def _up(number: int) -> int:
    return -(-number // _PAGE) * _PAGE


def main(arguments: Sequence[str]) -> int:
    """Write the interpreter; exit codes as everywhere."""
    qemu, target = (Path(argument) for argument in arguments)
    try:
        made = with_twins(qemu.read_bytes(), compiled_code(Processes()))
    except BuildImagesError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    target.write_bytes(made)
    target.chmod(0o755)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
