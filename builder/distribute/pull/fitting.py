"""The image's host contract, judged for the host that it is pulled for."""

from __future__ import annotations

from collections.abc import Mapping

from builder.facts import NO_FACTS
from builder.host import judge
from builder.host.record import NONE, Host
from builder.host.verdict import all_of
from builder.load.contracts import contract_from_labels
from builder.model.errors import BadInput
from builder.trust.policy.gathered import UNKNOWN, YES, Contract, PulledFor


def contract_of(
    labels: Mapping[str, str], shown: str, host: Host, *, emulated: bool
) -> Contract | None:
    """Judge by its labels if an image runs on a host; None if they hold no contract.

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
    answer = all_of(rule.answer for rule in rules)
    reasons = [f"{rule.rule}: {rule.reason}" for rule in rules if rule.answer == answer]
    return Contract(answer=answer, reasons=() if answer == YES else tuple(reasons))


def pulled_for(host: Host) -> PulledFor:
    """A host as far as the choice of evidence needs it."""
    devices = host.gpu.devices
    numbers = [None] if devices is None else [device.capability for device in devices]
    known = tuple(number for number in numbers if number is not None)
    driver = host.gpu.driver
    return PulledFor(
        capabilities=None if None in numbers else known,
        driver=None if driver == NONE else driver,
    )
