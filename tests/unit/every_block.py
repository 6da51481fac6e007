"""Every block of hpccm with sensible arguments, and small specs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samples import base, block, image, recipe

from builder.compile.spec import limit_reason
from builder.compile.spec.driver import dockerfile, singularity
from builder.model import BlockUse, PlannedImage

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
