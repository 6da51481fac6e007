"""Whether a tag names something older than it did at the last pull."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from builder.trust.policy.choosing import trusted
from builder.trust.policy.gathered import (
    EVIDENCE,
    PROVENANCE,
    Evidence,
    Gathered,
    Previous,
    Provenance,
)
from builder.trust.policy.outcomes import Ruling, not_asked, passed, refused
from builder.trust.policy.rules import day_of, digests_of, short
from builder.trust.policy.values import Policy

_ON_PURPOSE = "name it by digest, or say rollback: accepted, if it is meant"
WITHOUT_DIGESTS = "say rollback: accepted in the policy, if it is meant"  # where tags alone name it


def rollback(policy: Policy, found: Gathered) -> Ruling:
    """What a tag names now is not older than what it named at the last pull."""
    rule, last = "rollback", found.previous
    if not policy.rollback:
        return not_asked(rule, "the policy accepts older images")
    if last is None:
        return not_asked(rule, "nothing was pulled under this reference before")
    if last.digest == found.image.digest:
        return passed(rule, "the same image as at the last pull")
    return _by_time(rule, times_of(found), last)


def _by_time(rule: str, now: Mapping[str, dt.datetime], last: Previous) -> Ruling:
    for kind in ("provenance", "created", "evidence"):
        if kind in last.times and kind not in now:
            reason = f"the image at the last pull had a time by its {kind}, and this one has none"
            return refused(rule, reason, _ON_PURPOSE)
        if kind not in last.times or now[kind] == last.times[kind]:
            continue
        days = f"{day_of(now[kind])}, after {day_of(last.times[kind])}"
        if now[kind] > last.times[kind]:
            return passed(rule, f"newer than at the last pull, by its {kind}: {days}")
        reason = f"older than at the last pull, by its {kind}: {day_of(now[kind])}"
        return refused(rule, reason, _ON_PURPOSE)
    reason = f"another image than at the last pull ({short(last.digest)}), and nothing says which "
    return refused(rule, reason + "is newer", _ON_PURPOSE)


def times_of(found: Gathered) -> dict[str, dt.datetime]:
    """When an image came to be: by its provenance, by itself, by its first evidence."""
    digests = digests_of(found)
    contents = [
        proof.content
        for kind in (PROVENANCE, EVIDENCE)
        for proof in trusted(found.proofs, kind, digests)
    ]
    built = [c.finished for c in contents if isinstance(c, Provenance) and c.finished]
    checked = [c.finished for c in contents if isinstance(c, Evidence)]
    times = {"provenance": max(built, default=None), "evidence": min(checked, default=None)}
    times["created"] = found.image.created
    return {kind: time for kind, time in times.items() if time is not None}
