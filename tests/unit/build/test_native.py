"""Native tools: which programs have twins, when they are lent, and QEMU with a door before it."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from samples import EVERYTHING, ROOT, block, project, recipe

from builder.build import listings, native
from builder.build.native import interpreter, tools, twins
from builder.compile.spec import COMPILER
from builder.load.project import load_project
from builder.model import BaseImage
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput
from builder.plan import make_plan
from builder.system.process import Processes

TRIPLET = "powerpc64le-linux-gnu"


@pytest.fixture(scope="module")
def bases() -> dict[str, BaseImage]:
    project = load_project(ROOT)
    return {base.name: base for base in project.bases.values()}


def native_root(folder: Path, *programs: str) -> Path:
    for name in programs:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    return folder


def described(root: Path) -> dict[str, str]:
    return twins.descriptions(root, TRIPLET, ARCHITECTURES["ppc64le"])


FOREIGN = (
    *("arch", "uname", "nproc", "stdbuf"),
    *("dpkg", "dpkg-query", "dpkg-divert", "dpkg-statoverride", "dpkg-trigger"),
)
CROSS = f"usr/libexec/gcc-cross/{TRIPLET}/14"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return native_root(
        tmp_path,
        *(f"usr/bin/{name}" for name in ("bash", "apt-get", "dpkg-deb", "link", *FOREIGN)),
        *(f"usr/bin/{name}" for name in ("python3.13", f"{TRIPLET}-gcc-14", f"{TRIPLET}-ld.bfd")),
        f"{CROSS}/cc1",
        f"usr/lib/gcc-cross/{TRIPLET}/14/plugin",
        "usr/lib/apt/methods/http",
        "usr/lib/nvidia-cuda-toolkit/bin/cicc",
    )


def test_what_tells_of_the_machine_has_no_twin(root: Path) -> None:
    names = ("apt-get", "bash", "dpkg-deb", "link", f"{TRIPLET}-gcc-14", f"{TRIPLET}-ld.bfd")
    assert sorted(described(root)) == [
        *(f"/usr/bin/{name}" for name in (*names, "python3.13")),
        "/usr/lib/apt/methods/http",
        f"/usr/lib/gcc/{TRIPLET}/14/cc1",
        "/usr/lib/nvidia-cuda-toolkit/bin/cicc",
        f"/usr/libexec/gcc/{TRIPLET}/14/cc1",
    ]


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/usr/lib/nvidia-cuda-toolkit/bin/cicc", []),
        ("/usr/bin/apt-get", ["+-oAPT::Architecture=ppc64el"]),
        ("/usr/bin/python3.13", ["?/usr/lib/python3.13/py_compile.py", "?compileall"]),
    ],
)
def test_how_a_twin_is_started(path: str, lines: list[str], root: Path) -> None:
    """Bash, a compiler and its passes are in the golden text of test_native_made."""
    assert described(root)[path].splitlines() == [f"=/.native{path}", *lines]


@pytest.mark.parametrize(
    ("base", "arch", "host", "words"),
    [
        ("debian13", "x86_64", "x86_64", "own architecture"),
        ("debian13", "ppc64le", "aarch64", "x86_64 machines"),
        ("ubuntu22.04", "ppc64le", "x86_64", "from a registry"),
        ("debian13", "x86_64", "ppc64le", "x86_64 machines"),
    ],
)
def test_why_none_are_lent(
    bases: dict[str, BaseImage], base: str, arch: str, host: str, words: str
) -> None:
    assert words in tools.lacking(bases[base], arch, host)


@pytest.mark.parametrize("arch", ["ppc64le", "aarch64"])
def test_they_are_lent_to_what_is_emulated(bases: dict[str, BaseImage], arch: str) -> None:
    assert tools.lacking(bases["debian12"], arch, "x86_64") == ""
    assert "gcc 11 and 12" in tools.described(bases["debian12"], arch, "x86_64")
    assert tools.described(bases["debian12"], "x86_64", "x86_64") == ""


def test_the_compilers_are_those_of_the_base_and_of_its_nvcc(bases: dict[str, BaseImage]) -> None:
    names = tools.packages(bases["debian13"], "ppc64le")
    assert {f"g++-14-{TRIPLET}", f"gfortran-13-{TRIPLET}", f"binutils-{TRIPLET}"} <= set(names)
    assert f"gcc-12-{TRIPLET}" not in names


def test_a_registered_handler_is_valid_until_the_sources_change(tmp_path: Path) -> None:
    entry = tmp_path / "build-images-ppc64le"
    assert not native.is_open("ppc64le", tmp_path)
    entry.write_text("enabled\ninterpreter /x/qemu-ppc64le.8bda77cec78f\nflags: POCF\n")
    assert native.is_open("ppc64le", tmp_path)
    entry.write_text("enabled\ninterpreter /x/qemu-ppc64le.0123456789ab\nflags: POCF\n")
    assert not native.is_open("ppc64le", tmp_path)
    entry.write_text(f"disabled\ninterpreter /x/qemu-ppc64le.{native.version()}\n")
    assert not native.is_open("ppc64le", tmp_path)


def test_ci_setup_names_the_interpreter_alike() -> None:
    script = (
        "source builder/host/setup/emulation.sh; ARCH=x86_64 TOOLS=/tools PACKAGE=$PWD/builder; "
        "interpreter ppc64le"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"/tools/qemu/qemu-ppc64le.{native.version()}"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not on this machine")
@pytest.mark.parametrize("how", ["-static-pie", "-static"])
def test_a_program_with_the_door_before_it_runs_as_before(tmp_path: Path, how: str) -> None:
    source = tmp_path / "program.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "int main(int n, char **a)\n"
        '{ char *m = malloc(100000); printf("%d %s %s %d", n, a[1], getenv("COLOUR"), m != 0); }\n'
    )
    plain, twinned = tmp_path / "plain", tmp_path / "twinned"
    subprocess.run(["gcc", how, "-o", plain, source], check=True)
    twinned.write_bytes(
        interpreter.with_twins(plain.read_bytes(), interpreter.compiled_code(Processes()))
    )
    twinned.chmod(0o755)
    done = subprocess.run(
        [twinned, "one"], env={"COLOUR": "green"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 one green 1"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01" + bytes(100)])
def test_what_is_no_qemu_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match="not a 64-bit program"):
        interpreter.with_twins(content, b"")


def test_compilers_that_no_tools_are_lent_for_are_named(
    tmp_path: Path, bases: dict[str, BaseImage]
) -> None:
    own = (block("gnu", version="12"), block("gnu"), block("llvm", version="17.0.1"), block("pip"))
    made = project(
        tmp_path,
        recipes=[recipe("core", development=own)],
        bases=[bases["debian12"]],
        base=("debian12",),
    )
    [image] = make_plan(made, EVERYTHING, compiler=COMPILER).images
    assert tools.emulated_compilers(image) == "llvm 17"  # debian12's own gcc is 12
    newer = dataclasses.replace(image, base=bases["debian13"])
    assert tools.emulated_compilers(newer) == "gcc 12 and llvm 17"
    foreign = dataclasses.replace(newer, cell=dataclasses.replace(newer.cell, arch="ppc64le"))
    said = listings.decisions(foreign, "x86_64")
    assert said[-4:] == [
        "recipes: core 1.0",
        tools.described(newer.base, "ppc64le", "x86_64"),
        "emulated compilers that its recipes install: gcc 12 and llvm 17",
        "checks: none",
    ]
    closed = listings.decisions(foreign, "x86_64", lambda _arch: False)
    lacking = "native tools: none, set-up did not install the kernel's handler; run "
    assert closed[-3:] == [said[-4], f"{lacking}'build-images setup'", said[-1]]
    other = listings.decisions(foreign, "aarch64", lambda _arch: False)
    assert other[-2] == tools.described(newer.base, "ppc64le", "aarch64") != ""
