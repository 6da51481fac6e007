"""The names of NVIDIA's images, package repositories, packages and wheels for one CUDA release.

Unless another source is given, the source is the build of NVIDIA's own images of that release:
https://gitlab.com/nvidia/container-images/cuda, folder dist/.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping

from builder import facts
from builder.facts import CudaRelease, Facts
from builder.model import CUDA_LIBRARIES, BaseImage, PackagedCuda, PackagedExtra, Site
from builder.model.site import mirrored_part
from builder.model.versions import version_order

_IMAGE = "docker.io/nvidia/cuda"
_PUBLIC = "docker.io"

# https://developer.download.nvidia.com/compute/cuda/repos/ has a folder for each distribution,
# and in it a folder for each architecture. `sbsa` is for Arm servers.
_DOWNLOADS = "https://developer.download.nvidia.com/compute"
_DEBIAN_ARCHS = {"ppc64le": "ppc64el", "aarch64": "sbsa"}
_RPM_ARCHS = {"aarch64": "sbsa"}

# The keys that sign the repositories since April 2022; older images and keyrings lack them:
# https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/. Debian 13 rejects
# SHA-1 in signatures, and has its own key: https://github.com/NVIDIA/cuda-repo-management
_DEBIAN_KEY = "3bf863cc"
_DEBIAN_KEYS = {"debian13": "8793F200"}
_RPM_KEY = "D42D0685"

# cuDNN and NCCL were in a separate repository until 2021. It gets no new releases, keeps the old
# ones, and is still signed with the old key.
_LIBRARIES = (facts.CUDNN, facts.NCCL)
_OLD_LIBRARIES = "machine-learning"
_OLD_KEY = "7fa2af80"
_JOINED = (10, 2)  # packages built for this release and later ones moved
_JOINED_LATER = ("11.0", "11.1")  # but not those for ppc64le and aarch64
# These have no package, only an archive, which NVIDIA's images unpack.
_NO_PACKAGE = {("rhel7", "10.1", facts.NCCL), *(("rhel8", "10.1", name) for name in _LIBRARIES)}

_DEBIAN_LIKE = ("debian", "ubuntu")
_RPM_DEVEL_SINCE = (11, 0)  # cuda-libraries-dev-10-2 and cuda-libraries-devel-11-0, as RPMs
# Since 11.0 the packages link /usr/local/cuda and configure the loader; before, the images did.
_SETS_ITSELF_UP_SINCE = (11, 0)
# In these, cuBLAS's name lacks the release, so that a newer cuBLAS would be installed:
# https://gitlab.com/nvidia/container-images/cuda/-/issues/88
_CUBLAS = {"10.1": "10.2.1.243-1", "10.2": "10.2.2.89-1"}
_KEEPS_OBSOLETE = "10.1"


def image_names(release: CudaRelease, base: BaseImage, arch: str) -> tuple[str, str]:
    """Return NVIDIA's images for the development and the run-time stage."""
    name = release.image_names.get(arch, _IMAGE)
    tag = f"{name}:{release.image_tag or release.version}"
    return f"{tag}-devel-{base.cuda.image}", f"{tag}-runtime-{base.cuda.image}"


def mirror_of_namespace(image: str, site: Site) -> str:
    """Return the site's mirror for an image's namespace; empty if there is none.

    A mirror of the whole registry only passes on existing images, not deleted ones.
    """
    part = mirrored_part(image, site.registries)
    return site.registries[part] if part not in {"", _PUBLIC} else ""


def first_steps(release: CudaRelease, base: BaseImage) -> tuple[str, ...]:
    """Return the first commands in NVIDIA's images, whose package lists use the old key.

    With the old key the first update would fail. If NVIDIA's packages are needed, the repository
    is added again with today's key. The images also contain cuda-compat, a driver library, which
    hides the host's.
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
    """Return whether the base installs Debian packages; otherwise it installs RPMs."""
    return base.distribution in _DEBIAN_LIKE


def repository(base: BaseImage, arch: str, kind: str = "cuda") -> str:
    """Return the URL of NVIDIA's package repository for a base."""
    archs = _DEBIAN_ARCHS if is_debian_like(base) else _RPM_ARCHS
    return f"{_DOWNLOADS}/{kind}/repos/{base.cuda.repository}/{archs.get(arch, arch)}"


def install_arguments(
    version: str, base: BaseImage, arch: str, *, libraries: bool
) -> Mapping[str, object]:
    """Return the arguments of hpccm's `packages` that add NVIDIA's repository and signing key.

    `libraries` is true if cuDNN or NCCL are among the packages.
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
    """Return the packages of the toolkit: compiler, headers and libraries; libraries for run time.

    They are NVIDIA's meta packages:
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
    """Return the release's own cuBLAS, for run time and development, if it must be pinned."""
    if release.version not in _CUBLAS:
        return ()
    pin = _CUBLAS[release.version]
    if is_debian_like(base):
        return f"libcublas10={pin}", f"libcublas-dev={pin}"
    return f"libcublas10-{pin}", f"libcublas-devel-{pin}"


def _set_up(release: CudaRelease) -> tuple[str, ...]:
    if version_order(release.version) >= _SETS_ITSELF_UP_SINCE:
        return ()
    name = f"cuda-{release.version}"
    return _named(name, f"/usr/local/{name}/lib64")


def _named(name: str, libraries: str) -> tuple[str, ...]:
    """Return commands that link /usr/local/cuda to a toolkit there, and configure the loader."""
    return (
        f"ln -sfn {name} /usr/local/cuda",
        f"echo {libraries} > /etc/ld.so.conf.d/{name.replace('.', '-')}.conf",
        "ldconfig",
    )


def extras(
    known: Facts, release: CudaRelease, base: BaseImage, arch: str, *, by_image: bool
) -> Mapping[str, PackagedExtra]:
    """Return cuDNN and NCCL for a release, as packages from NVIDIA's repositories.

    NVIDIA's images already contain NCCL.
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


# The wheels of libraries whose names are not theirs
_WHEELS = {"cudart": "nvidia-cuda-runtime", "nvrtc": "nvidia-cuda-nvrtc"}
_NEEDED = ("cudart",)  # nvcc links every program to it


def wheels(known: Facts, release: CudaRelease, arch: str) -> PackagedCuda:
    """Return all wheels of a release as packages of the development stage, `NAME==VERSION`."""
    home = f"/usr/local/cuda-{release.version}"
    nccl = known.library(facts.NCCL, cuda=release.version, packaging=facts.WHEEL, arch=arch)
    extras = {}
    if nccl:
        pins = (f"nvidia-nccl-cu{nccl.build}=={nccl.version}",)
        extras[facts.NCCL] = PackagedExtra(version=nccl.version, development=pins, runtime=pins)
    return PackagedCuda(
        version=release.version,
        development=tuple(f"{name}=={version}" for name, version in release.wheels.items()),
        runtime=(),
        environment={"CUDA_HOME": home, "PATH": f"{home}/bin:$PATH"},
        extras=extras,
    )


def libraries(names: Iterable[str]) -> set[str]:
    """Return the wheels of the libraries that a recipe names, and of those that these load."""
    named = {*_NEEDED, *names}
    needed = named.union(*(CUDA_LIBRARIES[name] for name in named))
    return {_WHEELS.get(name, f"nvidia-{name}") for name in needed}


# A stub of the driver's library, to link with: each function returns CUDA_ERROR_STUB_LIBRARY.
_STUB = (
    "gcc -E ../include/cuda.h -o cuda.i",
    (
        r"grep -oE '\bcu[A-Z][A-Za-z0-9_]* ?\(' cuda.i | tr -d ' (' | sort -u |"
        r" sed 's/.*/int &(void) { return 34; }/' |"
        r" gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o stubs/libcuda.so -x c -"
    ),
    "nm -D stubs/libcuda.so | grep -q ' T cuInit$'",
    "rm cuda.i",
)


def unpacked(home: str, files: Mapping[str, str], loaded: Collection[str]) -> tuple[str, ...]:
    """Return commands that unpack wheels, whose files are given by name, to a toolkit's folder.

    `loaded` are the wheels with libraries that programs load. Those go to `redist`, which the
    run-time stage gets, with the wheels' metadata and licences.
    """
    work, redist = "/usr/local/src/cuda", f"{home}/redist"
    parts = {name: "redist" if name in loaded else "development" for name in files}
    return (
        f"mkdir -p {work} {redist} {home}/lib/stubs",
        *(f"unzip -q -o {file} -d {work}/{parts[name]}" for name, file in files.items()),
        f"mv {work}/redist/*.dist-info {work}/redist/nvidia/*/lib/*.so.* {redist}/",
        f"mv {work}/development/*.dist-info {home}/",
        f"for part in {work}/*/nvidia/*; do cp -a $part/. {home}/ || exit 1; done",
        f"rm -r {work} {' '.join(files.values())}",
        f"rmdir -p --ignore-fail-on-non-empty {posixpath.dirname(next(iter(files.values())))}",
        f"chmod -R u=rwX,go=rX {home}",  # the owner alone may start the programs in some wheels
        f"cd {home}/lib",
        "ln -sf ../redist/*.so.* .",
        "for one in *.so.*; do ln -sf $one ${one%%.so.*}.so || exit 1; done",
        *_STUB,
        *settled(home),
    )


def settled(home: str) -> tuple[str, ...]:
    """Return commands that give a toolkit of wheels its usual names, and the loader its folder."""
    name = posixpath.basename(home)
    return (
        f"if [ ! -e {home}/lib ]; then ln -s redist {home}/lib; fi",
        f"ln -sfn lib {home}/lib64",
        *_named(name, f"{home}/redist"),
    )


SDK_ROUTE = "sdk"
RECIPE_ROUTE = "recipe"  # the packages of the recipe bring the libraries, and nothing is compiled
_PREFIX = "/opt/nvidia/hpc_sdk"  # hpccm's default
_LOADER = "/etc/ld.so.conf.d/nvhpc.conf"
# hpccm's block nccl uses the same folder.
_NCCL = "/usr/local/nccl"
# NVIDIA's target names, used as folder names in a toolkit; `sbsa` is for Arm servers.
_TARGETS = {"x86_64": "x86_64-linux", "ppc64le": "ppc64le-linux", "aarch64": "sbsa-linux"}


def home(sdk: str, arch: str) -> str:
    """Return the folder of an SDK release."""
    return f"{_PREFIX}/Linux_{arch}/{sdk}"


def toolkit(sdk: str, cuda: str, arch: str) -> PackagedCuda:
    """Return the toolkit `cuda` of an SDK release. Every release has NCCL, none has cuDNN."""
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
    """Return the arguments of hpccm's block nvhpc: the archive with `cuda` as its default.

    The package repository is not used: it is Ubuntu's on Debian, and offers no choice of CUDA. The
    SDK's MPIs are left out, since a cell has its own. The stubs of the driver libraries are in
    their own folder, so that each pattern matches only files.
    """
    libraries = [f"{place}/lib*.so*" for place in _libraries(cuda, arch)]
    return {**arguments, "cuda": cuda, "tarball": True, "mpi": False, "redist": libraries}


def development_environment(sdk: str, cuda: str, arch: str) -> dict[str, str]:
    """Return the variables to link with the SDK's libraries; hpccm's block sets the rest."""
    places = [f"{home(sdk, arch)}/{place}" for place in _libraries(cuda, arch)]
    return {"LIBRARY_PATH": ":".join([*places, "$LIBRARY_PATH"])}


def nccl_link(sdk: str, cuda: str, arch: str) -> str:
    """Return the command that links the SDK's NCCL to a folder independent of the SDK."""
    return f"ln -s {home(sdk, arch)}/comm_libs/{cuda}/nccl {_NCCL}"


def _libraries(cuda: str, arch: str) -> tuple[str, ...]:
    """Return the library folders, relative to the SDK's folder or to REDIST."""
    target = _TARGETS[arch]
    return (
        f"cuda/{cuda}/targets/{target}/lib",
        f"math_libs/{cuda}/targets/{target}/lib",
        f"comm_libs/{cuda}/nccl/lib",
        "compilers/lib",
    )
