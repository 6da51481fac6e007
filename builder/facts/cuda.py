"""Facts about NVIDIA's software: CUDA releases, and cuDNN and NCCL for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from builder.facts.tables import Where, rows

CUDNN, NCCL = "cudnn", "nccl"
DEB, RPM, WHEEL = "deb", "rpm", "wheel"
PACKAGINGS = (DEB, RPM, WHEEL)
_EVERY_SYSTEM = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaRelease:
    """One CUDA toolkit, as `version` names it on the axis: `12.4`.

    `update` is its newest update (`12.4.1`), `image_tag` the version as the tags of NVIDIA's images
    write it. `driver` is the least Linux driver that runs it, by minor-version compatibility from
    CUDA 11 on; `shipped_driver` came with that update. `capabilities` are those that nvcc compiles
    for, as numbers, without the variants a and f. `gcc` is the newest major version that nvcc takes
    as host compiler. `repositories` maps an architecture to the distributions for which NVIDIA has
    packages of the release, by its own names (`rhel8`); `images` maps one to the ends of the tags
    of NVIDIA's images (`ubi8`), and `image_names` to their repository, where that is not
    `docker.io/nvidia/cuda`. `deleted` maps the ends of tags that left the public registry, or
    `all`, to the source of that; `leaving` is the source of that the others go next. `wheels` maps
    its parts on the Python package index to their versions. An empty field is not known: `notes`
    says so.
    """

    version: str
    update: str
    driver: str
    architectures: tuple[str, ...]
    sources: tuple[str, ...]
    where: Where
    shipped_driver: str = ""
    capabilities: tuple[str, ...] = ()
    gcc: str = ""
    repositories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    image_tag: str = ""
    notes: str = ""
    image_names: Mapping[str, str] = field(default_factory=dict)
    deleted: Mapping[str, str] = field(default_factory=dict)
    leaving: str = ""
    wheels: Mapping[str, str] = field(default_factory=dict)

    def deleted_by(self, system: str) -> str:
        """Return the source for the deletion of a system's public image; empty if it exists.

        Deletions after the tables were written are unknown here.
        """
        return self.deleted.get(_EVERY_SYSTEM) or self.deleted.get(system, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class SdkRelease:
    """One release of NVIDIA's HPC SDK; `cuda` maps an architecture to the CUDA toolkits in it."""

    version: str
    cuda: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    where: Where
    notes: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRelease:
    """One cuDNN or NCCL in NVIDIA's package repositories or on the index, built for one CUDA.

    `build` is that CUDA: a release (`11.8`), which it pairs with, or a major version (`12`), with
    all of whose releases it pairs. `deb`, `rpm` and `wheel` are the architectures that have such
    packages.
    """

    name: str
    version: str
    build: str
    sources: tuple[str, ...]
    where: Where
    notes: str = ""
    deb: tuple[str, ...] = ()
    rpm: tuple[str, ...] = ()
    wheel: tuple[str, ...] = ()

    @property
    def packagings(self) -> Mapping[str, tuple[str, ...]]:
        """The architectures by kind of package, `deb`, `rpm` or `wheel`."""
        return {DEB: self.deb, RPM: self.rpm, WHEEL: self.wheel}

    def pairs_with(self, cuda: str) -> bool:
        """Return whether the library works with a CUDA release."""
        return self.build in {cuda, cuda.partition(".")[0]}

    def packages(self, packaging: str) -> tuple[str, str]:
        """Return the packages for run time and development as apt or dnf take them, with versions.

        The names are those of NVIDIA's images, https://gitlab.com/nvidia/container-images/cuda.
        """
        names = self._names(packaging)
        pin = f"{self.version}-1{self._build_in_version(packaging)}"
        separator = "=" if packaging == DEB else "-"
        return f"{names[0]}{separator}{pin}", f"{names[1]}{separator}{pin}"

    def _names(self, packaging: str) -> tuple[str, str]:
        suffix = "dev" if packaging == DEB else "devel"
        if self.name == NCCL:
            return "libnccl2" if packaging == DEB else "libnccl", f"libnccl-{suffix}"
        name = f"lib{self.name}{self.version.partition('.')[0]}"
        build = f"-cuda-{self.build}" if self._names_its_build() else ""
        return f"{name}{build}", f"{name}-{suffix}{build}"

    def _build_in_version(self, packaging: str) -> str:
        if self._names_its_build():
            return ""
        separator = "." if self.name == CUDNN and packaging == RPM else "+"
        return f"{separator}cuda{self.build}"

    def _names_its_build(self) -> bool:
        """Return whether the name has the CUDA version: cuDNN 9 is `libcudnn9-cuda-12`."""
        return "." not in self.build


# The last driver branch for GPUs below a compute capability (7.5 is 75):
# https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html
LAST_BRANCHES: tuple[tuple[int, int], ...] = ((30, 390), (50, 470), (75, 580))

# Code for one of these runs on no other capability of its major version: Tegra's,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
TEGRA = frozenset([32, 53, 62, 72, 87])

# Capabilities with GPUs that MIG divides:
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-gpus.html
MIG = frozenset([80, 90, 100, 103, 120])


class GpuModels(NamedTuple):
    """Words in the models of GPUs of one compute capability: a row of data/gpus.yaml."""

    capability: int
    words: tuple[str, ...]


CAPABILITIES = {
    word: row.capability for row in rows("gpus", "models", GpuModels) for word in row.words
}
_WORD = re.compile(r"[A-Z0-9]+", re.IGNORECASE)
# With these, cuda-compat fails with error 804: it is for data centre GPUs,
# https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
_DESKTOP = ("GeForce", "TITAN")


def capability_of(model: str) -> int | None:
    """Return the compute capability (70 for 7.0) of a GPU by its model, `Tesla V100-SXM2-32GB`.

    None for one that is not in the table.
    """
    if is_desktop(model):
        return None
    capabilities = [CAPABILITIES[word] for word in _WORD.findall(model) if word in CAPABILITIES]
    return capabilities[0] if capabilities else None


def is_desktop(model: str) -> bool:
    """Return whether a model is known to be a desktop's."""
    return any(name.lower() in model.lower() for name in _DESKTOP)


def code_for(capability: int, codes: Iterable[int]) -> int | None:
    """Return the code that runs on a capability: the same major version, and no newer minor one.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    fitting = [
        code
        for code in codes
        if code == capability
        or (code // 10 == capability // 10 and code < capability and not {code, capability} & TEGRA)
    ]
    return max(fitting, default=None)


def last_branch(capability: int) -> int | None:
    """Return the last driver branch (580) for GPUs of a capability; None if there is none yet."""
    return next((branch for below, branch in LAST_BRANCHES if capability < below), None)


HOST, IMAGE, START, UNCLEAR = "host", "image", "start", "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaError:
    """A row of data/cuda-errors.yaml, which says what its fields mean."""

    code: int
    name: str
    meaning: str
    matter: str
    remedy: str
    driver_name: str = ""


def cuda_errors() -> Mapping[int, CudaError]:
    """Return the errors by code."""
    errors = rows("cuda-errors", "errors", CudaError)
    return {error.code: error for error in errors}
