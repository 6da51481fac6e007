"""The negative control of GPU checks: an image's GPU program in a container that is given no GPU.

The image's own check `gpu-control` takes the GPUs from a program by a variable, in a container that
has them. Here the same program is run in a container to which the same runner hands over none.
"""

from __future__ import annotations

import dataclasses

from builder.model import PASSED, SKIPPED, Outcome
from builder.model.errors import StepFailed
from builder.model.manifest import InImageCheck
from builder.verify.checks import Target, all_failed, outcome_of
from builder.verify.runners import Container, Kind
from builder.verify.wording import LONGEST

WITHHELD_CHECK = "gpu-withheld"
_CONTROL = "gpu-control"
_FOUND = "gpu-found"  # passes where the driver gives a GPU
_SCRIPT = "/opt/build-images/src/gpu-control.sh"


def withheld(target: Target, kind: Kind, container: Container) -> tuple[Outcome, ...]:
    """The outcome of the program in a second container, without the GPUs that `container` has.

    None where that has no GPUs either, so that `gpu-control` saw what there is to see, and for an
    image without that check. Skipped where the GPUs are there although nobody handed them over:
    Docker with NVIDIA's runtime as its own gives them to all images that ask by their variables.
    """
    checks = {check.name: check for check in target.checks}
    if not container.gpu or _CONTROL not in checks:
        return ()
    script = InImageCheck(
        name=WITHHELD_CHECK, script=_SCRIPT, needs=(), timeout_s=checks[_CONTROL].timeout_s
    )
    try:
        with kind.open(dataclasses.replace(container, gpu=False)) as runner:
            there = outcome_of(checks[_FOUND], runner) if _FOUND in checks else None
            if there and there.outcome == PASSED:
                return (_not_withheld(there),)
            return (outcome_of(script, runner, ["sh", _SCRIPT, "start"]),)
    except StepFailed as error:
        return all_failed([WITHHELD_CHECK], "a container without GPUs could not be started", error)


def _not_withheld(there: Outcome) -> Outcome:
    reason = f"not judged: GPUs are there though none was handed over: {there.reason}"
    return Outcome(check=WITHHELD_CHECK, outcome=SKIPPED, reason=reason[:LONGEST])
