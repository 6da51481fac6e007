"""An image's contract and a host, held against each other: rule by rule, then together."""

from __future__ import annotations

from collections.abc import Callable

from builder.facts import NO_FACTS, Facts
from builder.host import gpus, machine
from builder.host.launchers import launched_by
from builder.host.records import Host
from builder.host.runtimes import started_by
from builder.host.verdict import Case, Finding, Verdict
from builder.model.contract import HostContract

_RULES: tuple[Callable[[Case], Finding | None], ...] = (
    machine.architecture,
    machine.processor,
    machine.kernel,
    gpus.driver,
    gpus.devices,
    gpus.capabilities,
)


def judge(
    contract: HostContract,
    host: Host,
    known: Facts = NO_FACTS,
    *,
    runtimes: tuple[str, ...] = (),
    launchers: tuple[str, ...] = (),
    emulated: bool = False,
) -> Verdict:
    """Whether an image runs on a host. A fact that is needed and not known never makes a yes.

    Without `runtimes`, any that is there may start it; without `launchers`, any way of starting
    ranks will do. `emulated` lets programs of another architecture run under QEMU.
    """
    case = Case(contract=contract, host=host, facts=known, emulated=emulated)
    found = [rule(case) for rule in _RULES]
    return Verdict(
        image=contract.image,
        host=host.name,
        rules=tuple(one for one in found if one is not None),
        runtimes=started_by(case, runtimes),
        launchers=launched_by(case, launchers),
        emulated=emulated and case.is_foreign,
    )
