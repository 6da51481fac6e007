"""The host contract as it lies in an image: a JSON file, and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from builder.model.contract.values import SCHEMA, HostContract

FILE = "files/host-contract.json"  # in the folder of a spec
IN_IMAGE = "/opt/build-images/host-contract.json"
LABEL = "build-images.host."


def as_document(contract: HostContract) -> dict[str, object]:
    """The contract as JSON values; what is empty is left out."""
    return {"schema": SCHEMA, **_without_empty(asdict(contract))}


def as_text(contract: HostContract) -> str:
    """The text of the file in the image."""
    return json.dumps(as_document(contract), indent=1) + "\n"


def as_labels(contract: HostContract) -> dict[str, str]:
    """The same as labels: `build-images.host.cuda.driver`. A list is its words."""
    return labels_of_document(as_document(contract))


def labels_of_document(document: Mapping[str, object]) -> dict[str, str]:
    """The labels of a contract as JSON values."""
    return {f"{LABEL}{key}": value for key, value in _flat(document)}


def _without_empty(values: Mapping[str, object]) -> dict[str, object]:
    found = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    return {key: value for key, value in found.items() if value}


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", text) for inner, text in _flat(value))
        else:
            yield key, " ".join(value) if isinstance(value, list | tuple) else str(value)
