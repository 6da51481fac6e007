"""All rules of a policy, applied to what was gathered about one image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builder.trust.policy import rules
from builder.trust.policy.choosing import choose
from builder.trust.policy.gathered import Gathered
from builder.trust.policy.outcomes import REFUSED, Ruling
from builder.trust.policy.packages import package_index
from builder.trust.policy.rollback import rollback
from builder.trust.policy.values import Policy

# In the order in which they are shown. `rules.tree` is asked when the layers are there.
RULES: tuple[Callable[[Policy, Gathered], Ruling], ...] = (
    rules.identity,
    rules.architecture,
    rules.signature,
    rules.dates,
    rules.evidence,
    rules.checks,
    rules.age,
    package_index,
    rules.artifact,
    rules.provenance,
    rules.bill,
    rules.contract,
    rollback,
)
RULE_NAMES = (
    "identity",
    "architecture",
    "signature",
    "dates",
    "evidence",
    "checks",
    "age",
    "package index",
    "artifact",
    "provenance",
    "sbom",
    "host contract",
    "rollback",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Every ruling. `evidence` are the digests of the evidence that counted, the newest first;
    `tree` is the tree digest that the newest is about."""

    rulings: tuple[Ruling, ...]
    evidence: tuple[str, ...] = ()
    tree: str = ""

    @property
    def refused(self) -> tuple[Ruling, ...]:
        """The rulings that refuse the image; it is accepted if there are none."""
        return tuple(one for one in self.rulings if one.result == REFUSED)


def judge(policy: Policy, gathered: Gathered) -> Judgement:
    """Apply every rule, also after one has refused: all reasons are shown at once."""
    chosen = choose(policy, gathered)
    return Judgement(
        rulings=tuple(rule(policy, gathered) for rule in RULES),
        evidence=tuple(one.digest for one in chosen.proofs),
        tree=chosen.runs[0].tree if chosen.runs else "",
    )
