"""All rules of a policy, applied to what was gathered about one image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builder.model.errors import counted
from builder.trust.policy import rules
from builder.trust.policy.choosing import choose
from builder.trust.policy.gathered import Gathered
from builder.trust.policy.outcomes import REFUSED, Ruling, not_asked, passed, refused
from builder.trust.policy.rollback import rollback
from builder.trust.policy.values import Policy

_FIX = "ask whoever published the image to build it again, or raise evidence.max_index_age"


def package_index(policy: Policy, found: Gathered) -> Ruling:
    """The image was made with indices of packages that are not too old by now.

    Nor were they in the place of newer ones that the mirror had not whole.
    """
    rule, limit = "package index", policy.evidence.max_index_age
    if limit is None:
        return not_asked(rule, "the policy sets no evidence.max_index_age")
    runs = choose(policy, found).runs
    if not runs:
        return not_asked(rule, "there is no evidence that counts")
    known = [one.packages for one in runs if one.packages]
    if not known:
        return refused(rule, "no evidence says how old the image's package indices are", _FIX)
    most = counted(limit.days, "day")
    date, behind = min(one.date for one in known), max(one.behind_days for one in known)
    shown = f"{date.date().isoformat()}, {counted((found.now - date).days, 'day')} ago"
    if found.now - date > limit:
        return refused(rule, f"its packages are of {shown}; at most {most} are allowed", _FIX)
    if behind > limit.days:
        reason = f"a package index was {behind} days behind its mirror; at most {most} are allowed"
        return refused(rule, reason, _FIX)
    return passed(rule, f"its packages are of {shown}")


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
