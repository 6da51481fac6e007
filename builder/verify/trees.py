"""The tree digest of each format, read from the artifact itself, and their comparison."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts import flatten, oci
from builder.artifacts.tree import (
    Entry,
    comparable,
    differences,
    entries_of_tar,
    keeps_owners,
    owner_differences,
    tree_digest,
)
from builder.build.engines import Tools, apptainer
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.model.errors import StepFailed
from builder.system.compression import DAMAGED
from builder.verify.container_output import one_line

EQUALITY_CHECK = "formats-equal"
_SHOWN = 5
_AT_ONCE = 2  # each takes a core to unpack and one to hash
# Raised by reading a layout where a blob is missing, or is not the kind that it should be.
_INCOMPLETE = (FileNotFoundError, KeyError, TypeError, ValueError)
_KEEP_OWNERS = frozenset(["oci", "charliecloud"])


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatTree:
    """The entries of one format that count, and the digest over them.

    `artifact` is that of the file which they were read from, `sha256:…`: of a SIF alone, which
    this reading is the first of. The others were hashed while they were written. `contents` are
    those of the files that describe the image, by path: variables, labels, scripts.
    """

    entries: Mapping[str, Entry]
    digest: str
    artifact: str = ""
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        entries: Mapping[str, Entry],
        artifact: str = "",
        contents: Mapping[str, bytes] | None = None,
    ) -> FormatTree:
        digest = tree_digest(entries)
        return cls(entries=entries, digest=digest, artifact=artifact, contents=contents or {})


# Trees of artifacts by format, and why some of them could not be read.
Trees = tuple[dict[str, FormatTree], dict[str, str]]


def trees_of(artifacts: Mapping[str, Path], *, work: Path, tools: Tools) -> Trees:
    """Read the trees of artifacts, several at once."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return reading_trees(artifacts, work=work, tools=tools, pool=pool)()


def reading_trees(
    artifacts: Mapping[str, Path], *, work: Path, tools: Tools, pool: Executor
) -> Callable[[], Trees]:
    """Begin to read trees in a pool of threads; return what waits for their end."""
    begun = {
        name: pool.submit(tree_of_artifact, name, path, work=work, tools=tools)
        for name, path in artifacts.items()
    }

    def wait() -> Trees:
        trees, broken = {}, {}
        for name, future in begun.items():
            try:
                trees[name] = future.result()
            except StepFailed as error:
                broken[name] = error.message
        return trees, broken

    return wait


def tree_of_artifact(
    artifact_format: str, artifact: Path, *, work: Path, tools: Tools
) -> FormatTree:
    """Read an OCI layout, a SIF or a tarball to its end and take its tree."""
    contents: dict[str, bytes] = {}
    digest = hashlib.sha256()
    try:
        if artifact_format == "oci":
            entries = comparable(flatten.entries_of_layout(oci.read_layout(artifact), contents))
            return FormatTree.of(entries, contents=contents)
        if artifact_format == "sif":
            opened = apptainer.tree_of(artifact, scratch=work, tools=tools, seen=digest.update)
        else:
            unpack = [tools.program("pigz"), "--decompress", "--stdout", str(artifact)]
            opened = tools.processes.reading_from(unpack)
        with opened as stream:
            entries = comparable(entries_of_tar(stream, contents))
    except (tarfile.TarError, *DAMAGED, EOFError, *_INCOMPLETE) as error:
        raise StepFailed(f"{artifact}: not a whole {artifact_format} artifact ({error})") from error
    sha256 = f"sha256:{digest.hexdigest()}" if artifact_format == "sif" else ""
    return FormatTree.of(entries, sha256, contents)


def equality(trees: Mapping[str, FormatTree], broken: Mapping[str, str] | None = None) -> Outcome:
    """Compare the trees of all formats; if they differ, the reason has the first such paths.

    `broken` are the formats that could not be read, and why. Owners are compared between the
    formats that keep them.
    """
    if broken:
        reason = one_line("; ".join(f"{name}: {why}" for name, why in broken.items()))
        return Outcome(check=EQUALITY_CHECK, outcome=FAILED, reason=reason)
    first, *others = trees
    if not others:
        reason = f"there is only the {first} artifact: nothing to compare it with"
        return Outcome(check=EQUALITY_CHECK, outcome=SKIPPED, reason=reason)
    owners = [
        name for name, tree in trees.items() if name in _KEEP_OWNERS or keeps_owners(tree.entries)
    ]  # not a SIF, unless root packed it
    if lines := _unequal(trees, owners):
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        return Outcome(
            check=EQUALITY_CHECK,
            outcome=FAILED,
            reason="; ".join(lines[:_SHOWN]) + more,
            output="\n".join(lines[:200]),
        )
    count, digest = len(trees[first].entries), trees[first].digest[:19]
    reason = f"{', '.join(trees)} hold the same {count} paths, {digest}"
    if len(owners) > 1:
        reason += f"; owners are the same in {' and '.join(owners)}"
    return Outcome(check=EQUALITY_CHECK, outcome=PASSED, reason=reason)


def _unequal(trees: Mapping[str, FormatTree], owners: Sequence[str]) -> list[str]:
    """Return the differences between the first format and each of the others, a line each.

    `owners` are the formats that keep owners.
    """
    pairs = [(next(iter(trees)), name, differences) for name in [*trees][1:]]
    pairs = [pair for pair in pairs if trees[pair[0]].digest != trees[pair[1]].digest]
    pairs += [(owners[0], name, owner_differences) for name in owners[1:]]
    return [
        one_line(f"{first} and {other}: {line}")
        for first, other, compare in pairs
        for line in compare(trees[first].entries, trees[other].entries)
    ]
