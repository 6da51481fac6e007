"""Host contracts for real: true of the images that have them, and read from every form of these."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from check_programs import SOURCES, compiled
from command_line import build_images_here
from harness import (
    ARCHITECTURES,
    PROJECT,
    need,
    passed,
    run_program,
    tool_of_tests,
)

from builder.build.engines import Tools

pytestmark = pytest.mark.engines

HERE = platform.machine()
NOT_HERE = {"x86_64": "ppc64le", "ppc64le": "x86_64"}.get(HERE, "x86_64")
UNKNOWN_MPI = {
    "family": "openmpi",
    "version": "9.9.9",
    "route": "package",
    "library": "libmpi.so.40",
}


# The check in the image.


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("host-contract") / "host-contract"
    return compiled(SOURCES / "host-contract.c", target, "-ldl")


def kernel_of_libc() -> str:
    """What this machine's C library says when it is run as a program."""
    maps = Path("/proc/self/maps").read_text()
    libc = next(line.split()[-1] for line in maps.splitlines() if "/libc.so.6" in line)
    text = passed(run_program(libc)).stdout
    kernels = [line.split(": ")[1] for line in text.splitlines() if "supported kernel" in line]
    return kernels[0] if kernels else pytest.skip("this C library names no kernel")


def truth(**changes: Any) -> dict[str, Any]:
    """A contract that is true of this machine's C library."""
    libc, version = platform.libc_ver()
    if libc != "glibc":
        pytest.skip("no glibc here")
    made = {"schema": "build-images/host-contract/v1", "image": "here", "architecture": HERE}
    return {**made, "kernel": kernel_of_libc(), "glibc": version, **changes}


def checked(program: Path, folder: Path, contract: dict[str, Any]) -> tuple[int, str]:
    (folder / "contract.json").write_text(json.dumps(contract, indent=1) + "\n")
    return ended(program, folder / "contract.json")


def ended(program: Path, contract: Path) -> tuple[int, str]:
    done = run_program(program, contract)
    return done.status, done.finding


def test_a_true_contract_passes(program: Path, tmp_path: Path) -> None:
    contract = truth()
    status, finding = checked(program, tmp_path, contract)
    assert status == 0
    assert finding == f"true of this image: glibc {contract['glibc']}, Linux {contract['kernel']}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": NOT_HERE}, f"programs here are for {HERE}"),
        ({"glibc": "2.1"}, "and the contract says 2.1"),
        ({"glibc": None}, "and the contract says nothing"),
        ({"kernel": "9.9.9"}, "and the contract says 9.9.9"),
        ({"mpi": {**UNKNOWN_MPI, "library": "libnowhere.so.1"}}, "cannot be loaded"),
        ({"mpi": {**UNKNOWN_MPI, "library": "libm.so.6"}}, "does not say its version"),
        ({"mpi": {"family": "openmpi", "route": "package"}}, "does not name the library"),
    ],
)
def test_a_false_one_fails(
    changes: dict[str, Any], words: str, program: Path, tmp_path: Path
) -> None:
    status, finding = checked(program, tmp_path, truth(**changes))
    assert status == 1
    assert words in finding


def test_an_mpi_of_the_host_is_not_looked_for(program: Path, tmp_path: Path) -> None:
    mpi = {**UNKNOWN_MPI, "route": "host"}
    assert checked(program, tmp_path, truth(mpi=mpi))[0] == 0


def test_an_mpi_of_another_version_is_told(program: Path, tmp_path: Path) -> None:
    if run_program(sys.executable, "-c", "import ctypes; ctypes.CDLL('libmpi.so.40')").status:
        pytest.skip("no Open MPI here (Debian: libopenmpi3)")
    status, finding = checked(program, tmp_path, truth(mpi=UNKNOWN_MPI))
    assert status == 1
    assert finding.startswith("libmpi.so.40 is Open MPI v")
    assert finding.endswith("and the contract says 9.9.9")
    version = finding.partition("Open MPI v")[2].partition(",")[0]
    true = {**UNKNOWN_MPI, "version": version}
    assert checked(program, tmp_path, truth(mpi=true))[0] == 0
    short = {**UNKNOWN_MPI, "version": version.rpartition(".")[0]}
    assert checked(program, tmp_path, truth(mpi=short))[0] == 1


def test_a_contract_that_is_not_there_fails(program: Path, tmp_path: Path) -> None:
    assert ended(program, tmp_path / "none.json") == (1, f"there is no {tmp_path / 'none.json'}")


# A SIF that keeps no labels beside its file system.


def sif_of(folder: Path, target: Path, scratch: Path) -> Path:
    """A SIF with nothing but a SquashFS."""
    squashfs = scratch / "squashfs"
    passed(run_program(tool_of_tests("mksquashfs"), folder, squashfs, "-quiet"))
    data, start = squashfs.read_bytes(), 4096
    descriptor = struct.pack(
        "<i?IIIqqqqqqq128s384s",
        *(0x4004, True, 1, 1, 0, start, len(data), len(data)),
        *(0, 0, 0, 0, b"", struct.pack("<ii3s", 1, 2, b"02")),
    )
    head = struct.pack(
        "<32s10s3s3s16sqqqqqqqq",
        *(b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"\0" * 16),
        *(0, 0, 0, 1, 128, len(descriptor), start, len(data)),
    )
    target.write_bytes((head + descriptor).ljust(start, b"\0") + data)
    return target


@pytest.mark.parametrize("has", [True, False])
def test_the_file_in_a_sif_is_read(has: bool, tmp_path: Path) -> None:
    need("unsquashfs")
    inside = tmp_path / "root/opt/build-images"
    inside.mkdir(parents=True)
    if has:
        golden = next((PROJECT / "tests/golden/contract").glob("*ppc64le.json"))
        shutil.copy(golden, inside / "host-contract.json")
    image = sif_of(tmp_path / "root", tmp_path / "image.sif", tmp_path)
    record = PROJECT / "tests/data/hosts/dgx.json"
    done = build_images_here("check-host", image, "--host", record)
    assert done.status == (5 if has else 4)
    words = "the image is for ppc64le" if has else "this image has no host contract"
    assert words in " ".join((done.stdout + done.stderr).split())


# The images of the main job.


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_form_of_an_image_gives_the_same_answer(
    hpc_base: dict[str, Path], arch: str, tmp_path: Path
) -> None:
    folder, unpacked = hpc_base[arch], tmp_path / "image"
    unpacked.mkdir()
    words = ("tar", "-xzf", folder / "image.tar.gz", "-C", unpacked, "opt/build-images", "ch")
    passed(run_program(*words))
    forms = [
        folder,
        *(folder / name for name in ("image.oci", "image.sif", "image.tar.gz")),
        folder / "files/host-contract.json",
        unpacked,
    ]
    record = PROJECT / "tests/data/hosts/dgx.json"
    ended = [build_images_here("check-host", form, "--host", record, "--json") for form in forms]
    assert {one.status for one in ended} == {0 if arch == "x86_64" else 5}
    assert len({one.stdout for one in ended}) == 1
    assert json.loads(ended[0].stdout)["image"] == folder.name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_labels_and_annotations_are_the_contract(
    hpc_base: dict[str, Path], arch: str, tools: Tools
) -> None:
    image = f"oci:{hpc_base[arch]}/image.oci:latest"
    skopeo = (tools.program("skopeo"), "inspect")
    labels = json.loads(passed(run_program(*skopeo, image)).stdout)["Labels"]
    manifest = json.loads(passed(run_program(*skopeo, "--raw", image)).stdout)
    own = {key: text for key, text in labels.items() if key.startswith("build-images.host.")}
    assert own["build-images.host.architecture"] == arch
    assert own["build-images.host.mpi.library"] == "libmpi.so.40"
    assert own.items() <= manifest["annotations"].items()


def test_this_machine_runs_what_was_built_for_it(hpc_base: dict[str, Path]) -> None:
    """What `check-host` says is what the checks of the main job found."""
    done = build_images_here("check-host", hpc_base[HERE], "--launcher=in-container", "--json")
    found = json.loads(done.stdout)
    rules = {one["rule"]: one["answer"] for one in found["rules"]}
    assert rules == {"architecture": "yes", "processor": "yes", "kernel": "yes"}
    assert done.status == 0, done.stdout


def test_a_foreign_image_is_a_no_unless_emulation_is_asked_for(
    hpc_base: dict[str, Path],
) -> None:
    image = hpc_base[NOT_HERE]
    assert build_images_here("check-host", image).status == 5
    found = json.loads(build_images_here("check-host", image, "--emulated", "--json").stdout)
    assert found["emulated"] is True
    rules = {one["rule"]: one for one in found["rules"]}
    assert rules["architecture"]["answer"] == "yes"
    assert "not native" in rules["architecture"]["reason"]
