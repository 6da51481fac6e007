"""Facts about container runtimes: which versions run which images, as which user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.facts.tables import Where, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A program that starts images of one `format` (oci, sif, charliecloud).

    For an ordinary user, a `rootless` one needs user namespaces. `gpu` is how it is told to bring
    the driver's libraries in, and `oldest` the first version that reads the format. `clone3` is the
    first version whose filter of system calls lets threads of a new glibc start; versions from
    `patched` on may have a newer filter from their distribution. Both are empty without a filter.
    """

    name: str
    title: str
    format: str
    gpu: str
    rootless: bool = True
    oldest: str = ""
    clone3: str = ""
    patched: str = ""


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime for runtime in rows("runtimes", "runtimes", Runtime)
}

CLONE3_GLIBC = "2.34"

# CRI-O's option cdi_spec_dirs came with 1.24, https://github.com/cri-o/cri-o commit a0d3fd8aa0.
CDI_CRIO = "1.24"

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
