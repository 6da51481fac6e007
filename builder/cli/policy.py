"""`build-images policy test`: test a policy on recorded cases."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from builder.cli.options import Options, Parser, a_path
from builder.model.errors import counted
from builder.system.terminal import printable
from builder.trust.policy.cases import Tried, read_cases, try_case
from builder.trust.policy.records import as_lines
from builder.trust.policy.site_policy import read_policy

_DESCRIPTION = """\
Test a policy on recorded cases, and report those whose outcome is not the expected one.

A case has the facts gathered about an image, and the expected outcome of each rule: see
docs/pulling.md. Every pull's receipt has a case. A case with its own policy is judged by that one.
"""


class PolicyOptions(Options):
    cases: Path
    policy: Path | None
    explain: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("kind", metavar="test", choices=("test",), help="what to do")
    text = "folder of the cases: *.yaml, *.yml, *.json"
    parser.add_argument("cases", type=a_path, metavar="DIR", nargs="?", default=".", help=text)
    parser.add_path("--policy", "for cases without a policy")
    parser.add_flag("--explain", "show the outcome of every rule")
    parser.add_json()


def run(options: PolicyOptions) -> int:
    """Test a policy on recorded cases; return 1 if an outcome is not the expected one."""
    policy = read_policy(options.policy) if options.policy else None
    tried = [try_case(case, policy) for case in read_cases(options.cases)]
    wrong = [trial for trial in tried if trial.wrong]
    if options.json:
        options.print_json([_as_json(trial) for trial in tried])
    else:
        _show(tried, explain=options.explain)
        print(f"{counted(len(tried), 'case')}, {len(wrong)} not as expected")
    return 1 if wrong else 0


def _show(tried: list[Tried], *, explain: bool) -> None:
    for trial in tried:
        mark = "✗" if trial.wrong else "✓"
        about = f": {trial.case.about}" if trial.case.about else ""
        print(printable(f"{mark} {trial.case.name}{about}"))
        for line in trial.wrong:
            print(f"    {printable(line)}")
        if explain:
            print("\n".join(as_lines(trial.rulings, fixes=False)))


def _as_json(trial: Tried) -> dict[str, object]:
    return {
        "case": trial.case.name,
        "as_expected": not trial.wrong,
        "wrong": list(trial.wrong),
        "rules": [asdict(ruling) for ruling in trial.rulings],
    }
