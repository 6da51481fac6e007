"""The tree digest of each format, read from the artifact itself, and whether they agree."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from builder.artifacts import flatten, oci
from builder.artifacts.tree import (
    TreeEntry,
    clean,
    comparable,
    differences,
    entries_of_tar,
    keeps_owners,
    owner_differences,
    tree_digest,
)
from builder.build.engines import Tools, apptainer
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.model.digests import sha256_of
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.system.compression import DAMAGED
from builder.verify.container_output import one_line

EQUALITY_CHECK = "formats-equal"
_SHOWN = 5
_AT_ONCE = 2  # each takes a core to unpack and one to hash
# What reading a layout raises where a blob is missing, or is not the kind that it should be.
_NOT_WHOLE = (FileNotFoundError, KeyError, TypeError, ValueError)
_KEEP_OWNERS = frozenset(["oci", "charliecloud"])


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatTree:
    """The entries of one format that count, and the digest over them.

    `artifact` is that of the file which they were read from, `sha256:…`: of a SIF alone, which
    this reading is the first of. The others were hashed while they were written. `kept` are the
    contents of the files that describe the image, by path: variables, labels, scripts.
    """

    entries: Mapping[str, TreeEntry]
    digest: str
    artifact: str = ""
    kept: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        entries: Mapping[str, TreeEntry],
        artifact: str = "",
        kept: Mapping[str, bytes] | None = None,
    ) -> FormatTree:
        return cls(entries=entries, digest=tree_digest(entries), artifact=artifact, kept=kept or {})


def trees_of(
    artifacts: Mapping[str, Path], *, work: Path, tools: Tools
) -> tuple[dict[str, FormatTree], dict[str, str]]:
    """The trees of artifacts by format, and why some of them could not be read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return reading_trees(artifacts, work=work, tools=tools, pool=pool)()


def reading_trees(
    artifacts: Mapping[str, Path], *, work: Path, tools: Tools, pool: Executor
) -> Callable[[], tuple[dict[str, FormatTree], dict[str, str]]]:
    """Begin to read trees in a pool of threads; what is returned waits for what `trees_of` says."""

    def read(name: str) -> FormatTree | StepFailed:
        try:
            return tree_of_artifact(name, artifacts[name], work=work, tools=tools)
        except StepFailed as error:
            return error

    begun = {name: pool.submit(read, name) for name in artifacts}

    def wait() -> tuple[dict[str, FormatTree], dict[str, str]]:
        found = {name: one.result() for name, one in begun.items()}
        trees = {name: one for name, one in found.items() if isinstance(one, FormatTree)}
        broken = {name: one.message for name, one in found.items() if isinstance(one, StepFailed)}
        return trees, broken

    return wait


def tree_of_artifact(
    artifact_format: str, artifact: Path, *, work: Path, tools: Tools
) -> FormatTree:
    """Read an OCI layout, a SIF or a tarball to its end and take its tree."""
    try:
        return _tree(artifact_format, artifact, work=work, tools=tools)
    except (tarfile.TarError, *DAMAGED, EOFError, *_NOT_WHOLE) as error:
        raise StepFailed(f"{artifact}: not a whole {artifact_format} artifact ({error})") from error


def _tree(artifact_format: str, artifact: Path, *, work: Path, tools: Tools) -> FormatTree:
    kept: dict[str, bytes] = {}
    if artifact_format == "oci":
        layout = oci.read_layout(artifact)
        return FormatTree.of(comparable(flatten.entries_of_layout(layout, kept)), kept=kept)
    whole = hashlib.sha256()
    with _as_tar(artifact_format, artifact, work=work, tools=tools, seen=whole.update) as stream:
        entries = comparable(entries_of_tar(stream, kept))
    is_sif = artifact_format == "sif"
    return FormatTree.of(entries, f"sha256:{whole.hexdigest()}" if is_sif else "", kept)


def _as_tar(
    artifact_format: str,
    artifact: Path,
    *,
    work: Path,
    tools: Tools,
    seen: apptainer.Seen | None = None,
) -> AbstractContextManager[IO[bytes]]:
    if artifact_format == "sif":
        return apptainer.tree_of(artifact, scratch=work, tools=tools, seen=seen)
    unpack = [tools.program("pigz"), "--decompress", "--stdout", str(artifact)]
    return tools.processes.reading_from(unpack)


def digest_of_file(
    artifact_format: str, artifact: Path, path: str, *, work: Path, tools: Tools
) -> str:
    """The SHA-256 of a file in a SIF or a tarball, without hashing the others.

    Empty where it is not there, or this machine cannot look into the artifact.
    """
    found = ""
    try:
        with (
            _as_tar(artifact_format, artifact, work=work, tools=tools) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in archive:  # to its end: what is left would be read into memory at once
                if clean(member.name) == clean(path) and member.isreg():
                    data = archive.extractfile(member)
                    assert data is not None
                    found = sha256_of(data)
    except (StepFailed, MissingPrerequisite, tarfile.TarError, *DAMAGED, EOFError):
        return ""
    return found


def equality(trees: Mapping[str, FormatTree], broken: Mapping[str, str] | None = None) -> Outcome:
    """Return whether all formats hold the same tree; if not, the first paths that differ.

    `broken` are the formats that could not be read, and why. Owners are compared between the
    formats that keep them.
    """
    if broken:
        reason = one_line("; ".join(f"{name}: {why}" for name, why in broken.items()))
        return Outcome(check=EQUALITY_CHECK, outcome=FAILED, reason=reason)
    names = list(trees)
    if len(names) < 2:  # noqa: PLR2004 - it takes two to be equal
        reason = f"there is only the {names[0]} artifact: nothing to compare it with"
        return Outcome(check=EQUALITY_CHECK, outcome=SKIPPED, reason=reason)
    if found := _unequal(trees):
        shown = "; ".join(found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return Outcome(
            check=EQUALITY_CHECK, outcome=FAILED, reason=shown + more, output="\n".join(found[:200])
        )
    first = trees[names[0]]
    reason = f"{', '.join(names)} hold the same {len(first.entries)} paths, {first.digest[:19]}"
    owners = _with_owners(trees)
    told = f"; owners are the same in {' and '.join(owners)}" if len(owners) > 1 else ""
    return Outcome(check=EQUALITY_CHECK, outcome=PASSED, reason=reason + told)


def _unequal(trees: Mapping[str, FormatTree]) -> list[str]:
    """What differs between the first format and each of the others, a line each."""
    first, *others = trees
    found: list[str] = []
    for name in others:
        if trees[name].digest != trees[first].digest:
            lines = differences(trees[first].entries, trees[name].entries)
            found += [one_line(f"{first} and {name}: {line}") for line in lines]
    keeping = _with_owners(trees)
    for name in keeping[1:]:
        lines = owner_differences(trees[keeping[0]].entries, trees[name].entries)
        found += [one_line(f"{keeping[0]} and {name}: {line}") for line in lines]
    return found


def _with_owners(trees: Mapping[str, FormatTree]) -> list[str]:
    """The formats that keep owners. A SIF does not, unless root packed it."""
    return [
        name for name, tree in trees.items() if name in _KEEP_OWNERS or keeps_owners(tree.entries)
    ]
