"""The options of `pull` and `policy`, and the value that they become."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from builder.cli.arguments import (
    Commands,
    a_path,
    command,
    common_options,
    not_empty,
    output,
    progress_options,
)

FORMATS = ("oci", "sif", "charliecloud", "directory")
POLICY = Path("/etc/build-images/policy.yaml")
PULL = """\
Bring an image from a registry, if it is proven.

What a tag names is asked once; all that follows is by digest. Everything that is said of the image
is gathered and held against the policy: who signed it; which checks passed, when, and on which
class of hosts; who built it from what; what is in it; whether it runs on this host; whether it is
older than what was pulled last. Then it is brought, every byte is checked against its digest, and
its tree against the one that was verified. What is refused leaves nothing behind.

No engine, no cosign and no root are needed. `sif` and `charliecloud` are the files that were
published with the image, `oci` and `directory` are made of its layers.
"""
PULL_CODES = """\
exit codes:
  0  the image is there, whole, with a receipt of what was decided
  1  the registry has no such image, or goes on failing
  2  bad input or bad usage: no such policy, or one with faults; another image is at that place
  4  the registry cannot be reached or does not let us, or there is no space
  5  refused: a line for each rule that refuses, with the reason and what can be done
Of several references, all are tried, and the highest of their codes is given.

examples:
  build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format sif
  build-images pull REFERENCE --format directory --policy policy.yaml --explain
  build-images pull REFERENCE REFERENCE REFERENCE --format oci        layers that they share once
  build-images pull REFERENCE --format oci --dry-run --explain       only judge it
  build-images pull REFERENCE --format sif --arch ppc64le --host node.json
"""
POLICY_TEST = """\
Try a policy on recorded cases, and say which of them it judges otherwise than expected.

A case is what was gathered about an image, and what is expected of each rule: docs/pulling.md. The
receipt of every pull holds one. A case that brings a policy of its own is judged by that.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """What was asked of `pull` or `policy test`. An empty `arch` is this machine's."""

    references: tuple[str, ...] = ()
    format: str = ""
    arch: str = ""
    policy: Path | None = None
    output: Path | None = None
    cases: Path = Path()
    explain: bool = False


def declare(commands: Commands) -> None:
    """The two commands."""
    about = "bring an image from a registry, if it is proven"
    pull = command(commands, "pull", about, [common_options(), progress_options()])
    pull.description, pull.epilog = PULL, PULL_CODES
    pull.add_argument(
        "references",
        metavar="REFERENCE",
        nargs="+",
        help="HOST/NAMESPACE/NAME:TAG, or @sha256:…; each is judged by itself",
    )
    pull.add_argument("--format", choices=FORMATS, required=True, help="what is to be on disk")
    pull.add_argument("--policy", type=a_path, metavar="FILE", help=f"default: {POLICY}")
    pull.add_argument("--arch", type=not_empty, metavar="ARCH", help="default: that of the host")
    output(
        pull,
        "the folder that is made (default: NAME-TAG-ARCH-FORMAT, here); of several references, "
        "the one in which theirs are made",
    )
    pull.add_argument(
        "--host",
        type=a_path,
        metavar="FILE",
        help="pull for the host of a record (check-host --record)",
    )
    pull.add_argument(
        "--emulated",
        action="store_true",
        help="let programs of another architecture run under QEMU",
    )
    pull.add_argument(
        "--plain-http",
        metavar="HOST",
        action="append",
        help="ask this registry without TLS (may be repeated; loopback is, where it has none)",
    )
    pull.add_argument("--explain", action="store_true", help="show the outcome of every rule")
    pull.add_argument("--dry-run", action="store_true", help="judge it, and bring nothing")
    pull.add_argument("--json", action="store_true", help="print the receipt as JSON")
    policy = command(commands, "policy", "try a policy on recorded cases", [common_options()])
    policy.description = POLICY_TEST
    policy.add_argument("kind", metavar="test", choices=("test",), help="what to do")
    policy.add_argument(
        "cases",
        type=a_path,
        metavar="DIR",
        nargs="?",
        default=".",
        help="the cases, *.yaml and *.json",
    )
    policy.add_argument("--policy", type=a_path, metavar="FILE", help="for cases that bring none")
    policy.add_argument("--explain", action="store_true", help="show the outcome of every rule")
    policy.add_argument("--json", action="store_true", help="as JSON")


def pull_options(given: argparse.Namespace) -> PullOptions:
    """What was given; the defaults for commands that have other options."""
    if given.command not in {"pull", "policy"}:
        return PullOptions()
    return PullOptions(
        references=tuple(getattr(given, "references", ())),
        format=getattr(given, "format", ""),
        arch=getattr(given, "arch", None) or "",
        policy=given.policy,
        output=getattr(given, "output", None),
        cases=getattr(given, "cases", Path()),
        explain=given.explain,
    )
