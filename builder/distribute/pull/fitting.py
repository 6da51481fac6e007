"""What the image's host contract says of the host that it is pulled for."""

from __future__ import annotations

from collections.abc import Mapping

from builder.facts import NO_FACTS
from builder.host import judge
from builder.host.contracts import contract_from_labels
from builder.host.record import NONE, Host
from builder.host.verdict import all_of
from builder.model.errors import BadInput
from builder.trust.policy.gathered import UNKNOWN, YES, Contract, PulledFor


def contract_of(
    labels: Mapping[str, str], shown: str, host: Host, *, emulated: bool
) -> Contract | None:
    """Whether an image runs on a host, by its labels; None if they tell of no contract.

    Runtimes and launchers are not asked for: what is pulled on one machine is started on others.
    Facts name what to take instead, which `check-host` tells; no answer depends on them.
    """
    try:
        contract = contract_from_labels(labels, shown)
    except BadInput as error:
        return Contract(answer=UNKNOWN, reasons=(" ".join(str(error).split()),))
    if contract is None:
        return None
    rules = judge(contract, host, NO_FACTS, emulated=emulated).rules
    answer = all_of(one.answer for one in rules)
    reasons = [f"{one.rule}: {one.reason}" for one in rules if one.answer == answer]
    return Contract(answer=answer, reasons=() if answer == YES else tuple(reasons))


def pulled_for(host: Host) -> PulledFor:
    """A host as far as the choice of evidence needs it."""
    devices = host.gpu.devices
    some = None if devices is None else [one.capability for one in devices]
    known = None if some is None or None in some else tuple(one for one in some if one is not None)
    driver = host.gpu.driver
    return PulledFor(
        capabilities=known,
        driver=None if driver == NONE else driver,
    )
