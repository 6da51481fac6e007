"""The checks that an image carries, which no manifest can take from it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from builder.artifacts import agreement
from builder.model import FAILED, NONE, Outcome
from builder.model.manifest import InImageCheck
from builder.verify.checks import Target
from builder.verify.trees import FormatTree

SCRIPTS = "opt/build-images/checks"
_SCRIPT = re.compile(r"[0-9]+-([a-z0-9][a-z0-9_-]*)")
_TIMEOUT_S = 900  # the longest that a check of this project has; an image does not say its own


def carried_checks(tree: FormatTree) -> dict[str, InImageCheck]:
    """The checks in an image by name, in their order.

    Those with `gpu` in their name need one: that is how this project's are named.
    """
    found = {}
    for path, entry in sorted(tree.entries.items()):
        folder, _, script = path.rpartition("/")
        name = _SCRIPT.fullmatch(script)
        if folder == SCRIPTS and entry.kind == "file" and name:
            needs = ("gpu",) if "gpu" in name[1].split("-") else ()
            found[name[1]] = InImageCheck(
                name=name[1], script=f"/{path}", needs=needs, timeout_s=_TIMEOUT_S
            )
    return found


def with_carried(target: Target, trees: Collection[FormatTree]) -> Target:
    """A target with the scripts that its image has, and with those checks that it did not name.

    A check without a script in the image keeps a path at which none is, and fails. Without any
    tree, nothing is known of the image.
    """
    if not trees:
        return target
    carried: dict[str, InImageCheck] = {}
    for tree in trees:
        carried |= carried_checks(tree)
    scripts = {name: check.script for name, check in carried.items()}
    declared = [
        dataclasses.replace(check, script=scripts.get(check.name, f"/{SCRIPTS}/{check.name}"))
        for check in target.checks
    ]
    names = {check.name for check in target.checks}
    more = tuple(check for name, check in carried.items() if name not in names)
    return dataclasses.replace(target, checks=(*declared, *more))


def lacking_mpi(target: Target) -> tuple[Outcome, ...]:
    """A failure, where the cell of an image has an MPI and the image no check of it."""
    if target.mpi == NONE or agreement.MPI in {check.name for check in target.checks}:
        return ()
    reason = f"the image is for {target.mpi}, and has no check {agreement.MPI}"
    return (Outcome(check=agreement.MPI, outcome=FAILED, reason=reason),)
