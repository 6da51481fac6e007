"""NVIDIA's HPC SDK as a cell's toolkit: where its archive puts things, and what an image keeps.

An image may hold what is in the SDK's folder REDIST, and no more of it
(https://docs.nvidia.com/hpc-sdk/eula). hpccm's block copies from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from builder import facts
from builder.model import PackagedCuda, PackagedExtra

ROUTE = "sdk"
_PREFIX = "/opt/nvidia/hpc_sdk"  # hpccm's default
_LOADER = "/etc/ld.so.conf.d/nvhpc.conf"
# Where hpccm's block nccl puts NCCL, too.
_NCCL = "/usr/local/nccl"
# NVIDIA's names of the targets, which folders of a toolkit are called by; `sbsa` are Arm servers.
_TARGETS = {"x86_64": "x86_64-linux", "ppc64le": "ppc64le-linux", "aarch64": "sbsa-linux"}


def home(sdk: str, arch: str) -> str:
    """The folder of a release of the SDK."""
    return f"{_PREFIX}/Linux_{arch}/{sdk}"


def toolkit(sdk: str, cuda: str, arch: str) -> PackagedCuda:
    """The toolkit `cuda` of a release of the SDK. NCCL is in every release, cuDNN in none."""
    folder = home(sdk, arch)
    places = [f"{folder}/{place}" for place in _libraries(cuda, arch)]
    return PackagedCuda(
        version=cuda,
        development=(),
        runtime=(),
        clean=(f"printf '%s\\n' {' '.join(places)} > {_LOADER}", "ldconfig"),
        environment={"CUDA_HOME": f"{folder}/cuda/{cuda}", "NVHPC_ROOT": folder},
        extras={facts.NCCL: PackagedExtra(version="", development=(), runtime=())},
    )


def block_arguments(arguments: Mapping[str, object], cuda: str, arch: str) -> dict[str, object]:
    """The arguments of hpccm's block nvhpc: the archive with `cuda` as its default.

    Its repository would be Ubuntu's on Debian, and has no choice of CUDA. The MPIs in it stay out:
    a cell has one of its own. The stubs of the driver's libraries are in a folder beside the
    libraries, so that each pattern names files.
    """
    libraries = [f"{place}/lib*.so*" for place in _libraries(cuda, arch)]
    return {**arguments, "cuda": cuda, "tarball": True, "mpi": False, "redist": libraries}


def development_environment(sdk: str, cuda: str, arch: str) -> dict[str, str]:
    """Return the variables to link with the SDK's libraries; hpccm's block sets the rest."""
    places = [f"{home(sdk, arch)}/{place}" for place in _libraries(cuda, arch)]
    return {"LIBRARY_PATH": ":".join([*places, "$LIBRARY_PATH"])}


def nccl_link(sdk: str, cuda: str, arch: str) -> str:
    """The command by which NCCL is found without knowing the SDK's folders."""
    return f"ln -s {home(sdk, arch)}/comm_libs/{cuda}/nccl {_NCCL}"


def _libraries(cuda: str, arch: str) -> tuple[str, ...]:
    """The folders of libraries, below the SDK's own folder as below REDIST."""
    target = _TARGETS[arch]
    return (
        f"cuda/{cuda}/targets/{target}/lib",
        f"math_libs/{cuda}/targets/{target}/lib",
        f"comm_libs/{cuda}/nccl/lib",
        "compilers/lib",
    )
