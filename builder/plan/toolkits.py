"""Expand the blocks `cuda` and `mpi` of a recipe to the hpccm blocks of the chosen route."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from builder.model import (
    CUDA_LIBRARIES,
    DEVELOPMENT,
    TOOLKITS,
    BaseImage,
    BlockUse,
    PackagedExtra,
    PlannedCuda,
    PlannedMpi,
)
from builder.model.exact_json import part
from builder.model.inputs import WHEEL_SOURCE
from builder.model.versions import version_order
from builder.plan import nvidia

CUDA, MPI = TOOLKITS

# Releases before 11.0 need their own driver or newer, later ones any driver of their major version:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_COMPATIBLE_SINCE = (11, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expansion:
    """A toolkit's blocks in both stages, and its variables in the image's environment.

    `wheels` are the URLs of the wheels that its blocks unpack, by name.
    """

    development: tuple[BlockUse, ...] = ()
    runtime: tuple[BlockUse, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    wheels: Mapping[str, str] = field(default_factory=dict)


# Returns the path in the image of the file of a source, by its alternative URLs.
FileOf = Callable[[Sequence[str]], str]


def expand_mpi(use: BlockUse, mpi: PlannedMpi) -> Expansion:
    """Return the MPI's packages, or hpccm's block that builds it, or packages of the same ABI."""
    if mpi.route == "source":
        arguments = {"version": mpi.version, **(part(use.arguments, "source") or {})}
        return Expansion(development=(_block(use, mpi.family, arguments),))
    return Expansion(
        development=(*_packages(use, mpi.development), *_variables(use, mpi.environment)),
        runtime=_packages(use, mpi.runtime),
        environment=mpi.environment,
    )


def expand_cuda(
    use: BlockUse, cuda: PlannedCuda, base: BaseImage, arch: str, file_of: FileOf
) -> Expansion:
    """Return the toolkit's packages, and the commands before and after them."""
    if use.arguments.get("toolkit") is False:
        return Expansion(environment=_host_environment(cuda))
    if cuda.sdk:
        return _expand_sdk(use, cuda, base, arch)
    if cuda.route == "wheels":
        return _expand_wheels(use, cuda, base, arch, file_of)
    extras, packaged = _extras(use, cuda), cuda.packages
    more: Mapping[str, object] = {}
    if cuda.route != "distribution":
        more = nvidia.install_arguments(cuda.version, base, arch, libraries=bool(extras))
    development = [*_compilers(cuda, base), *packaged.development]
    development += [name for extra in extras for name in extra.development]
    runtime = [*packaged.runtime, *(name for extra in extras for name in extra.runtime)]
    before, after = _commands(use, packaged.prepare), _commands(use, packaged.clean)
    variables = _variables(use, _development_environment(cuda, base))
    return Expansion(
        development=(*before, *_packages(use, development, more), *after, *variables),
        runtime=(*before, *_packages(use, runtime, more), *after),
        environment={**packaged.environment, **_host_environment(cuda)},
    )


def _expand_sdk(use: BlockUse, cuda: PlannedCuda, base: BaseImage, arch: str) -> Expansion:
    """Return hpccm's block of the HPC SDK; each stage then configures its loader."""
    if "sdk" not in use.arguments:
        return Expansion()  # an earlier block has brought it
    release = cuda.sdk, cuda.version, arch
    linked = [nvidia.nccl_link(*release)] if _extras(use, cuda) else []
    settled = _commands(use, [*cuda.packages.clean, *linked])
    arguments = nvidia.block_arguments(part(use.arguments, "sdk"), cuda.version, arch)
    linking = nvidia.development_environment(*release)
    variables = {**_development_environment(cuda, base), **linking}
    return Expansion(
        development=(
            *_packages(use, _compilers(cuda, base)),
            _block(use, "nvhpc", arguments),
            *settled,
            *_variables(use, variables),
        ),
        runtime=settled,
        environment={**cuda.packages.environment, **_host_environment(cuda)},
    )


def _expand_wheels(
    use: BlockUse, cuda: PlannedCuda, base: BaseImage, arch: str, file_of: FileOf
) -> Expansion:
    """Return the commands that unpack the wheels, and the copy of the libraries for run time."""
    home = cuda.packages.environment["CUDA_HOME"]
    versions, loaded = _wheels(use, cuda)
    urls = {name: f"{WHEEL_SOURCE}{name}/{version}/{arch}" for name, version in versions.items()}
    files = {name: file_of((url,)) for name, url in urls.items()}
    copied = {"from": DEVELOPMENT, "src": f"{home}/redist", "dest": f"{home}/redist"}
    compilers = _compilers(cuda, base) or ("g++" if nvidia.is_debian_like(base) else "gcc-c++",)
    return Expansion(
        development=(
            *_packages(use, [*compilers, "unzip"]),
            *_commands(use, nvidia.unpacked(home, files, loaded)),
            *_variables(use, _development_environment(cuda, base)),
        ),
        runtime=(_block(use, "copy", copied), *_commands(use, nvidia.settled(home))),
        environment={**cuda.packages.environment, **_host_environment(cuda)},
        wheels=urls,
    )


def _wheels(use: BlockUse, cuda: PlannedCuda) -> tuple[Mapping[str, str], set[str]]:
    """Return the versions of a recipe's wheels, and the wheels with libraries for run time."""
    named = nvidia.libraries(use.arguments.get("libraries") or CUDA_LIBRARIES)
    others = nvidia.libraries(CUDA_LIBRARIES) - named
    extras = [pin for extra in _extras(use, cuda) for pin in extra.runtime]
    versions = dict(pin.split("==") for pin in (*cuda.packages.development, *extras))
    loaded = named.union(pin.partition("==")[0] for pin in extras)
    return {name: version for name, version in versions.items() if name not in others}, loaded


def missing_extras(use: BlockUse, cuda: PlannedCuda) -> list[str]:
    """Return the extras that the recipe needs and the chosen route does not have."""
    requested = [name for name in ("cudnn", "nccl") if use.arguments.get(name) is True]
    return [name for name in requested if name not in cuda.packages.extras]


def _extras(use: BlockUse, cuda: PlannedCuda) -> list[PackagedExtra]:
    """Return the extras of the route that the recipe uses."""
    return [extra for name, extra in cuda.packages.extras.items() if use.arguments.get(name)]


def _compilers(cuda: PlannedCuda, base: BaseImage) -> tuple[str, ...]:
    if not cuda.gcc:
        return ()
    if nvidia.is_debian_like(base):
        return f"gcc-{cuda.gcc}", f"g++-{cuda.gcc}"
    return (f"gcc-toolset-{cuda.gcc}-gcc-c++",)


def _development_environment(cuda: PlannedCuda, base: BaseImage) -> Mapping[str, str]:
    """Return variables to compile with nvcc in later steps; Red Hat has other gccs in /opt."""
    if not cuda.gcc:
        return cuda.packages.environment
    toolset = f"/opt/rh/gcc-toolset-{cuda.gcc}/root/usr/bin/g++"
    compiler = f"g++-{cuda.gcc}" if nvidia.is_debian_like(base) else toolset
    return {**cuda.packages.environment, "NVCC_PREPEND_FLAGS": f'"-ccbin {compiler}"'}


def _host_environment(cuda: PlannedCuda) -> dict[str, str]:
    """Return variables for container runtimes: devices, driver libraries, minimum driver.

    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
    libnvidia-container compares versions number by number; the toolkit's own parser, for CDI,
    refuses a container whose version has a leading zero (450.80.02), as semantic versions do:
    https://github.com/NVIDIA/nvidia-container-toolkit/tree/main/internal/requirements
    """
    compatible = version_order(cuda.version) >= _COMPATIBLE_SINCE
    driver = ".".join(str(int(part)) for part in cuda.driver.split(".")) if cuda.driver else ""
    least = f"driver>={driver}" if compatible and driver else f"cuda>={cuda.version}"
    return {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": least,
    }


def _packages(
    use: BlockUse, names: Sequence[str], more: Mapping[str, object] | None = None
) -> tuple[BlockUse, ...]:
    arguments = {"ospackages": list(names), **(more or {})}
    return (_block(use, "packages", arguments),) if names else ()


def _variables(use: BlockUse, variables: Mapping[str, str]) -> tuple[BlockUse, ...]:
    arguments = {"variables": dict(variables)}
    return (_block(use, "environment", arguments),) if variables else ()


def _commands(use: BlockUse, commands: Sequence[str]) -> tuple[BlockUse, ...]:
    return (_block(use, "shell", {"commands": list(commands)}),) if commands else ()


def _block(use: BlockUse, name: str, arguments: Mapping[str, object]) -> BlockUse:
    return BlockUse(name=name, arguments=arguments, where=use.where, lines=use.lines)
