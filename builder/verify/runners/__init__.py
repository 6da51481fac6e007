"""Running commands inside an artifact: each format by the programs that sites use for it."""

from __future__ import annotations

from builder.verify.runners import commands
from builder.verify.runners.oci import buildah_runner, docker_runner, podman_runner
from builder.verify.runners.protocol import (
    DATA_AT,
    Around,
    Container,
    CopiesDriver,
    Kind,
    Mount,
    Runner,
)
from builder.verify.runners.sites import (
    apptainer_launched,
    apptainer_runner,
    charliecloud_launched,
    charliecloud_runner,
)

__all__ = [
    "DATA_AT",
    "DEFAULTS",
    "RUNNERS",
    "Around",
    "Container",
    "CopiesDriver",
    "Kind",
    "Mount",
    "Runner",
]

_KINDS = (
    Kind(
        name="buildah",
        format="oci",
        program="buildah",
        open=buildah_runner,
        own=("HOSTNAME",),
        no_gpu=commands.buildah_problem,
    ),
    Kind(
        name="podman",
        format="oci",
        program="podman",
        open=podman_runner,
        own=("HOSTNAME", "TERM", "container"),
        no_gpu=commands.podman_problem,
    ),
    Kind(
        name="docker",
        format="oci",
        program="docker",
        open=docker_runner,
        own=("HOSTNAME",),
        no_gpu=commands.docker_problem,
    ),
    Kind(
        name="apptainer",
        format="sif",
        program="apptainer",
        open=apptainer_runner,
        own=(
            "APPTAINER_*",
            "SINGULARITY_*",
            "LD_LIBRARY_PATH",
            "LANG",
            "PROMPT_COMMAND",
            "PS1",
            "TERM",
        ),
        launched=apptainer_launched,
    ),
    Kind(
        name="charliecloud",
        format="charliecloud",
        program="ch-run",
        open=charliecloud_runner,
        own=("CH_RUNNING",),
        no_gpu=commands.charliecloud_problem,
        launched=charliecloud_launched,
    ),
)
RUNNERS: dict[str, Kind] = {one.name: one for one in _KINDS}
DEFAULTS = {"oci": "buildah", "sif": "apptainer", "charliecloud": "charliecloud"}
