"""What a host must bring for an image to run: made from the plan, kept in the image.

It is a file in the image (`IN_IMAGE`), by which every format carries it, and labels of the image
(`build-images.host.*`), which are read without unpacking it. docs/host-contract.md tells of each
field.
"""

from __future__ import annotations

from builder.model.contract.making import contract_of
from builder.model.contract.text import (
    FILE,
    IN_IMAGE,
    LABEL,
    as_document,
    as_labels,
    as_text,
    labels_of_document,
)
from builder.model.contract.values import SCHEMA, HostContract, NeededCpu, NeededCuda, NeededMpi

__all__ = [
    "FILE",
    "IN_IMAGE",
    "LABEL",
    "SCHEMA",
    "HostContract",
    "NeededCpu",
    "NeededCuda",
    "NeededMpi",
    "as_document",
    "as_labels",
    "as_text",
    "contract_of",
    "labels_of_document",
]
