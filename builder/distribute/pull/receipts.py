"""Receipts of pulls: the image that was pulled, and the decision of the policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.distribute.pull.folders import check_own, make_own
from builder.model.errors import Refused
from builder.model.exact_json import part, time_of
from builder.model.records import named, read, unknown
from builder.system.files import read_regular, write_atomically
from builder.system.home import Home
from builder.system.locks import locked
from builder.trust.policy.judgement import rollback, times_of
from builder.trust.policy.records import REFUSED, Gathered, Previous, Ruling
from builder.trust.policy.site_policy import Policy

NAME = "receipt.json"
SCHEMA = "build-images/receipt/v1"
_MOST_OF_LAST, _MOST_OF_RECEIPT = 64 << 10, 64 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledImage:
    """The image that was pulled; `index` is the digest of the index that named it."""

    digest: str = ""
    index: str = ""
    architecture: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSettings:
    """Variables of the image's programs, as `NAME=VALUE`, and their working directory."""

    environment: tuple[str, ...]
    directory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Paths that were not unpacked as they are in the image: their number, and the first ones."""

    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PullReceipt:
    """`receipt.json`: the pulled image, its format, and the results of the policy's rules.

    `tree` is the digest of the tree in the artifact, `on_disk` that of the unpacked folder. `case`
    has all facts that were judged, in the format of `policy test`.
    """

    schema: str = SCHEMA
    version: str = named("build-images", default="")
    reference: str = ""
    name: str = ""
    pulled: str = ""
    format: str = ""
    path: str = ""
    digest: str = ""
    image: PulledImage = field(default_factory=PulledImage)
    tree: str = ""
    on_disk: str = ""
    run: ProgramSettings | None = None
    evidence: tuple[str, ...] = ()
    rules: tuple[Ruling, ...] = ()
    changes: Mapping[str, Changes] = field(default_factory=dict)
    case: Mapping[str, object] = field(default_factory=dict)
    more: Mapping[str, object] = unknown()


@dataclass(frozen=True, kw_only=True, slots=True)
class Last:
    """Record of the last pull of each reference, in a folder of small files."""

    folder: Path

    def read(self, reference: str, arch: str) -> Previous | None:
        """Return the last pull of a reference; None if no pull is recorded.

        Raises `Refused` if the record cannot be read, or if others could change it.
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
                f"{file}: the record of the last pull cannot be read ({type(why).__name__})",
                hint="remove the file to pull again; then the next pull accepts an older image",
            ) from why

    def write(self, reference: str, gathered: Gathered, policy: Policy) -> None:
        """Record what was pulled, unless another pull has recorded a newer image meanwhile."""
        file = self._file(reference, gathered.image.asked)
        times = times_of(gathered)
        make_own(self.folder)
        with locked(self.folder, "last"):
            if policy.rollback:
                now = self.read(reference, gathered.image.asked)
                if rollback(policy, replace(gathered, previous=now)).result == REFUSED:
                    return
                if now and now.digest == gathered.image.digest:  # keep known times
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


def last_pulls() -> Last:
    """Return the record of the last pulls into this home; with it, older images are refused."""
    return Last(folder=Home.of_environment().pulls / "last")


def write_json(file: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file atomically; no other process may write it meanwhile."""
    write_atomically(file, json.dumps(document, indent=1) + "\n", durable=True)


def read_receipt(folder: Path) -> PullReceipt | None:
    """Return the receipt in a folder, or None; raises `ValueError` for a malformed one."""
    try:
        receipt = json.loads(read_regular(folder / NAME, _MOST_OF_RECEIPT))
    except (OSError, ValueError, RecursionError):
        return None
    if part(receipt, "schema") != SCHEMA:
        return None
    # A format that is not a string becomes one, so that an error can name it.
    return read(PullReceipt, {**receipt, "format": str(receipt.get("format", ""))})
