"""Facts about software: container runtimes, systems, compilers, libraries, package indexes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.facts.tables import Where, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A program that starts images of one `format` (oci, sif, charliecloud).

    For an ordinary user, a `rootless` one needs user namespaces. `gpu` is how it is told to bring
    the driver's libraries in, from version `gpu_oldest` on if that is not empty, and `oldest` the
    first version that reads the format. `clone3` is the
    first version whose filter of system calls lets threads of a new glibc start; versions from
    `patched` on may have a newer filter from their distribution. Both are empty without a filter.
    `run` is the command that starts a program in IMAGE, with `{gpu}`; empty if a cluster starts it.
    """

    name: str
    title: str
    format: str
    gpu: str
    gpu_oldest: str = ""
    rootless: bool = True
    oldest: str = ""
    clone3: str = ""
    patched: str = ""
    run: str = ""


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime for runtime in rows("runtimes", "runtimes", Runtime)
}
# Runtimes that pass neither the variables nor the sockets of a host's launcher to a container: each
# rank would be "rank 0 of 1".
APART = frozenset(name for name, runtime in RUNTIMES.items() if runtime.format == "oci")

CLONE3_GLIBC = "2.34"

# Charliecloud's --set-env, which needs a file: 0.9.7 (commit 3470380d). Without one it takes the
# image's own, /ch/environment: 0.26, https://github.com/hpc/charliecloud/pull/1254.
SET_ENV_FILE, SET_ENV = "0.9.7", "0.26"


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemRelease:
    """One release of a distribution, named as base images name it: debian 12.

    `kernel` maps an architecture to the least Linux that its glibc starts on, `cpu` one to the CPU
    target that its packages are compiled for, where not every processor of it will do. `python` is
    the Python 3 that its package python3 is of, `pip` the pip that comes with that; empty if they
    are not known.
    """

    distribution: str
    version: str
    glibc: str
    kernel: Mapping[str, str]
    sources: tuple[str, ...]
    where: Where
    cpu: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    python: str = ""
    pip: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SifScript:
    """A script that Apptainer writes into .singularity.d of a SIF; `digests` are its SHA-256."""

    path: str
    digests: tuple[str, ...]


VERSIONS = "1.0 to 1.5"  # of Apptainer
SIF_SCRIPTS: Mapping[str, frozenset[str]] = {
    f".singularity.d/{script.path}": frozenset(script.digests)
    for script in rows("runtimes", "sif_scripts", SifScript)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerFlag:
    """An option and the first release that accepts it under this name."""

    name: str
    since: str
    source: str


GCC_FLAGS = rows("software", "gcc", CompilerFlag)
NVCC_FLAGS = rows("software", "nvcc", CompilerFlag)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibrary:
    """A shared library that wheels may rely on, though not every image has it.

    `deb` and `rpm` are the packages that have it, and `with_it` those whose dependencies bring it.
    """

    soname: str
    deb: str
    rpm: str
    with_it: tuple[str, ...] = ()


# In every image: glibc, and the run-time libraries of gcc, https://peps.python.org/pep-0599/
IN_EVERY_IMAGE = re.compile(
    r"(ld-linux.*|ld64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|libcrypt"
    r"|libgcc_s|libstdc\+\+|libz|libanl)\.so(\.[\d.]+)?"
)
HOST_LIBRARIES: Mapping[str, HostLibrary] = {
    library.soname: library for library in rows("software", "host_libraries", HostLibrary)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishersIndex:
    """An index that has some versions of a package. `url` begins its address; `example` is one."""

    package: str
    versions: str
    url: str
    example: str
    source: str


PUBLISHERS_INDEXES = rows("software", "indexes", PublishersIndex)
