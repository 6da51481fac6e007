"""The harness that an image carries, held against the bytes that the builder gave it.

A check is only as good as the scripts that run it: `quiet.sh` without its look at standard error
passes what complains. Scripts and sources are compared byte for byte with what the builder copied
in. Programs are compiled in the image, by its own compiler: they are compared with those that the
builder found in the layout that it packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.artifacts.manifests import FOLDER, PROGRAMS
from builder.model import FAILED, SKIPPED, Outcome
from builder.verify.checks import Target
from builder.verify.trees import FormatTree
from builder.verify.wording import LONGEST, one_line

HARNESS_CHECK = "harness"
_COPIED = (
    *("files/run-checks", "files/checks/", "files/src/", "files/host-contract.json"),
    "files/bin/",
)
_SCRIPTS = f"{FOLDER}checks/"


def harness_of(specs: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file of the harness by its path in the image.

    `specs` are the digests of a spec's files (`sha256:…`) by their names in the spec's folder, and
    of compiled programs as `programs_in` has them.
    """
    return {
        name.replace("files/", FOLDER, 1): str(digest).removeprefix("sha256:")
        for name, digest in specs.items()
        if name.startswith(_COPIED)
    }


def within(harness: Mapping[str, str]) -> dict[str, str]:
    """A harness by paths below its folder, as evidence has it."""
    return {path.removeprefix(FOLDER): digest for path, digest in harness.items()}


def carried_harness(tree: FormatTree) -> dict[str, str]:
    """The SHA-256 of each file of the harness in an artifact, compiled programs included."""
    return {
        path.removeprefix(FOLDER): entry.content
        for path, entry in sorted(tree.entries.items())
        if path.startswith(FOLDER) and entry.kind == "file"
    }


def altered_harness(target: Target, trees: Mapping[str, FormatTree]) -> tuple[Outcome, ...]:
    """A failure, where a file of the harness is not the builder's; none for an image without.

    Skipped where nobody says what the builder gave the image, as of one that was pulled.
    """
    if not target.checks:
        return ()
    if not target.harness:
        reason = "not compared: nothing here says which scripts the builder gave the image"
        return (Outcome(check=HARNESS_CHECK, outcome=SKIPPED, reason=reason),)
    faults = [fault for name, tree in trees.items() for fault in _altered(target, name, tree)]
    if not faults:
        return ()
    reason = one_line("; ".join(faults))[:LONGEST]
    return (Outcome(check=HARNESS_CHECK, outcome=FAILED, reason=reason),)


def _altered(target: Target, name: str, tree: FormatTree) -> Iterator[str]:
    folders = [_SCRIPTS]
    if any(path.startswith(PROGRAMS) for path in target.harness):  # earlier manifests have none
        folders.append(PROGRAMS)
    files = {path for path in tree.entries if path.startswith(tuple(folders))}
    for path in sorted(files | target.harness.keys()):
        entry = tree.entries.get(path)
        if entry is None:
            yield f"{name}: /{path} is missing"
        elif entry.kind != "file" or entry.content != target.harness.get(path):
            yield f"{name}: /{path} is not the builder's"
