"""The errors of CUDA that containers run into, and whose matter each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST, IMAGE, START, UNCLEAR = "host", "image", "start", "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaError:
    """A row of data/cuda-errors.yaml, which says what its fields mean."""

    code: int
    name: str
    meaning: str
    matter: str
    remedy: str
    driver_name: str = ""


def cuda_errors() -> Mapping[int, CudaError]:
    """Return the errors by code."""
    import yaml  # noqa: PLC0415 - only a failed check of a GPU needs them

    file = Path(__file__).parent / "data/cuda-errors.yaml"
    rows = yaml.safe_load(file.read_text(encoding="utf-8"))["errors"]
    return {row["code"]: CudaError(**row) for row in rows}
