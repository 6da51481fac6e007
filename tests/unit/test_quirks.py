"""hpccm's blocks on each architecture: where they work, what is put right, what they leave."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hpccm.building_blocks
import hpccm.config
import pytest
from samples import GOLDEN, base, block, image, recipe

from builder.errors import BadInput
from builder.model import BlockUse, PlannedImage
from builder.spec import block_faults, block_limits, compile_spec, limit_reason
from builder.spec.blocks import PRIMITIVES, catalogue
from builder.spec.complaints import EXPLAINED
from builder.spec.driver import dockerfile, singularity
from builder.spec.limits import LIMITS
from builder.spec.rules import TOOLCHAINS

ARCHS = ("x86_64", "ppc64le", "aarch64")
FAMILIES = {
    distro: base(
        name,
        distribution=name.rstrip("0123456789."),
        version=name.lstrip("abcdefghijklmnopqrstuvwxyz"),
        hpccm_distro=distro,
        architectures=ARCHS,
    )
    for distro, name in (("ubuntu24", "ubuntu24.04"), ("rockylinux8", "rockylinux8"))
}

# Sensible arguments for every block, with versions of today. `eula` is accepted for the test.
EVERY: dict[str, dict[str, Any]] = {
    "amgx": {"branch": "v2.5.0"},
    "apt_get": {"ospackages": ["make"]},
    "arm_allinea_studio": {"version": "22.0", "eula": True},
    "boost": {"version": "1.87.0"},
    "catalyst": {"version": "5.6.1"},
    "cgns": {"version": "4.5.0"},
    "charm": {"version": "8.0.0"},
    "cmake": {"version": "3.31.6", "eula": True},
    "conda": {"version": "24.1.2-0", "python_subversion": "py311", "eula": True},
    "copy": {"src": "sample.conf", "dest": "/etc/"},
    "doca_ofed": {"version": "3.3.0"},
    "environment": {"variables": {"A": "b"}},
    "fftw": {"version": "3.3.10", "mpi": True},
    "gdrcopy": {"version": "2.5.1"},
    "generic_autotools": {"url": "https://example.org/a-1.0.tar.gz", "prefix": "/opt/a"},
    "generic_build": {"url": "https://example.org/b-1.0.tar.gz", "build": ["make"]},
    "generic_cmake": {"url": "https://example.org/c-1.0.tar.gz", "prefix": "/opt/c"},
    "gnu": {},
    "hdf5": {"version": "1.14.5"},
    "hpcx": {"version": "2.13.1", "buildlabel": "cuda11-gdrcopy2-nccl2.12"},
    "intel_mpi": {"version": "2019.6-088", "eula": True},
    "intel_psxe_runtime": {"version": "2020.2-14", "eula": True},
    "julia": {"version": "1.11.3"},
    "knem": {"version": "1.1.4"},
    "kokkos": {"version": "4.6.01"},
    "label": {"metadata": {"a": "b"}},
    "libsim": {"version": "2.13.3"},
    "llvm": {},
    "magma": {"version": "2.9.0"},
    "mkl": {"version": "2020.0-088", "eula": True},
    "mlnx_ofed": {"version": "5.8-2.0.3.0"},
    "mpich": {"version": "4.3.0"},
    "multi_ofed": {"mlnx_versions": ["4.9-7.1.0.0"], "inbox": False},
    "mvapich2": {"version": "2.3.7"},
    "mvapich2_gdr": {
        "version": "2.3.7",
        "cuda_version": "11.2",
        "mlnx_ofed_version": "5.0",
        "gnu_version": "8.3.1",
    },
    "nccl": {"version": "2.22.3-1", "build": True},
    "netcdf": {"version": "4.9.3", "version_cxx": "4.3.1", "version_fortran": "4.6.2"},
    "nsight_compute": {"version": "2023.2.1", "eula": True},
    "nsight_systems": {"version": "2023.3.1"},
    "nvhpc": {"version": "23.9", "cuda": "12.2", "eula": True},
    "nvshmem": {"version": "2.10.1-3"},
    "ofed": {},
    "openblas": {"version": "0.3.29"},
    "openmpi": {"version": "5.0.7", "ucx": "/usr/local/ucx", "toolchain": "gnu"},
    "packages": {"ospackages": ["make"]},
    "pip": {"packages": ["numpy==2.2.4"], "venv": "/opt/venv"},
    "pmix": {"version": "5.0.7"},
    "pnetcdf": {"version": "1.14.0"},
    "python": {},
    "raw": {"docker": 'SHELL ["/bin/bash", "-c"]', "singularity": "%help\n    none"},
    "rdma_core": {"version": "56.1"},
    "sensei": {"branch": "v4.0.0", "catalyst": "/usr/local/catalyst"},
    "shell": {"commands": ["true"]},
    "slurm_pmi2": {"version": "24.11.3"},
    "ucx": {"version": "1.18.0"},
    "xpmem": {"branch": "v2.6.5"},
    "yum": {"ospackages": ["make"]},
}
# No recipe can use these: they need a file of their vendor's that no URL gives, or other blocks.
UNUSABLE = {"comment", "intel_psxe", "pgi", "scif", "user", "workdir"}


def uses(names: list[str]) -> tuple[BlockUse, ...]:
    first = ["gnu"] if "gnu" in names else []  # openmpi takes its toolchain
    ordered = [*first, *(name for name in names if name not in first)]
    return tuple(block(name, line=10 * (n + 1), **EVERY[name]) for n, name in enumerate(ordered))


def working(arch: str, distro: str) -> list[str]:
    return [name for name in EVERY if not limit_reason(block(name, **EVERY[name]), arch, distro)]


def planned(
    root: Path, blocks: tuple[BlockUse, ...], *, arch: str = "x86_64", distro: str = "ubuntu24"
) -> PlannedImage:
    made = FAMILIES[distro]
    return image(
        root,
        recipes=[recipe(development=blocks)],
        bases=[made],
        arch=(arch,),
        base=(made.name,),
    )


def both(root: Path, *blocks: BlockUse, **cell: str) -> str:
    one = planned(root, blocks, **cell)
    return dockerfile(one) + singularity(one)


def test_every_block_has_arguments_here() -> None:
    assert EVERY.keys() | UNUSABLE == catalogue().keys()


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
    folder = GOLDEN / "every-block" / f"{distro}-{arch}"
    texts = {"Dockerfile": spec.dockerfile, "Singularity.def": spec.singularity}
    for name, text in texts.items() if folder.name in GOLDEN_CELLS else ():
        if os.environ.get("UPDATE_GOLDEN"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())
        assert text.encode() == (folder / name).read_bytes(), f"{folder.name}/{name} changed"
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
def test_where_a_block_does_not_work_is_a_fault_at_its_line(name: str, tmp_path: Path) -> None:
    given = {**EVERY[name], **({"version": "25.1", "cuda": "12.6"} if name == "nvhpc" else {})}
    with pytest.raises(BadInput) as caught:
        both(tmp_path, block(name, line=41, **given), arch="ppc64le")
    [fault] = caught.value.faults
    assert (fault.file, fault.line) == ("recipes/core.yaml", 41)
    assert fault.problem.startswith(f"{name} does not work for ppc64le on this base: ")
    assert "it exists for x86_64" in fault.problem


def test_limits_of_a_name_do_not_depend_on_arguments() -> None:
    assert block_limits("mkl") == ("x86_64",)
    assert block_limits("julia") == ("x86_64", "aarch64")
    assert block_limits("nvhpc") is None  # its version decides
    assert block_limits("openmpi") is None


def test_limits_have_reasons_and_sources() -> None:
    for one in LIMITS:
        assert one.block in catalogue()
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
    import warnings  # noqa: PLC0415 - hpccm's sources have escapes that Python warns about

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


# Toolchains: every block gets its own.


@pytest.mark.parametrize("arch", ARCHS)
def test_two_blocks_give_the_text_that_each_gives_alone(arch: str, tmp_path: Path) -> None:
    """hpccm's ucx adds -Wno-error=format to the toolchain that it is given, on ppc64le."""
    given: Mapping[str, Any] = {"toolchain": {"CC": "gcc", "CXX": "g++"}}
    ucx = block("ucx", line=10, version="1.18.0", **given)
    mpi = block("openmpi", line=20, version="5.0.7", toolchain=given["toolchain"])

    def configure(*blocks: BlockUse) -> list[str]:
        lines = both(tmp_path, *blocks, arch=arch).splitlines()
        return [line.strip() for line in lines if "configure " in line]

    assert sorted(configure(ucx, mpi)) == sorted(configure(ucx) + configure(mpi))
    assert any("-Wno-error=format" in line for line in configure(ucx)) is (arch == "ppc64le")
    assert not any("-Wno-error=format" in line for line in configure(mpi))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_toolchain_of_an_earlier_block_is_a_copy_for_each(arch: str, tmp_path: Path) -> None:
    blocks = (
        block("gnu", line=10),
        block("ucx", line=20, version="1.18.0", toolchain="gnu"),
        block("openmpi", line=30, version="5.0.7", toolchain="gnu"),
        block("hdf5", line=40, version="1.14.5", toolchain="mpi"),
    )
    lines = both(tmp_path, *blocks, arch=arch).splitlines()
    [ompi, *_] = [
        line
        for line in lines
        if "configure " in line and "--with-verbs" not in line and "orterun" in line
    ]
    assert "CC=gcc CXX=g++ F77=gfortran F90=gfortran FC=gfortran" in ompi
    assert "CFLAGS" not in ompi
    assert any("CC=mpicc CXX=mpicxx" in line for line in lines)


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_what_can_give_a_toolchain_has_one(name: str) -> None:
    assert name in catalogue()


def test_a_toolchain_of_no_earlier_block_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        both(tmp_path, block("ucx", line=41, version="1.18.0", toolchain="gnu"))
    [fault] = caught.value.faults
    assert (fault.line, fault.key) == (42, "development[0].ucx.toolchain")
    assert fault.problem == "no block gnu stands before this one, so there is no toolchain of it"


# What is put right, one by one.


@pytest.mark.parametrize(
    ("arch", "option"),
    [("x86_64", "--enable-sse2"), ("ppc64le", "--enable-vsx"), ("aarch64", "--enable-neon")],
)
def test_fftw_uses_the_vector_unit(arch: str, option: str, tmp_path: Path) -> None:
    text = both(tmp_path, block("fftw", version="3.3.10"), arch=arch)
    assert [one for one in ("--enable-sse2", "--enable-vsx", "--enable-neon") if one in text] == [
        option
    ]
    assert "ftp:" not in text


@pytest.mark.parametrize("arch", ARCHS)
def test_fftw_beyond_double_has_no_vector_unit(arch: str, tmp_path: Path) -> None:
    text = both(tmp_path, block("fftw", version="3.3.10", enable_long_double=True), arch=arch)
    assert "--enable-long-double" in text
    assert not any(one in text for one in ("--enable-sse2", "--enable-vsx", "--enable-neon"))


def test_old_fftw_has_no_right_vsx(tmp_path: Path) -> None:
    assert "vsx" not in both(tmp_path, block("fftw", version="3.3.6"), arch="ppc64le")


def test_options_of_a_recipe_are_kept(tmp_path: Path) -> None:
    given: dict[str, Any] = {"version": "3.3.10", "configure_opts": ["--enable-float"]}
    text = both(tmp_path, block("fftw", **given), arch="ppc64le")
    assert "--enable-float" in text
    assert "vsx" not in text


@pytest.mark.parametrize("name", ["openmpi", "ucx", "mvapich2", "kokkos"])
def test_without_a_toolkit_nothing_is_built_for_cuda(name: str, tmp_path: Path) -> None:
    text = both(
        tmp_path,
        block(name, **EVERY[name] | {"toolchain": {"CC": "gcc"}})
        if name != "kokkos"
        else block(name, **EVERY[name]),
    )
    assert "--with-cuda" not in text
    assert "ENABLE_CUDA" not in text
    assert "VOLTA" not in text


def test_open_mpi_5_has_no_verbs(tmp_path: Path) -> None:
    assert "--without-verbs" in both(tmp_path, block("openmpi", version="5.0.7"))
    assert "--with-verbs" in both(tmp_path, block("openmpi", version="4.1.8"))


def test_openblas_is_not_for_the_building_machine(tmp_path: Path) -> None:
    given = block("openblas", version="0.3.29")
    assert "DYNAMIC_ARCH=1" in both(tmp_path, given)
    assert "TARGET=POWER8" in both(tmp_path, given, arch="ppc64le")
    assert "TARGET=ARMV8" in both(tmp_path, given, arch="aarch64")


@pytest.mark.parametrize("name", ["hpcx", "mvapich2_gdr"])
def test_archives_are_called_as_upstream_calls_them(name: str, tmp_path: Path) -> None:
    text = both(tmp_path, block(name, **EVERY[name]), arch="ppc64le")
    assert "ppc64le." in text
    assert "ppc64el" not in text


def test_python_is_python_3(tmp_path: Path) -> None:
    assert "python2" not in both(tmp_path, block("python", devel=True))


@pytest.mark.parametrize(
    ("distribution", "version", "hpccm_distro", "enabled"),
    [
        ("rockylinux", "8", "rockylinux8", "yum-config-manager --set-enabled powertools"),
        ("rockylinux", "9", "rockylinux9", "yum-config-manager --set-enabled crb"),
        ("ubi", "8", "rockylinux8", "--set-enabled ubi-8-codeready-builder-rpms"),
        ("ubi", "9", "rockylinux9", "--set-enabled ubi-9-codeready-builder-rpms"),
    ],
)
def test_the_repository_of_developers_has_its_name(
    distribution: str, version: str, hpccm_distro: str, enabled: str, tmp_path: Path
) -> None:
    name = f"{distribution}{version}"
    made = base(name, distribution=distribution, version=version, hpccm_distro=hpccm_distro)
    given = [recipe(development=(block("rdma_core", version="56.1"),))]
    one = image(tmp_path, recipes=given, bases=[made], base=(name,))
    for text in (dockerfile(one), singularity(one)):
        assert enabled in text
        assert ("powertools" in text) is (name == "rockylinux8")
        assert ("install -y epel-release" in text) is (distribution != "ubi")


# Certificates, and what keys are fetched with.

REGISTRY: dict[str, Any] = {"bootstrap": None, "references": {"x86_64": "example.org/ubuntu:24.04"}}


def stages_of(root: Path, *recipes: Any, **changes: Any) -> list[str]:
    one = image(root, recipes=list(recipes), bases=[base(**changes)])
    return dockerfile(one).split("\nFROM ")[1:]


def test_certificates_come_before_the_first_download(tmp_path: Path) -> None:
    [stage, runtime] = stages_of(
        tmp_path, recipe(development=(block("ucx", version="1.18.0"),)), **REGISTRY
    )
    assert stage.index("ca-certificates") < stage.index("wget -q")
    assert "ca-certificates" not in runtime


def test_certificates_are_where_the_run_time_stage_downloads(tmp_path: Path) -> None:
    [_, runtime] = stages_of(
        tmp_path, recipe(development=(block("julia", version="1.11.3"),)), **REGISTRY
    )
    assert runtime.index("ca-certificates") < runtime.index("wget -q")


def test_a_base_that_has_certificates_gets_no_more(tmp_path: Path) -> None:
    [stage, _] = stages_of(tmp_path, recipe(development=(block("ucx", version="1.18.0"),)))
    assert "ca-certificates" not in stage


def test_packages_alone_need_no_certificates(tmp_path: Path) -> None:
    blocks = (block("gnu"), block("packages", ospackages=["make"]), block("python"))
    assert "ca-certificates" not in "".join(
        stages_of(tmp_path, recipe(development=blocks), **REGISTRY)
    )


def test_keys_are_fetched_with_what_is_there(tmp_path: Path) -> None:
    given = block(
        apt_keys=["https://example.org/key.pub"],
        apt_repositories=["deb [signed-by=/usr/share/keyrings/key.gpg] https://example.org/ /"],
        ospackages=["thing"],
    )
    [stage, _] = stages_of(tmp_path, recipe(development=(given,)), **REGISTRY)
    first = stage.index("gnupg")
    assert first < stage.index("wget -qO -")
    assert stage.index("ca-certificates") < stage.index("wget -qO -")


# The primitives.


def test_definitions_have_all_stages(tmp_path: Path) -> None:
    """Formats older than 3.2 drop all stages but the first, and hpccm does so silently."""
    text = singularity(planned(tmp_path, (block("gnu"), block("ucx", version="1.18.0"))))
    assert text.count("BootStrap: ") == 2
    assert "%files from development" in text


@pytest.mark.parametrize("distro", sorted(FAMILIES))
def test_pip_makes_a_virtual_environment_and_leaves_it(distro: str, tmp_path: Path) -> None:
    given = block("pip", packages=["numpy==2.2.4"], venv="/opt/venv", system_site_packages=True)
    for text in (
        dockerfile(planned(tmp_path, (given,), distro=distro)),
        singularity(planned(tmp_path, (given,), distro=distro)),
    ):
        assert "python3 -m venv --system-site-packages /opt/venv" in text
        assert "/opt/venv/bin/pip --no-cache-dir install numpy==2.2.4" in text
        assert text.count("/opt/venv/bin:$PATH") >= 2
    assert "COPY --from=core-development /opt/venv /opt/venv" in dockerfile(
        planned(tmp_path, (given,), distro=distro)
    )


def test_pip_installs_where_the_distribution_manages_python(tmp_path: Path) -> None:
    text = both(tmp_path, block("pip", packages=["numpy==2.2.4"], upgrade=True))
    assert "PIP_BREAK_SYSTEM_PACKAGES=1 pip3 --no-cache-dir install numpy==2.2.4" in text
    assert "PIP_BREAK_SYSTEM_PACKAGES=1 pip3 --no-cache-dir install --upgrade pip" in text
    assert "python-pip" not in text


def test_raw_is_in_both(tmp_path: Path) -> None:
    one = planned(tmp_path, (block("raw", docker="STOPSIGNAL 9", singularity="%apphelp x\n    y"),))
    assert "STOPSIGNAL 9" in dockerfile(one)
    assert "STOPSIGNAL" not in singularity(one)
    assert "%apphelp x" in singularity(one)


def test_primitives_are_in_the_catalogue() -> None:
    assert set(PRIMITIVES) <= catalogue().keys()
