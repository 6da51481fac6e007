"""Apply all rules of a policy to the facts gathered about one image."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from builder.model.errors import counted
from builder.trust.policy import rules
from builder.trust.policy.evidence import choose, trusted
from builder.trust.policy.records import (
    EVIDENCE,
    PROVENANCE,
    REFUSED,
    Gathered,
    Previous,
    Ruling,
    not_asked,
    passed,
    refused,
)
from builder.trust.policy.rules import day_of, short
from builder.trust.policy.site_policy import Policy

_ON_PURPOSE = "if this is intended, name the image by digest, or set rollback: accepted"
WITHOUT_DIGESTS = "if this is intended, set rollback: accepted in the policy"
_TIMES = {"provenance": "provenance time", "created": "creation time", "evidence": "evidence time"}


def rollback(policy: Policy, gathered: Gathered) -> Ruling:
    """The tag's image is not older than at the last pull."""
    rule, last = "rollback", gathered.previous
    if not policy.rollback:
        return not_asked(rule, "the policy accepts older images")
    if last is None:
        return not_asked(rule, "nothing was pulled under this reference before")
    if last.digest == gathered.image.digest:
        return passed(rule, "the same image as at the last pull")
    return _by_time(rule, times_of(gathered), last)


def _by_time(rule: str, now: Mapping[str, dt.datetime], last: Previous) -> Ruling:
    for kind, time in _TIMES.items():
        if kind in last.times and kind not in now:
            reason = f"the last pulled image has a {time}, but this image has none"
            return refused(rule, reason, _ON_PURPOSE)
        if kind in last.times and now[kind] > last.times[kind]:
            days = f"{day_of(now[kind])}, after {day_of(last.times[kind])}"
            return passed(rule, f"newer than the last pulled image by {time}: {days}")
        if kind in last.times and now[kind] < last.times[kind]:
            reason = f"older than the last pulled image by {time}: {day_of(now[kind])}"
            return refused(rule, reason, _ON_PURPOSE)
    reason = f"not the last pulled image ({short(last.digest)}), and it is unknown which is newer"
    return refused(rule, reason, _ON_PURPOSE)


def times_of(gathered: Gathered) -> dict[str, dt.datetime]:
    """Return the times of an image by source: provenance, configuration, first evidence."""

    def finished(kind: str) -> list[dt.datetime]:
        claims = trusted(gathered.proofs, kind, gathered.digests)
        times = [getattr(claim.content, "finished", None) for claim in claims]
        return [time for time in times if time is not None]

    times = {
        "provenance": max(finished(PROVENANCE), default=None),
        "evidence": min(finished(EVIDENCE), default=None),
        "created": gathered.image.created,
    }
    return {kind: time for kind, time in times.items() if time is not None}


_FIX = "ask the publisher of the image to build it again, or raise evidence.max_index_age"


def package_index(policy: Policy, gathered: Gathered) -> Ruling:
    """The package indices that the image was built with are not too old.

    They were also not too far behind the mirror's complete indices.
    """
    rule, limit = "package index", policy.evidence.max_index_age
    if limit is None:
        return not_asked(rule, "the policy sets no evidence.max_index_age")
    runs = choose(policy, gathered).runs
    if not runs:
        return not_asked(rule, "there is no evidence that counts")
    known = [run.packages for run in runs if run.packages]
    if not known:
        return refused(rule, "no evidence states how old the image's package indices are", _FIX)
    most = counted(limit.days, "day")
    date, behind = min(index.date for index in known), max(index.behind_days for index in known)
    shown = f"{date.date().isoformat()}, {counted((gathered.now - date).days, 'day')} ago"
    if gathered.now - date > limit:
        return refused(rule, f"its packages are from {shown}; at most {most} are allowed", _FIX)
    if behind > limit.days:
        reason = f"a package index was {behind} days behind its mirror; at most {most} are allowed"
        return refused(rule, reason, _FIX)
    return passed(rule, f"its packages are from {shown}")


# In display order. `rules.tree` is applied after the layers are unpacked.
RULES: Mapping[str, Callable[[Policy, Gathered], Ruling]] = {
    "identity": rules.identity,
    "architecture": rules.architecture,
    "signature": rules.signature,
    "dates": rules.dates,
    "evidence": rules.evidence,
    "checks": rules.checks,
    "age": rules.age,
    "package index": package_index,
    "artifact": rules.artifact,
    "provenance": rules.provenance,
    "sbom": rules.bill,
    "host contract": rules.contract,
    "rollback": rollback,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """All rulings. `evidence` are the digests of the evidence that counted, newest first;
    `tree` is the tree digest in the newest evidence."""

    rulings: tuple[Ruling, ...]
    evidence: tuple[str, ...] = ()
    tree: str = ""

    @property
    def refused(self) -> tuple[Ruling, ...]:
        """The rulings that refuse the image; it is accepted if there are none."""
        return tuple(ruling for ruling in self.rulings if ruling.result == REFUSED)


def judge(policy: Policy, gathered: Gathered) -> Judgement:
    """Apply every rule, even after a refusal: all reasons are shown at once."""
    chosen = choose(policy, gathered)
    return Judgement(
        rulings=tuple(rule(policy, gathered) for rule in RULES.values()),
        evidence=tuple(claim.digest for claim in chosen.claims),
        tree=chosen.runs[0].tree if chosen.runs else "",
    )
