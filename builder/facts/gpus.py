"""What NVIDIA fixes about GPUs: their compute capabilities, and which drivers drive them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The last driver branch for GPUs below a compute capability (7.5 is 75):
# https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html
LAST_BRANCHES: tuple[tuple[int, int], ...] = ((30, 390), (50, 470), (75, 580))

# Code for one of these runs on no other capability of its major version: Tegra's,
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
TEGRA = frozenset([32, 53, 62, 72, 87])

# Capabilities with GPUs that MIG divides:
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-gpus.html
MIG = frozenset([80, 90, 100, 103, 120])

# GPUs of computing centres, by a word of their model: https://developer.nvidia.com/cuda-gpus and
# https://developer.nvidia.com/cuda-legacy-gpus
CAPABILITIES: dict[str, int] = {
    "K40": 35,
    "K80": 37,
    "M40": 52,
    "M60": 52,
    "P100": 60,
    "P4": 61,
    "P40": 61,
    "V100": 70,
    "V100S": 70,
    "T4": 75,
    "A100": 80,
    "A30": 80,
    "A2": 86,
    "A10": 86,
    "A10G": 86,
    "A16": 86,
    "A40": 86,
    "L4": 89,
    "L40": 89,
    "L40S": 89,
    "H100": 90,
    "H200": 90,
    "GH200": 90,
    "B200": 100,
    "GB200": 100,
}
_WORD = re.compile(r"[A-Z0-9]+", re.IGNORECASE)
# With these, cuda-compat fails with error 804: it is for data centre GPUs,
# https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
_DESKTOP = ("GeForce", "TITAN")


def capability_of(model: str) -> int | None:
    """The compute capability (70 for 7.0) of a GPU by its model, `Tesla V100-SXM2-32GB`.

    None for one that is not in the table.
    """
    if is_desktop(model):
        return None
    found = [CAPABILITIES[word] for word in _WORD.findall(model) if word in CAPABILITIES]
    return found[0] if found else None


def is_data_centre(model: str) -> bool:
    """Return whether a model is known to be one of a data centre, which cuda-compat is for."""
    return capability_of(model) is not None


def is_desktop(model: str) -> bool:
    """Return whether a model is known to be a desktop's."""
    return any(name.lower() in model.lower() for name in _DESKTOP)


def code_for(capability: int, codes: Iterable[int]) -> int | None:
    """The code that runs on a capability: of its major version, and of no newer minor one.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    fitting = [
        one
        for one in codes
        if one == capability
        or (one // 10 == capability // 10 and one < capability and not {one, capability} & TEGRA)
    ]
    return max(fitting, default=None)


def last_branch(capability: int) -> int | None:
    """The last driver branch (580) that drives GPUs of a capability; None if there is none yet."""
    return next((branch for below, branch in LAST_BRANCHES if capability < below), None)
