"""Receipts: what was pulled, and what was decided before that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.distribute.pull.owning import check_own, make_own
from builder.model.errors import Refused
from builder.system.atomic import read_regular, write_whole
from builder.system.locks import locked
from builder.trust.policy.gathered import Gathered, Previous
from builder.trust.policy.outcomes import REFUSED
from builder.trust.policy.rollback import rollback, times_of
from builder.trust.policy.statements import time_of
from builder.trust.policy.values import Policy

NAME = "receipt.json"
SCHEMA = "build-images/receipt/v1"
_MOST_OF_LAST, _MOST_OF_RECEIPT = 64 << 10, 64 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Last:
    """Record of the last pull of each reference, in a folder of small files."""

    folder: Path

    def read(self, reference: str, arch: str) -> Previous | None:
        """Return the last pull of a reference; None if there was none.

        Raises `Refused` if that cannot be read, or others could change it.
        """
        for folder in (self.folder.parent, self.folder):
            check_own(folder)
        file = self._file(reference, arch)
        try:
            document = json.loads(read_regular(file, _MOST_OF_LAST))
            times = {str(kind): time_of(text) for kind, text in document["times"].items()}
            return Previous(digest=str(document["digest"]), times=times)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as why:
            raise Refused(
                f"{file}: what was pulled last cannot be read ({type(why).__name__})",
                hint="without it an older image cannot be told: remove the file if that is meant",
            ) from why

    def write(self, reference: str, gathered: Gathered, policy: Policy) -> None:
        """Record what was pulled, unless another pull has recorded something newer meanwhile."""
        file = self._file(reference, gathered.image.asked)
        times = times_of(gathered)
        make_own(self.folder)
        with locked(self.folder, "last"):
            if policy.rollback:
                now = self.read(reference, gathered.image.asked)
                if rollback(policy, replace(gathered, previous=now)).result == REFUSED:
                    return
                if now and now.digest == gathered.image.digest:  # what was known once stays known
                    times = {**times, **now.times}
            document = {
                "reference": reference,
                "digest": gathered.image.digest,
                "times": {kind: time.isoformat() for kind, time in times.items()},
            }
            write_json(file, document)

    def _file(self, reference: str, arch: str) -> Path:
        name = hashlib.sha256(f"{reference} {arch}".encode()).hexdigest()
        return self.folder / f"{name}.json"


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a file that is there whole, or as it was before; nobody else writes it meanwhile."""
    write_whole(file, json.dumps(document, indent=1) + "\n")


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """The receipt in a folder; None if there is none that can be read."""
    try:
        receipt = json.loads(read_regular(folder / NAME, _MOST_OF_RECEIPT))
    except (OSError, ValueError, RecursionError):
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("schema") == SCHEMA else None
