"""What container runtimes fix: which versions run which images, as which user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A program that starts images of one `format` (oci, sif, charliecloud).

    For an ordinary user, a `rootless` one needs user namespaces. `gpu` is how it is told to bring
    the driver's libraries in, and `oldest` the first version that reads the format.
    """

    name: str
    format: str
    gpu: str
    rootless: bool = True
    oldest: str = ""


# SIF came with Singularity 3.0, https://github.com/apptainer/singularity/releases/tag/v3.0.0;
# --gpus with Docker 19.03, https://docs.docker.com/engine/release-notes/19.03/; CDI in Podman with
# 4.1, https://github.com/containers/podman/releases/tag/v4.1.0.
RUNTIMES: Mapping[str, Runtime] = {
    one.name: one
    for one in (
        Runtime(name="apptainer", format="sif", gpu="--nv", oldest="1.0"),
        Runtime(name="singularity", format="sif", gpu="--nv", oldest="3.0"),
        Runtime(name="charliecloud", format="charliecloud", gpu="ch-fromhost --nvidia"),
        Runtime(name="podman", format="oci", gpu="--device nvidia.com/gpu=all"),
        Runtime(name="docker", format="oci", gpu="--gpus all", rootless=False),
    )
}

# glibc starts threads by clone3 from 2.34 on. Docker forbade it in a way that glibc takes for
# final, https://github.com/moby/moby/pull/42681: no version before this one runs such an image,
# https://pkg.go.dev/github.com/AkihiroSuda/clone3-workaround
CLONE3_GLIBC = "2.34"
CLONE3_DOCKER = "20.10.10"
