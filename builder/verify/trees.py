"""The tree digest of each format, read from the artifact itself, and whether they agree."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import flatten, oci
from builder.artifacts.tree import (
    Entry,
    comparable,
    differences,
    entries_of_tar,
    tree_digest,
)
from builder.engines import Tools, apptainer
from builder.errors import StepFailed
from builder.model import FAILED, PASSED, SKIPPED, Outcome

EQUALITY_CHECK = "formats-equal"
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatTree:
    """The entries of one format that count, and the digest over them."""

    entries: Mapping[str, Entry]
    digest: str

    @classmethod
    def of(cls, entries: Mapping[str, Entry]) -> FormatTree:
        return cls(entries=entries, digest=tree_digest(entries))


def tree_of_artifact(
    artifact_format: str, artifact: Path, *, work: Path, tools: Tools
) -> FormatTree:
    """Read an OCI layout, a SIF or a tarball to its end and take its tree."""
    try:
        return _tree(artifact_format, artifact, work=work, tools=tools)
    except (tarfile.TarError, zlib.error, EOFError, KeyError) as error:
        raise StepFailed(f"{artifact}: not a whole {artifact_format} artifact ({error})") from error


def _tree(artifact_format: str, artifact: Path, *, work: Path, tools: Tools) -> FormatTree:
    if artifact_format == "oci":
        return FormatTree.of(comparable(flatten.entries_of_layout(oci.read_layout(artifact))))
    if artifact_format == "sif":
        with apptainer.tree_of(artifact, scratch=work, tools=tools) as stream:
            return FormatTree.of(comparable(entries_of_tar(stream)))
    unpack = [tools.program("pigz"), "--decompress", "--stdout", str(artifact)]
    with tools.processes.reading_from(unpack) as stream:
        return FormatTree.of(comparable(entries_of_tar(stream)))


def equality(trees: Mapping[str, FormatTree]) -> Outcome:
    """Whether all formats hold the same tree; if not, the first paths that differ."""
    names = list(trees)
    if len(names) < 2:  # noqa: PLR2004 - it takes two to be equal
        reason = f"only the {names[0]} artifact was made: nothing to compare it with"
        return Outcome(check=EQUALITY_CHECK, outcome=SKIPPED, reason=reason)
    if len({tree.digest for tree in trees.values()}) == 1:
        first = trees[names[0]]
        reason = f"{', '.join(names)} hold the same {len(first.entries)} paths, {first.digest[:19]}"
        return Outcome(check=EQUALITY_CHECK, outcome=PASSED, reason=reason)
    found: list[str] = []
    for name in names[1:]:
        lines = differences(trees[names[0]].entries, trees[name].entries)
        found += [f"{names[0]} and {name}: {line}" for line in lines]
    shown = "; ".join(found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Outcome(
        check=EQUALITY_CHECK, outcome=FAILED, reason=shown + more, output="\n".join(found[:200])
    )
