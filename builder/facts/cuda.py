"""What NVIDIA fixes: CUDA releases, and cuDNN and NCCL for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.facts.places import Where

CUDNN, NCCL = "cudnn", "nccl"
DEB, RPM = "deb", "rpm"
PACKAGINGS = (DEB, RPM)
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
    `all`, to the source of that; `leaving` is the source of that the others go next. An empty field
    is not known: `notes` says so.
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

    def deleted_by(self, system: str) -> str:
        """The source of that the image for a system left the public registry; empty if it did not.

        What was deleted since the tables were written is not known here.
        """
        return self.deleted.get(_EVERY_SYSTEM) or self.deleted.get(system, "")

    @property
    def major(self) -> str:
        """`12` of 12.4."""
        return self.version.partition(".")[0]


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
    """One cuDNN or NCCL in NVIDIA's package repositories, built for one CUDA.

    `build` is that CUDA: a release (`11.8`), which it pairs with, or a major version (`12`), with
    all of whose releases it pairs. `deb` and `rpm` are the architectures that have such packages.
    """

    name: str
    version: str
    build: str
    sources: tuple[str, ...]
    where: Where
    notes: str = ""
    deb: tuple[str, ...] = ()
    rpm: tuple[str, ...] = ()

    @property
    def packagings(self) -> Mapping[str, tuple[str, ...]]:
        """The architectures by kind of package, `deb` or `rpm`."""
        return {DEB: self.deb, RPM: self.rpm}

    def pairs_with(self, cuda: str) -> bool:
        """Return whether it works with a CUDA release."""
        return self.build in {cuda, cuda.partition(".")[0]}

    def packages(self, packaging: str) -> tuple[str, str]:
        """What to install for run time and for development, as apt or dnf take it: with versions.

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
        """libcudnn9-cuda-12: cuDNN 9 is built for a major version, and says so in its name."""
        return "." not in self.build
