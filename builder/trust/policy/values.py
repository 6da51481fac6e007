"""A site's policy as values: whom it trusts, and what must be proven before an image is taken."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from pathlib import Path

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


SCHEMA = "build-images/policy/v1"
SAME = "same"  # as on the host that the image is pulled for
IGNORED, ACCEPTED, REFUSED, ENFORCED = "ignored", "accepted", "refused", "enforced"
MAX_AGE = dt.timedelta(days=90)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A trusted public key: its file, how the policy names it, and until when it is trusted."""

    name: str
    file: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Somebody who signs by certificates: a glob over their names, and who knows them by these.

    `roots` is a `trusted_root.json`: the authorities and logs that are believed.
    """

    name: str
    issuer: str
    roots: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedHosts:
    """The class of hosts whose evidence counts; what is empty is not asked.

    `capabilities` are compute capabilities (70 for 7.0) of which one GPU must have one, or None for
    those of the host. `driver` is a PEP 440 specifier, or `same`: of the host's driver branch.
    """

    architectures: tuple[str, ...] = ()
    capabilities: tuple[int, ...] | None = ()
    driver: str = ""
    runtimes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedEvidence:
    """Which checks must have passed, how long ago at most, and on which hosts.

    `max_index_age` is how old the package indices may be that the image was made with; None is not
    asked.
    """

    required: tuple[str, ...] = ALWAYS_REQUIRED
    max_age: dt.timedelta = MAX_AGE
    max_index_age: dt.timedelta | None = None
    emulated: bool = False
    hosts: WantedHosts = field(default_factory=WantedHosts)


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedProvenance:
    """Globs, of which one must match; any builder or source will do where there are none."""

    builders: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedBill:
    """Globs over the names of packages (and `NAME@VERSION`), and over licences."""

    forbidden_packages: tuple[str, ...] = ()
    forbidden_licences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a site asks of an image. A part that is None is not asked for.

    `keys` are those who are trusted; `signatures` is how many of them must have signed the image.
    """

    keys: tuple[Key | Identity, ...]
    signatures: int = 1
    evidence: WantedEvidence = field(default_factory=WantedEvidence)
    provenance: WantedProvenance | None = field(default_factory=WantedProvenance)
    bill: WantedBill | None = field(default_factory=WantedBill)
    identity: bool = True
    host_contract: bool = True
    rollback: bool = True
