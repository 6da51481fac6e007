"""What hpccm gets wrong and is put right: toolchains, defaults, certificates, pip, raw."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from every_block import ARCHS, EVERY, FAMILIES, both, planned
from samples import base, block, image, recipe, shipped_project

from builder.compile.spec import compile_spec
from builder.compile.spec.driver import dockerfile, singularity
from builder.compile.spec.quirks import step_by_step
from builder.model import BlockUse, Selection
from builder.model.errors import BadInput
from builder.plan import make_plan
from builder.system.home import PIP_CONFIG

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


def test_the_toolchain_is_of_the_last_block_of_that_name(tmp_path: Path) -> None:
    blocks = (
        block("gnu", line=10),
        block("gnu", line=20, source=True, version="14.2.0"),
        block("ucx", line=30, version="1.18.0", toolchain="gnu"),
        block("gnu", line=40, source=True, version="14.2.0", prefix="/opt/later"),
    )
    assert "CC=/usr/local/gnu/bin/gcc" in both(tmp_path, *blocks)


@pytest.mark.parametrize("mpi", ["openmpi5.0", "none"])
def test_the_toolchain_of_an_mpi_from_packages_is_its_compilers(mpi: str, tmp_path: Path) -> None:
    given = (block("mpi", line=10), block("hdf5", line=20, version="1.14.5", toolchain="mpi"))
    blocks = given if mpi != "none" else given[1:]
    made = image(tmp_path, recipes=(recipe(development=blocks),), mpi=(mpi,))
    if mpi == "none":
        with pytest.raises(BadInput, match="no toolchain: no block mpi comes before this one"):
            compile_spec(made, run_checks="")
    else:
        text = compile_spec(made, run_checks="").dockerfile
        assert "CC=mpicc CXX=mpicxx F77=mpif77 F90=mpif90 FC=mpifort ./configure" in text


def test_a_toolchain_of_no_earlier_block_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        both(tmp_path, block("ucx", line=41, version="1.18.0", toolchain="gnu"))
    [fault] = caught.value.faults
    assert (fault.line, fault.key) == (42, "development[0].ucx.toolchain")
    assert fault.problem == "no toolchain: no block gnu comes before this one"


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


# CUDA-aware MPI: where the toolkit is.


def with_toolkit(cell: str, *blocks: BlockUse) -> str:
    """Both specs of a cell of the shipped bases whose recipe has a CUDA toolkit and some blocks."""
    made = recipe("aware", development=(block("cuda", line=4), *blocks))
    project = dataclasses.replace(shipped_project(), recipes={"aware": made})
    [one] = make_plan(project, Selection(images=(f"aware-1.0-{cell}",)), compiler="").images
    return dockerfile(one) + singularity(one)


DEBIANS = ("debian13-cuda12.4-x86_64", "debian12-cuda11.8-ppc64le")


@pytest.mark.parametrize("cell", DEBIANS)
@pytest.mark.parametrize("version", ["4.1.8", "5.0.7"])
def test_open_mpi_finds_the_distributions_toolkit(cell: str, version: str) -> None:
    """A bare --with-cuda looks for /usr/local/cuda/include/cuda.h, and ends the build."""
    text = with_toolkit(cell, block("openmpi", version=version))
    assert text.count("--with-cuda=/usr ") == 2
    assert not re.search(r"--with-cuda(?![=-])", text)


def test_open_mpi_5_links_the_toolkits_stub() -> None:
    mpi = block("openmpi", version="5.0.7")
    for cell, folder in (
        ("debian12-cuda11.8-ppc64le", "/usr/lib/powerpc64le-linux-gnu/stubs"),
        ("ubuntu22.04-cuda12.4-x86_64", "/usr/local/cuda/lib64/stubs"),
    ):
        assert f"--with-cuda-libdir={folder}" in with_toolkit(cell, mpi)
    old = block("openmpi", version="4.1.8")
    assert "libdir" not in with_toolkit("debian12-cuda11.8-ppc64le", old)


def test_the_first_open_mpi_5_starts_without_a_driver() -> None:
    for version, has in (("5.0.1", True), ("5.0.2", False), ("4.1.8", False)):
        text = with_toolkit(DEBIANS[0], block("openmpi", version=version))
        assert ("--enable-mca-dso=accelerator-cuda," in text) is has


@pytest.mark.parametrize("cell", DEBIANS)
def test_mvapich2_links_the_distributions_stubs(cell: str) -> None:
    text = with_toolkit(cell, block("mvapich2", version="2.3.7"))
    triplet = "x86_64" if cell.endswith("x86_64") else "powerpc64le"
    stubs = f"/usr/lib/{triplet}-linux-gnu/stubs"
    assert "--enable-cuda --with-cuda=/usr " in text
    assert f"ln -s {stubs}/libcuda.so {stubs}/libcuda.so.1" in text
    assert f"-L{stubs} -lnvidia-ml -lcuda" in text
    assert "lib64" not in text


@pytest.mark.parametrize("cell", DEBIANS)
def test_ucx_finds_the_distributions_stubs(cell: str) -> None:
    """Its configure looks below /usr/lib64/stubs, which no package of Debian's has."""
    text = with_toolkit(cell, block("ucx", version="1.18.0"))
    triplet = "x86_64" if cell.endswith("x86_64") else "powerpc64le"
    assert text.count(f"LDFLAGS=-L/usr/lib/{triplet}-linux-gnu/stubs") == 2
    assert text.count("--with-cuda=/usr ") == 2


@pytest.mark.parametrize("name", ["mvapich2", "openmpi", "ucx"])
def test_nvidias_toolkit_is_where_it_was(name: str) -> None:
    text = with_toolkit("ubuntu22.04-cuda12.4-x86_64", block(name, version="4.1.8"))
    assert "--with-cuda=/usr/local/cuda" in text
    assert "x86_64-linux-gnu/stubs" not in text


def test_a_toolkit_that_a_recipe_names_is_kept() -> None:
    given: dict[str, Any] = {"version": "5.0.7", "cuda": "/opt/cuda"}
    text = with_toolkit(DEBIANS[0], block("openmpi", with_cuda_libdir="/opt/stubs", **given))
    assert "--with-cuda=/opt/cuda" in text
    assert "--with-cuda-libdir=/opt/stubs" in text
    toolchain = {"CC": "gcc", "CUDA_HOME": "/opt/cuda"}
    mpi = block("openmpi", version="5.0.7", cuda=True, toolchain=toolchain)
    assert with_toolkit(DEBIANS[0], mpi).count("--with-cuda=/opt/cuda ") == 2
    mpi = block("openmpi", version="5.0.7", cuda=True, toolchain={"CC": "gcc"})
    assert with_toolkit(DEBIANS[0], mpi).count("--with-cuda=/usr ") == 2


def test_ucx_is_for_any_processor(tmp_path: Path) -> None:
    """--enable-optimizations compiles for the processor of the building machine."""
    text = both(tmp_path, block("ucx", version="1.18.0"))
    assert "--enable-optimizations" not in text
    assert text.count("--disable-logging") == 2
    assert text.count("--disable-debug") == 2


def test_open_mpi_5_has_no_verbs(tmp_path: Path) -> None:
    assert "--without-verbs" in both(tmp_path, block("openmpi", version="5.0.7"))
    assert "--with-verbs" in both(tmp_path, block("openmpi", version="4.1.8"))


@pytest.mark.parametrize("arch", ARCHS)
def test_openblas_starts_more_threads_than_the_building_machine_has(
    arch: str, tmp_path: Path
) -> None:
    text = both(tmp_path, block("openblas", version="0.3.29"), arch=arch)
    threads = re.findall(r"make [^\n]*NUM_THREADS=(\d+)", text)
    assert len(threads) == 2
    assert all(int(number) >= 176 for number in threads)  # a node of Satori
    kept = block("openblas", version="0.3.29", make_opts=["NUM_THREADS=8"])
    assert "NUM_THREADS=8" in both(tmp_path, kept, arch=arch)


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
    pip = f"PIP_BREAK_SYSTEM_PACKAGES=1 PIP_CONFIG_FILE={PIP_CONFIG} pip3 --no-cache-dir install"
    assert f"{pip} numpy==2.2.4" in text
    assert f"{pip} --upgrade pip" in text
    assert "python-pip" not in text


def test_raw_is_in_both(tmp_path: Path) -> None:
    one = planned(tmp_path, (block("raw", docker="STOPSIGNAL 9", singularity="%apphelp x\n    y"),))
    assert "STOPSIGNAL 9" in dockerfile(one)
    assert "STOPSIGNAL" not in singularity(one)
    assert "%apphelp x" in singularity(one)


def test_a_clone_that_fails_ends_post() -> None:
    text = "%post\n    mkdir -p /x && cd /x && git clone  URL y && cd -\n    a && b\n"
    steps = "%post\n    mkdir -p /x\n    cd /x\n    git clone  URL y\n    cd -\n    a && b\n"
    assert step_by_step(text) == steps


# Whatever is compiled is told the same time and host.

TOLD = "export SOURCE_DATE_EPOCH=946684800 HOSTNAME=localhost"


@pytest.mark.parametrize("name", ["ucx", "boost", "openblas", "charm", "gdrcopy"])
def test_what_compiles_is_told_the_same_time_and_host(name: str, tmp_path: Path) -> None:
    text = both(tmp_path, block(name, **EVERY[name]))
    docker, _, definition = text.partition("BootStrap: ")
    runs = [one for one in docker.split("\nRUN ") if "/var/tmp && wget -q" in one]
    assert runs
    assert all(one.startswith(f"{TOLD} && \\\n") for one in runs)
    assert f"\n    {TOLD}\n" in definition


def test_what_compiles_nothing_is_not_told(tmp_path: Path) -> None:
    blocks = (
        block("packages", line=10, apt=["cmake", "make"]),
        block("python", line=20),
        block("shell", line=30, commands=["make -C /usr/src"]),
    )
    assert TOLD not in both(tmp_path, *blocks)
