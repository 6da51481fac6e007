"""Facts about container runtimes: which versions run which images, as which user."""

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
    runtime.name: runtime
    for runtime in (
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


VERSIONS = "1.0 to 1.5"
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SIF_SCRIPTS: Mapping[str, frozenset[str]] = {
    f".singularity.d/{path}": frozenset(digests)
    for path, digests in {
        "env/01-base.sh": (
            "0ff7f75c7fff71e5c7378543a410148c679823d3f639c84dfd0ee0fb97138650",
            "f3109c12c5b99874a52f0f04219514e1fe4e4073fcd0dfa8772553c6a50078dd",
        ),
        "env/94-appsbase.sh": (_EMPTY,),  # an image of ours has no apps
        "env/95-apps.sh": (
            "ea5d3b8db4c872ef5e642d4c8ca87ecf9d093eaacf1f761d47ca6e5b950f3bad",
            "8281ca191225faaeb3a0fc251f37e9603df056a4ba51cb875039ce8e241958cb",
        ),
        "env/99-base.sh": (
            "95b5b10ee0bdbcb0053ff231855c497b91e020b6b7de38ac164f056fb7407398",
            "9c257908a993ae0b7d5171442b29f14ff9288095789452f5db705fa13e2285fe",
            "03d00ded991c8615807c5f7c7e17bb70c253f88e75b358cd1206ffd104ad82a9",
        ),
        "env/99-runtimevars.sh": (
            "95f47ff84ad6cb03ea8e80758be09c06bdd4e5ce562656298b1d7de57b7cb4f0",
            "92eb7afbbedc63c03bb80855b162dfd70a8864b655b437f5663cadc0d168a1d6",
        ),
        "actions/exec": ("d4898a0562b8b0357fb4cbf49accfdb795b7f997b056548aaa0b3efc51371c4e",),
        "actions/run": ("ba9a6d5d67132f654afb2c2ed17133c67894c412c3109f2abe4f69405dbf970f",),
        "actions/shell": ("96b8c879a22ad2614761a204465c1542b8f61a29cba149ad48e59afe1532ce36",),
        "actions/start": ("d063a3dcf60a6da26507274ae4c5c73b4c3f0a8157c7e5b1327ef35c1580d70f",),
        "actions/test": ("e63bcaea5db1f76e9aa894b0d85299ddfca8543588eccd5cbb2c96e3982259f6",),
        "startscript": ("2de1dab9ee6b054aca3b5415cc5df0bc21702c1b2f358c98ba2f7e5287801605",),
    }.items()
}
