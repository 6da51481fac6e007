"""hpccm's blocks on each architecture: which work, and that they compile without complaint.

UPDATE_GOLDEN=1 writes the golden files anew: read the difference.
"""

from __future__ import annotations

import ast
import functools
import warnings
from pathlib import Path
from typing import Any

import hpccm.building_blocks
import hpccm.config
import pytest
from every_block import ARCHS, EVERY, FAMILIES, UNUSABLE, both, planned, uses, working
from samples import block, compare_with_golden

from builder.compile.spec import block_faults, compile_spec, limit_reason
from builder.compile.spec.catalogue import limits
from builder.compile.spec.hpccm_blocks import EXPLAINED, block_classes
from builder.model.errors import BadInput


def test_every_block_has_arguments_here() -> None:
    assert EVERY.keys() | UNUSABLE == block_classes().keys()


@pytest.mark.parametrize("name", sorted(EVERY))
def test_their_arguments_have_no_fault(name: str) -> None:
    assert block_faults(block(name, **EVERY[name])) == []


@pytest.mark.parametrize("name", sorted(UNUSABLE))
def test_what_no_recipe_can_use_is_refused(name: str) -> None:
    given: dict[str, Any] = {"tarball": "x.tgz"} if name in {"intel_psxe", "pgi"} else {}
    assert block_faults(block(name, **given))


GOLDEN_CELLS = ("ubuntu24-x86_64", "ubuntu24-ppc64le", "rockylinux8-ppc64le")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("distro", sorted(FAMILIES))
def test_every_block_that_works_compiles_in_one_recipe(
    arch: str, distro: str, tmp_path: Path
) -> None:
    """Without a warning, in both formats; the golden files show what it looks like."""
    names = working(arch, distro)
    one = planned(tmp_path, uses(names), arch=arch, distro=distro)
    spec = compile_spec(one, run_checks="#!/bin/sh\n")
    if (cell := f"{distro}-{arch}") in GOLDEN_CELLS:
        compare_with_golden(spec.dockerfile, f"every-block/{cell}/Dockerfile")
        compare_with_golden(spec.singularity, f"every-block/{cell}/Singularity.def")
    assert spec.dockerfile.count("\nFROM ") == 2


@pytest.mark.parametrize(("arch", "count"), [("x86_64", 50), ("ppc64le", 43), ("aarch64", 47)])
def test_most_blocks_work(arch: str, count: int) -> None:
    assert len(working(arch, "rockylinux8")) >= count


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", sorted(EVERY))
def test_no_file_of_another_architecture(arch: str, name: str, tmp_path: Path) -> None:
    for distro in FAMILIES:
        if name in working(arch, distro):
            text = both(tmp_path, *uses(sorted({"gnu", name})), arch=arch, distro=distro)
            text = text.replace(f"-{arch}", "").replace(f"={arch}", "").replace(f" {arch}", "")
            words = {"x86_64": ("ppc64", "aarch64"), "ppc64le": ("x86_64", "aarch64", "amd64")}
            for other in words.get(arch, ("x86_64", "ppc64", "amd64")):
                assert other not in text, f"{name} on {arch}: {other}"


@pytest.mark.parametrize("name", ["mkl", "julia", "doca_ofed", "nvhpc"])
def test_where_a_block_does_not_work_has_a_reason(name: str) -> None:
    given = {**EVERY[name], **({"version": "25.1", "cuda": "12.6"} if name == "nvhpc" else {})}
    reason = limit_reason(block(name, **given), "ppc64le", "ubuntu24")
    assert "it exists for x86_64" in reason


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gnu", {"extra_repository": True, "version": "13"}),
        ("llvm", {"upstream": True, "version": "18"}),
        ("nccl", {"version": "2.22.3-1", "cuda": "12.4"}),
        ("packages", {"apt_ppas": ["ppa:a/b"]}),
        ("mlnx_ofed", EVERY["mlnx_ofed"]),
        ("python", {"python2": True}),
    ],
)
def test_debian_is_not_taken_for_ubuntu(name: str, given: dict[str, Any]) -> None:
    use = block(name, **given)
    assert limit_reason(use, "x86_64", "ubuntu24", "debian")
    assert not limit_reason(use, "x86_64", "ubuntu24", "ubuntu")


def test_a_repository_for_ubuntu_is_none_for_debian() -> None:
    reason = limit_reason(
        block("nccl", version="2.22.3-1", cuda="12.4"), "x86_64", "ubuntu24", "debian"
    )
    assert "hpccm would add an Ubuntu repository to Debian" in reason


def test_limits_have_reasons_and_sources() -> None:
    for one in limits():
        assert one.block in block_classes()
        assert len(one.reason) > 20
        assert one.source.startswith("https://")


def test_every_place_where_hpccm_names_an_architecture_was_looked_at() -> None:
    """A new version of hpccm that knows another processor is read again."""
    folder = Path(hpccm.building_blocks.__file__).parent
    found = {
        path.stem for path in folder.glob("*.py") if "cpu_arch." in path.read_text(encoding="utf-8")
    }
    assert found == {
        *("arm_allinea_studio", "charm", "cmake", "conda", "doca_ofed", "fftw", "intel_mpi"),
        *("intel_psxe", "intel_psxe_runtime", "julia", "libsim", "llvm", "mkl", "mlnx_ofed"),
        *("nccl", "nsight_compute", "nsight_systems", "nvhpc", "ofed", "openblas", "pgi"),
        *("ucx", "yum"),
    }


def test_every_complaint_of_hpccm_was_looked_at() -> None:
    """All of them are faults but the explained ones; a new version of hpccm is read again."""
    root = Path(hpccm.config.__file__).parent
    calls = [
        ast.unparse(node.func)
        for path in root.rglob("*.py")
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.Call)
    ]
    assert (calls.count("logging.warning"), calls.count("logging.error")) == (54, 13)
    assert all(len(reason) > 20 for reason in EXPLAINED.values())


@functools.cache
def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hpccm's sources have escapes that Python warns about
        return ast.parse(path.read_bytes())


def test_a_warning_is_told_at_the_line_of_its_block(tmp_path: Path) -> None:
    blocks = (block("gnu"), block("cmake", line=41, version="3.31.6"), block("python", line=51))
    with pytest.raises(BadInput) as caught:
        both(tmp_path, *blocks)
    [fault] = caught.value.faults
    assert (fault.line, fault.problem) == (41, "hpccm warns: CMake EULA was not accepted")


def test_several_complaints_are_told_at_once(tmp_path: Path) -> None:
    blocks = (
        block("cmake", line=41, version="3.31.6"),
        block("mvapich2_gdr", line=51, **{**EVERY["mvapich2_gdr"], "gnu": False}),
        block("openmpi", line=61, version="newest"),
    )
    with pytest.raises(BadInput) as caught:
        both(tmp_path, *blocks)
    assert [fault.line for fault in caught.value.faults] == [41, 51, 61]
