"""NVIDIA's images, package repositories and packages, as they are named for one CUDA release."""

from __future__ import annotations

from collections.abc import Iterator

from builder import versions
from builder.facts import CudaRelease
from builder.model import BaseImage, PackagedCuda

# NVIDIA's images for ppc64le have a repository of their own; aarch64 shares the one of x86_64.
# https://hub.docker.com/r/nvidia/cuda, https://hub.docker.com/r/nvidia/cuda-ppc64le
_IMAGES = {"ppc64le": "docker.io/nvidia/cuda-ppc64le"}
_IMAGE = "docker.io/nvidia/cuda"

# https://developer.download.nvidia.com/compute/cuda/repos/ has a folder for each distribution
_REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
_DEBIAN_ARCHS = {"ppc64le": "ppc64el", "aarch64": "sbsa"}
_RPM_ARCHS = {"aarch64": "sbsa"}

# The signing keys since April 2022, which images and keyrings of before do not know:
# https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/
_DEBIAN_KEY = "3bf863cc.pub"
_RPM_KEY = "D42D0685.pub"

_DEBIAN_LIKE = ("debian", "ubuntu")
_RPM_DEVELOPMENT_SINCE = (11, 0)  # libraries-dev-10-2 and libraries-devel-11-0, in rpm packages


def image_names(release: CudaRelease, base: BaseImage, arch: str) -> tuple[str, str]:
    """NVIDIA's images for the development and the run-time stage."""
    name = _IMAGES.get(arch, _IMAGE)
    tag = f"{name}:{release.image_tag or release.version}"
    return f"{tag}-devel-{base.cuda.image}", f"{tag}-runtime-{base.cuda.image}"


def is_debian_like(base: BaseImage) -> bool:
    """Whether the base installs Debian packages, not RPMs."""
    return base.distribution in _DEBIAN_LIKE


def repository(base: BaseImage, arch: str) -> str:
    """The URL of NVIDIA's package repository for a base."""
    archs = _DEBIAN_ARCHS if is_debian_like(base) else _RPM_ARCHS
    return f"{_REPOSITORIES}/{base.cuda.repository}/{archs.get(arch, arch)}"


def repository_arguments(base: BaseImage, arch: str) -> dict[str, list[str]]:
    """The arguments of hpccm's `packages` that add NVIDIA's repository, its signing key first."""
    url = repository(base, arch)
    if is_debian_like(base):
        key = f"{url}/{_DEBIAN_KEY}"
        ring = "/usr/share/keyrings/3bf863cc.gpg"  # where hpccm's apt_get block puts the key
        return {"apt_keys": [key], "apt_repositories": [f"deb [signed-by={ring}] {url} /"]}
    name = f"cuda-{base.cuda.repository}.repo"
    return {"yum_keys": [f"{url}/{_RPM_KEY}"], "yum_repositories": [f"{url}/{name}"]}


def toolkit_packages(release: CudaRelease, base: BaseImage) -> PackagedCuda:
    """Compiler, headers and libraries for the development stage, libraries for run time.

    The names are NVIDIA's meta packages:
    https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#meta-packages
    """
    suffix = release.version.replace(".", "-")
    return PackagedCuda(
        version=release.version,
        development=tuple(
            f"{name}-{suffix}" for name in ("cuda-minimal-build", _libraries(release, base))
        ),
        runtime=(f"cuda-libraries-{suffix}",),
        environment=dict(toolkit_environment(release)),
    )


def toolkit_environment(release: CudaRelease) -> Iterator[tuple[str, str]]:
    """Where programs find a toolkit that was installed below /usr/local."""
    home = f"/usr/local/cuda-{release.version}"
    yield "CUDA_HOME", home
    yield "PATH", f"{home}/bin:$PATH"
    yield "LD_LIBRARY_PATH", f"{home}/lib64:$LD_LIBRARY_PATH"


def _libraries(release: CudaRelease, base: BaseImage) -> str:
    new = versions.version_order(release.version) >= _RPM_DEVELOPMENT_SINCE
    return "cuda-libraries-devel" if new and not is_debian_like(base) else "cuda-libraries-dev"
