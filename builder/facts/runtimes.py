"""What container runtimes fix: which versions run which images, as which user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.facts.places import Where


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


# SIF came with Singularity 3.0, https://github.com/apptainer/singularity/releases/tag/v3.0.0;
# --gpus with Docker 19.03, https://docs.docker.com/engine/release-notes/19.03/; CDI in Podman with
# 4.1, https://github.com/containers/podman/releases/tag/v4.1.0.
#
# glibc starts threads by clone3 from 2.34 on, and falls back if it hears ENOSYS. Filters that
# answered EPERM instead, which glibc takes for final:
# - Docker's before 20.10.10, https://github.com/moby/moby/pull/42681 and
#   https://pkg.go.dev/github.com/AkihiroSuda/clone3-workaround;
# - that of containers/common before 0.40.1 (commit 78ac839f, "seccomp: allow clone3"). Podman 3.3.0
#   and CRI-O 1.22.0 are the first with a newer one (go.mod of these tags). Distributions gave newer
#   filters to Podman from 3.0 on, https://github.com/containers/podman/issues/11031.
RUNTIMES: Mapping[str, Runtime] = {
    one.name: one
    for one in (
        Runtime(name="apptainer", title="Apptainer", format="sif", gpu="--nv", oldest="1.0"),
        Runtime(name="singularity", title="Singularity", format="sif", gpu="--nv", oldest="3.0"),
        Runtime(
            name="charliecloud",
            title="Charliecloud",
            format="charliecloud",
            gpu="ch-fromhost --nvidia",
        ),
        Runtime(
            name="podman",
            title="Podman",
            format="oci",
            gpu="--device nvidia.com/gpu=all",
            clone3="3.3",
            patched="3.0",
        ),
        Runtime(
            name="docker",
            title="Docker",
            format="oci",
            gpu="--gpus all",
            rootless=False,
            clone3="20.10.10",
            patched="20.10.10",
        ),
        Runtime(
            name="crio",
            title="CRI-O",
            format="oci",
            gpu="CDI",
            rootless=False,
            clone3="1.22",
            patched="1.22",
        ),
    )
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
