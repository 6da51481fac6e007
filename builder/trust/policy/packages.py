"""The rule on how old the packages of an image are."""

from __future__ import annotations

from builder.model.errors import counted
from builder.trust.policy.choosing import choose
from builder.trust.policy.gathered import Gathered
from builder.trust.policy.outcomes import Ruling, not_asked, passed, refused
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
