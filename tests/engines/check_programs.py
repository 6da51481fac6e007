"""The programs of checks, compiled with this machine's compilers and run where a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import PROJECT, Ended, run_program, tool_of_tests

SOURCES = PROJECT / "tests/images"
FAKES = PROJECT / "tests/engines/fakes"
_WARNINGS = ("-O2", "-Wall", "-Wextra", "-Werror")
_FATBIN = """
.section .nv_fatbin, "a"
.macro code kind, capability
    .short \\kind, 257
    .long 32
    .quad 8
    .long 0, 0
    .short 0, 0
    .long \\capability
    .quad 0
.endm
    .long 0xBA55ED50
    .short 1, 16
    .quad 40
    code 2, {first}
    .quad 0
    .long 0xBA55ED50
    .short 1, 16
    .quad 80
    code 2, {second}
    code 1, {second}
"""


def compiled(source: Path, target: Path, *options: str, compiler: str = "cc") -> Path:
    """Compile without a warning; skips without the compiler."""
    standard = {".c": ["-std=c99"], ".cc": ["-std=c++11"]}.get(source.suffix, [])
    argv = (tool_of_tests(compiler), *standard, *_WARNINGS, "-o", target, source, *options)
    done = run_program(*argv)
    assert (done.status, done.stderr) == (0, "")
    return target


def program_with_gpu_code(folder: Path, first: int, second: int) -> Path:
    """A program in which nvcc put code for two capabilities, and PTX for the second.

    There are two containers; what fills the first up to eight bytes is between them.
    """
    source = folder / "code.s"
    source.write_text(_FATBIN.format(first=first, second=second))
    return compiled(source, folder / "code.so", "-shared", "-nostdlib")


def mounting(script: str, *arguments: str | Path) -> Ended:
    """Run a shell script in a mount namespace of its own."""
    unshare = [tool_of_tests("unshare"), "--mount"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    if run_program(*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt").status != 0:
        pytest.skip("this user may not mount in a namespace of its own")
    return run_program(*unshare, "sh", "-ec", script, "sh", *arguments)
