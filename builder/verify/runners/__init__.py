"""Run commands inside an artifact, with the programs that sites use for each format."""

from __future__ import annotations

from builder.verify.runners import oci, sites
from builder.verify.runners.protocol import Kind, cdi_problem, missing

_KINDS = (
    Kind(
        name="buildah",
        format="oci",
        program="buildah",
        open=oci.buildah_runner,
        own=("HOSTNAME",),
        no_gpu=oci.buildah_problem,
        is_usual=True,
    ),
    Kind(
        name="podman",
        format="oci",
        program="podman",
        open=oci.podman_runner,
        own=("HOSTNAME", "TERM", "container"),
        no_gpu=lambda _tools: cdi_problem(),
    ),
    Kind(
        name="docker",
        format="oci",
        program="docker",
        open=oci.docker_runner,
        own=("HOSTNAME",),
        no_gpu=lambda tools: missing(tools, "nvidia-container-runtime"),
    ),
    Kind(
        name="apptainer",
        format="sif",
        program="apptainer",
        open=sites.apptainer_runner,
        own=(
            *("APPTAINER_*", "SINGULARITY_*", "LD_LIBRARY_PATH"),
            *("LANG", "PROMPT_COMMAND", "PS1", "TERM"),
        ),
        is_usual=True,
    ),
    Kind(
        name="charliecloud",
        format="charliecloud",
        program="ch-run",
        open=sites.charliecloud_runner,
        own=("CH_RUNNING",),
        no_gpu=sites.charliecloud_problem,
        is_usual=True,
    ),
)
RUNNERS = {kind.name: kind for kind in _KINDS}
DEFAULTS = {kind.format: kind.name for kind in _KINDS if kind.is_usual}
