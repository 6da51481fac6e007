"""Which Python modules an image has, and which packages bring modules of another name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from packaging.utils import canonicalize_name

# Modules that Python had until 3.11 or 3.12: the images' Pythons are older than this machine's.
_FORMER = frozenset(
    {"asynchat", "asyncore", "cgi", "crypt", "distutils", "imp", "nntplib", "pipes", "smtpd"}
    | {"telnetlib", "uu", "xdrlib"}
)
STANDARD = frozenset(sys.stdlib_module_names) | _FORMER

# Import names of packages that are called otherwise, by the package's canonical name.
_OF_PACKAGE: dict[str, tuple[str, ...]] = {
    "chainer": ("chainer", "chainermn"),
    "cupy": ("cupy", "cupyx"),
    "cython": ("Cython", "cython"),
    "matplotlib": ("matplotlib", "mpl_toolkits", "pylab"),
    "mlperf-compliance": ("mlperf_compliance",),
    "nvidia-dali": ("nvidia",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "pillow": ("PIL",),
    "pyyaml": ("yaml",),
    "setuptools": ("pkg_resources", "setuptools"),
    "tensorflow-cpu": ("tensorflow",),
}
# Modules that installing a repository's sources brings, by the repository's name.
_OF_REPOSITORY: dict[str, tuple[str, ...]] = {
    "apex": ("amp_C", "apex", "apex_C", "fused_adam_cuda", "fused_layer_norm_cuda", "syncbn"),
    "cocoapi": ("ext", "pycocotools"),
    "horovod": ("horovod",),
    "pytorch": ("caffe2", "torch"),
    "vision": ("torchvision",),
}
# Modules that installing an archive from elsewhere brings, by a part of its URL.
_OF_ARCHIVE = {"#subdirectory=compliance": ("mlperf_compliance",)}


def of_packages(names: Iterable[str]) -> Iterator[str]:
    """The modules of packages of an index."""
    for name in map(canonicalize_name, names):
        if name.startswith("cupy-cuda"):
            yield from _OF_PACKAGE["cupy"]
        yield from _OF_PACKAGE.get(name, (name.replace("-", "_"),))


def of_repository(url: str) -> tuple[str, ...]:
    """The modules that a repository's sources install as."""
    return _OF_REPOSITORY.get(url.rstrip("/").rpartition("/")[2].removesuffix(".git"), ())


def of_archive(url: str) -> tuple[str, ...]:
    """The modules that an archive at a URL installs as."""
    return next((names for part, names in _OF_ARCHIVE.items() if part in url), ())


def of_distribution(packages: Iterable[str]) -> Iterator[str]:
    """The modules of the distribution's packages: python3-scipy has scipy."""
    for package in packages:
        name = package.partition("=")[0]
        if name.startswith("python3-"):
            module = name.removeprefix("python3-")
            yield from _OF_PACKAGE.get({"pil": "pillow"}.get(module, module), (module,))
