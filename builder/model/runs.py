"""Runs of an image's checks by their names, which manifests and files of evidence have in common.

`oci`, `sif` and `charliecloud` are by the usual program of each format. The others are optional,
and say more of an image: `oci-docker` is by a further program, `sif-mpi-hybrid-srun` of ranks that
a launcher started, `oci-bench` of a measurement.
"""

from __future__ import annotations

from collections.abc import Collection


def required_runs(runs: Collection[str]) -> set[str]:
    """Those of a manifest's runs that an image has to pass: the usual one of each format.

    Where a format was not run by its usual program, by whichever it was.
    """
    usual = {run for run in runs if "-" not in run}
    return usual | {run for run in runs if run.partition("-")[0] not in usual}
