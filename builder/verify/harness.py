"""The harness that an image carries, held against the bytes that the builder gave it.

A check is only as good as the scripts that run it: `quiet.sh` without its look at standard error
passes what complains. Scripts and sources are compared byte for byte. Programs are compiled in the
image, by its own compiler: the builder never had their bytes, so that their digests are noted as
evidence, and not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.model import FAILED, Outcome
from builder.verify.checks import Target
from builder.verify.trees import FormatTree
from builder.verify.wording import LONGEST, one_line

HARNESS_CHECK = "harness"
_FOLDER = "opt/build-images/"
_COPIED = ("files/run-checks", "files/checks/", "files/src/", "files/host-contract.json")
_SCRIPTS = f"{_FOLDER}checks/"


def harness_of(specs: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file of the harness by its path in the image.

    `specs` are the digests of a spec's files (`sha256:…`) by their names in the spec's folder.
    """
    return {
        name.replace("files/", _FOLDER, 1): str(digest).removeprefix("sha256:")
        for name, digest in specs.items()
        if name.startswith(_COPIED)
    }


def carried_harness(tree: FormatTree) -> dict[str, str]:
    """The SHA-256 of each file of the harness in an artifact, compiled programs included."""
    return {
        path.removeprefix(_FOLDER): entry.content
        for path, entry in sorted(tree.entries.items())
        if path.startswith(_FOLDER) and entry.kind == "file"
    }


def altered_harness(target: Target, trees: Mapping[str, FormatTree]) -> tuple[Outcome, ...]:
    """A failure, where a file of the harness is not the builder's; none for an image without."""
    if not target.checks or not target.harness:
        return ()
    faults = [fault for name, tree in trees.items() for fault in _altered(target, name, tree)]
    if not faults:
        return ()
    reason = one_line("; ".join(faults))[:LONGEST]
    return (Outcome(check=HARNESS_CHECK, outcome=FAILED, reason=reason),)


def _altered(target: Target, name: str, tree: FormatTree) -> Iterator[str]:
    scripts = {path for path in tree.entries if path.startswith(_SCRIPTS)}
    for path in sorted(scripts | target.harness.keys()):
        entry = tree.entries.get(path)
        if entry is None:
            yield f"{name}: /{path} is missing"
        elif entry.kind != "file" or entry.content != target.harness.get(path):
            yield f"{name}: /{path} is not the builder's"
