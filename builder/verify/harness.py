"""The harness that an image carries, held against the bytes that the builder gave it.

A check is only as good as the scripts that run it: `quiet.sh` without its look at standard error
passes what complains. Scripts and sources are compared byte for byte with what the builder copied
in. Programs are compiled in the image, by its own compiler: they are compared with those that the
builder found in the layout that it packed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping

from builder.artifacts.manifests import FOLDER, PROGRAMS
from builder.model import FAILED, NONE, SKIPPED, Outcome, agreement
from builder.model.manifest import InImageCheck
from builder.verify.checks import ProofTarget
from builder.verify.container_output import LONGEST, one_line
from builder.verify.trees import FormatTree

HARNESS_CHECK = "harness"
SCRIPTS = "opt/build-images/checks"
_SCRIPT = re.compile(rf"{SCRIPTS}/[0-9]+-([a-z0-9][a-z0-9_-]*)")
_TIMEOUT_S = 900  # the longest that a check of this project has; an image does not say its own
_COPIED = (
    *("files/run-checks", "files/checks/", "files/src/", "files/host-contract.json"),
    "files/bin/",
)


def harness_of(specs: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file of the harness by its path in the image.

    `specs` are the digests of a spec's files (`sha256:…`) by their names in the spec's folder, and
    of compiled programs as `programs_in` has them.
    """
    return {
        name.replace("files/", FOLDER, 1): str(digest).removeprefix("sha256:")
        for name, digest in specs.items()
        if name.startswith(_COPIED)
    }


def within(harness: Mapping[str, str]) -> dict[str, str]:
    """Return a harness by paths below its folder, as evidence has it."""
    return {path.removeprefix(FOLDER): digest for path, digest in harness.items()}


def carried_harness(tree: FormatTree) -> dict[str, str]:
    """Return the SHA-256 of each file of the harness in an artifact, by paths below its folder."""
    return {
        path.removeprefix(FOLDER): entry.content
        for path, entry in sorted(tree.entries.items())
        if path.startswith(FOLDER) and entry.kind == "file"
    }


def altered_harness(target: ProofTarget, trees: Mapping[str, FormatTree]) -> tuple[Outcome, ...]:
    """Return a failure where a file of the harness is not the builder's; none without checks.

    Skipped where nobody says what the builder gave the image, as of one that was pulled.
    """
    if not target.checks:
        return ()
    if not target.harness:
        reason = "not compared: nothing here says which scripts the builder gave the image"
        return (Outcome(check=HARNESS_CHECK, outcome=SKIPPED, reason=reason),)
    faults = [fault for name, tree in trees.items() for fault in _altered(target, name, tree)]
    reason = one_line("; ".join(faults))[:LONGEST]
    return (Outcome(check=HARNESS_CHECK, outcome=FAILED, reason=reason),) if faults else ()


def _altered(target: ProofTarget, name: str, tree: FormatTree) -> Iterator[str]:
    folders = [f"{SCRIPTS}/"]
    if any(path.startswith(PROGRAMS) for path in target.harness):  # earlier manifests have none
        folders.append(PROGRAMS)
    files = {path for path in tree.entries if path.startswith(tuple(folders))}
    for path in sorted(files | target.harness.keys()):
        entry = tree.entries.get(path)
        if entry is None:
            yield f"{name}: /{path} is missing"
        elif entry.kind != "file" or entry.content != target.harness.get(path):
            yield f"{name}: /{path} is not the builder's"


def carried_checks(tree: FormatTree) -> dict[str, InImageCheck]:
    """Return the checks in an image by name, in their order.

    Those with `gpu` in their name need one: that is how this project's are named.
    """
    scripts = {
        match[1]: f"/{path}"
        for path, entry in sorted(tree.entries.items())
        if entry.kind == "file" and (match := _SCRIPT.fullmatch(path))
    }
    return {
        name: InImageCheck(
            name=name,
            script=script,
            needs=("gpu",) if "gpu" in name.split("-") else (),
            timeout_s=_TIMEOUT_S,
        )
        for name, script in scripts.items()
    }


def with_carried(target: ProofTarget, trees: Collection[FormatTree]) -> ProofTarget:
    """Return a target with the scripts of its image, and with checks that only the image names.

    A check without a script in the image keeps a path at which none is, and fails. Without any
    tree, nothing is known of the image.
    """
    if not trees:
        return target
    carried = {name: check for tree in trees for name, check in carried_checks(tree).items()}
    scripts = {name: check.script for name, check in carried.items()}
    declared = {
        check.name: dataclasses.replace(
            check, script=scripts.get(check.name, f"/{SCRIPTS}/{check.name}")
        )
        for check in target.checks
    }
    more = [check for name, check in carried.items() if name not in declared]
    return dataclasses.replace(target, checks=(*declared.values(), *more))


def lacking_mpi(target: ProofTarget) -> tuple[Outcome, ...]:
    """Return a failure where the cell of an image has an MPI and the image no check of it."""
    if target.mpi == NONE or agreement.MPI in {check.name for check in target.checks}:
        return ()
    reason = f"the image is for {target.mpi}, and has no check {agreement.MPI}"
    return (Outcome(check=agreement.MPI, outcome=FAILED, reason=reason),)
