"""The names of checks that a policy may require: a misspelt one would refuse every image.

A site that pulls has no project at hand, so the names of the shipped checks are here as well; a
test holds them against tests/images/checks.yaml, and those of launched ranks against the launchers.
"""

from __future__ import annotations

ALWAYS_REQUIRED = ("formats-equal", "environment")  # what every verification finds
_OF_THE_HARNESS = ("harness", "gpu-withheld")
_SHIPPED = (
    *("architecture", "libraries", "python3", "verbs", "host-contract", "mpi", "mpi4py"),
    *("horovod", "chainermn", "osu", "mlperf", "mlperf-coco", "mlperf-gnmt", "mlperf-maskrcnn"),
    *("mlperf-ssd", "mlperf-transformer"),
    *("pytorch", "pytorch-gpu", "pytorch-parallel", "pytorch-parallel-gpu", "biggan"),
    *("tensorflow", "tensorflow-gpu", "hpcc", "fio", "memory-speed", "mpi-speed", "ucx"),
    *("cuda-clean", "cuda-runtime", "gpu-driver", "gpu-devices", "gpu-library", "gpu-found"),
    *("gpu-version", "gpu-code", "gpu-compute", "gpu-blas", "gpu-nccl", "gpu-mpi", "gpu-control"),
)
_LAUNCHED = ("mpi-hybrid-mpirun", "mpi-hybrid-srun", "mpi-bind-mpirun", "mpi-bind-srun")
CHECK_NAMES = (*ALWAYS_REQUIRED, *_SHIPPED, *_OF_THE_HARNESS, *_LAUNCHED)
