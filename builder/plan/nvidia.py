"""NVIDIA's images, package repositories and packages, as they are named for one CUDA release.

Where nothing else is named, the source is how NVIDIA builds its own images of that release:
https://gitlab.com/nvidia/container-images/cuda, folder dist/.
"""

from __future__ import annotations

from collections.abc import Mapping

from builder import facts
from builder.facts import CudaRelease, Facts
from builder.model import BaseImage, PackagedCuda, PackagedExtra, Site
from builder.model.inputs import mirrored_part
from builder.model.versions import version_order

_IMAGE = "docker.io/nvidia/cuda"
_PUBLIC = "docker.io"

# https://developer.download.nvidia.com/compute/cuda/repos/ has a folder for each distribution,
# and in it one for each architecture. `sbsa` are Arm servers.
_DOWNLOADS = "https://developer.download.nvidia.com/compute"
_DEBIAN_ARCHS = {"ppc64le": "ppc64el", "aarch64": "sbsa"}
_RPM_ARCHS = {"aarch64": "sbsa"}

# The keys that sign the repositories since April 2022, which older images and keyrings do not know:
# https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/. Debian 13 takes no
# SHA-1 in signatures, and has a key of its own: https://github.com/NVIDIA/cuda-repo-management
_DEBIAN_KEY = "3bf863cc"
_DEBIAN_KEYS = {"debian13": "8793F200"}
_RPM_KEY = "D42D0685"

# cuDNN and NCCL were in a repository of their own until 2021. It gets nothing new, its releases
# stayed there, and it is signed with the key of its time.
_LIBRARIES = (facts.CUDNN, facts.NCCL)
_OLD_LIBRARIES = "machine-learning"
_OLD_KEY = "7fa2af80"
_JOINED = (10, 2)  # packages built for this release and later ones moved
_JOINED_LATER = ("11.0", "11.1")  # but not those for ppc64le and aarch64
# For these there is an archive, which NVIDIA's images unpack, and no package.
_NO_PACKAGE = {("rhel7", "10.1", facts.NCCL), *(("rhel8", "10.1", name) for name in _LIBRARIES)}

_DEBIAN_LIKE = ("debian", "ubuntu")
_RPM_DEVEL_SINCE = (11, 0)  # cuda-libraries-dev-10-2 and cuda-libraries-devel-11-0, as RPMs
# Since 11.0 the packages link /usr/local/cuda and tell the loader; before, NVIDIA's images did.
_SETS_ITSELF_UP_SINCE = (11, 0)
# In these, cuBLAS has a name without the release, and a newer one would be installed with it:
# https://gitlab.com/nvidia/container-images/cuda/-/issues/88
_CUBLAS = {"10.1": "10.2.1.243-1", "10.2": "10.2.2.89-1"}
_KEEPS_OBSOLETE = "10.1"


def image_names(release: CudaRelease, base: BaseImage, arch: str) -> tuple[str, str]:
    """NVIDIA's images for the development and the run-time stage."""
    name = release.image_names.get(arch, _IMAGE)
    tag = f"{name}:{release.image_tag or release.version}"
    return f"{tag}-devel-{base.cuda.image}", f"{tag}-runtime-{base.cuda.image}"


def mirror_of_namespace(image: str, site: Site) -> str:
    """The site's mirror that was set up for an image's own namespace; empty if there is none.

    A mirror of the whole registry passes on what is there, and says nothing of what was deleted.
    """
    part = mirrored_part(image, site.registries)
    return site.registries[part] if part not in {"", _PUBLIC} else ""


def first_steps(release: CudaRelease, base: BaseImage) -> tuple[str, ...]:
    """Commands before any other in NVIDIA's images: their package lists name the old key.

    The first update would fail on it. Where packages of NVIDIA's are needed, the repository comes
    back with the key of today. The images also hold cuda-compat, a driver's library, which hides
    the host's.
    """
    compat = f"cuda-compat-{release.version.replace('.', '-')}"
    if is_debian_like(base):
        lists = "/etc/apt/sources.list.d"
        return f"rm -f {lists}/cuda*.list {lists}/nvidia-ml*.list", f"dpkg --purge {compat}"
    folder = "/etc/yum.repos.d"
    return (
        f"rm -f {folder}/cuda*.repo {folder}/nvidia-ml*.repo",
        f"if rpm -q {compat}; then rpm -e {compat}; fi",
    )


def is_debian_like(base: BaseImage) -> bool:
    """True if the base installs Debian packages, False if RPMs."""
    return base.distribution in _DEBIAN_LIKE


def repository(base: BaseImage, arch: str, kind: str = "cuda") -> str:
    """The URL of NVIDIA's package repository for a base."""
    archs = _DEBIAN_ARCHS if is_debian_like(base) else _RPM_ARCHS
    return f"{_DOWNLOADS}/{kind}/repos/{base.cuda.repository}/{archs.get(arch, arch)}"


def install_arguments(
    version: str, base: BaseImage, arch: str, *, libraries: bool
) -> Mapping[str, object]:
    """The arguments of hpccm's `packages` that add NVIDIA's repository, its signing key first.

    `libraries` says whether cuDNN or NCCL are among the packages.
    """
    debian, name = is_debian_like(base), base.cuda.repository
    key = _DEBIAN_KEYS.get(name, _DEBIAN_KEY) if debian else _RPM_KEY
    sources = [(repository(base, arch), key)]
    if libraries and _in_old_repository(version, arch):
        sources.append((repository(base, arch, _OLD_LIBRARIES), _OLD_KEY))
    keys = [f"{url}/{key}.pub" for url, key in sources]
    if debian:  # hpccm's apt_get block puts a key into this folder, under its own name
        ring = "/usr/share/keyrings"
        lines = [f"deb [signed-by={ring}/{key}.gpg] {url} /" for url, key in sources]
        return {"apt_keys": keys, "apt_repositories": lines}
    url, *old = (url for url, _ in sources)
    options = {"extra_opts": ["--setopt=obsoletes=0"]} if version == _KEEPS_OBSOLETE else {}
    return {"yum_keys": keys, "yum_repositories": [f"{url}/cuda-{name}.repo", *old], **options}


def _in_old_repository(version: str, arch: str) -> bool:
    late = version in _JOINED_LATER and arch != "x86_64"
    return late or version_order(version) < _JOINED


def toolkit_packages(release: CudaRelease, base: BaseImage) -> PackagedCuda:
    """Compiler, headers and libraries for the development stage, libraries for run time.

    The names are NVIDIA's meta packages:
    https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#meta-packages
    """
    home = f"/usr/local/cuda-{release.version}"
    suffix = release.version.replace(".", "-")
    old_names = is_debian_like(base) or version_order(release.version) < _RPM_DEVEL_SINCE
    devel = "dev" if old_names else "devel"
    names = ("cuda-minimal-build", f"cuda-libraries-{devel}", f"cuda-nvml-{devel}", "cuda-nvtx")
    cublas = _cublas(release, base)
    return PackagedCuda(
        version=release.version,
        development=(*(f"{name}-{suffix}" for name in names), *cublas),
        runtime=(f"cuda-libraries-{suffix}", f"cuda-nvtx-{suffix}", *cublas[:1]),
        clean=_set_up(release),
        environment={"CUDA_HOME": home, "PATH": f"{home}/bin:$PATH"},  # the loader needs none
    )


def _cublas(release: CudaRelease, base: BaseImage) -> tuple[str, ...]:
    """The release's own cuBLAS, for run time and for development, where another could come."""
    if release.version not in _CUBLAS:
        return ()
    pin = _CUBLAS[release.version]
    if is_debian_like(base):
        return f"libcublas10={pin}", f"libcublas-dev={pin}"
    return f"libcublas10-{pin}", f"libcublas-devel-{pin}"


def _set_up(release: CudaRelease) -> tuple[str, ...]:
    if version_order(release.version) >= _SETS_ITSELF_UP_SINCE:
        return ()
    home = f"cuda-{release.version}"
    return (
        f"ln -sfn {home} /usr/local/cuda",
        f"echo /usr/local/{home}/lib64 > /etc/ld.so.conf.d/{home.replace('.', '-')}.conf",
        "ldconfig",
    )


def extras(
    known: Facts, release: CudaRelease, base: BaseImage, arch: str, *, by_image: bool
) -> Mapping[str, PackagedExtra]:
    """cuDNN and NCCL for a release, as packages of NVIDIA's repositories.

    NVIDIA's images have NCCL in them.
    """
    packages: dict[str, PackagedExtra] = {}
    packaging = facts.DEB if is_debian_like(base) else facts.RPM
    for name in _LIBRARIES:
        library = known.library(name, cuda=release.version, packaging=packaging, arch=arch)
        if library and by_image and name == facts.NCCL:
            packages[name] = PackagedExtra(version=library.version, development=(), runtime=())
        elif library and (base.cuda.repository, library.build, name) not in _NO_PACKAGE:
            runtime, development = library.packages(packaging)
            packages[name] = PackagedExtra(
                version=library.version, development=(runtime, development), runtime=(runtime,)
            )
    return packages


SDK_ROUTE = "sdk"
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
