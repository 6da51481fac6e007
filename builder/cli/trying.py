"""`build-images policy test`: a policy, and what it makes of recorded cases."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from builder.model.errors import counted
from builder.system.terminal import printable
from builder.trust.policy.cases import Tried, read_cases, try_case
from builder.trust.policy.reading import read_policy
from builder.trust.policy.render import as_lines

if TYPE_CHECKING:
    from builder.cli.options import Options


def try_policy(options: Options) -> int:
    """Try a policy on recorded cases; 1 if it judges one of them otherwise than expected."""
    given = options.pull
    policy = read_policy(given.policy) if given.policy else None
    tried = [try_case(one, policy) for one in read_cases(given.cases)]
    wrong = [one for one in tried if one.wrong]
    if options.json:
        print(json.dumps([_as_json(one) for one in tried], indent=1))
    else:
        _show(tried, explain=given.explain)
        print(f"{counted(len(tried), 'case')}, {len(wrong)} not as expected")
    return 1 if wrong else 0


def _show(tried: list[Tried], *, explain: bool) -> None:
    for one in tried:
        mark = "✗" if one.wrong else "✓"
        about = f": {one.case.about}" if one.case.about else ""
        print(printable(f"{mark} {one.case.name}{about}"))
        for line in one.wrong:
            print(f"    {printable(line)}")
        if explain:
            print("\n".join(as_lines(one.rulings, fixes=False)))


def _as_json(one: Tried) -> dict[str, object]:
    return {
        "case": one.case.name,
        "as_expected": not one.wrong,
        "wrong": list(one.wrong),
        "rules": [asdict(ruling) for ruling in one.rulings],
    }
