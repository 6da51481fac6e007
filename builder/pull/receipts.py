"""Receipts: what was pulled, and what was decided before that."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.locks import locked
from builder.policy.gathered import Gathered, Previous
from builder.policy.rules import times_of
from builder.policy.statements import time_of

NAME = "receipt.json"
SCHEMA = "build-images/receipt/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Last:
    """What was pulled last under each reference, in a folder of small files."""

    folder: Path

    def read(self, reference: str, arch: str) -> Previous | None:
        """What was pulled last; None if nothing was, or what is recorded cannot be read."""
        try:
            found = json.loads(self._file(reference, arch).read_text())
            times = {str(kind): time_of(one) for kind, one in found["times"].items()}
            return Previous(digest=str(found["digest"]), times=times)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, reference: str, gathered: Gathered) -> None:
        """Record what was pulled."""
        file = self._file(reference, gathered.image.asked)
        times = {kind: one.isoformat() for kind, one in times_of(gathered).items()}
        document = {"reference": reference, "digest": gathered.image.digest, "times": times}
        with locked(self.folder, "last"):
            write_json(file, document)

    def _file(self, reference: str, arch: str) -> Path:
        name = hashlib.sha256(f"{reference} {arch}".encode()).hexdigest()
        return self.folder / f"{name}.json"


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a file that is there whole, or as it was before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """The receipt in a folder; None if there is none that can be read."""
    try:
        found = json.loads((folder / NAME).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None
