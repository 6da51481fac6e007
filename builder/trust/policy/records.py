"""What was gathered about an image before it is judged: who says what, and of which digest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from builder.system.terminal import printable

SIGNATURE, EVIDENCE, PROVENANCE, BILL = "signature", "evidence", "provenance", "sbom"
OTHER = "other"  # what it would be, had it been signed by somebody who is trusted, is not known
KINDS = (SIGNATURE, EVIDENCE, PROVENANCE, BILL, OTHER)
YES, NO, UNKNOWN = "yes", "no", "cannot tell"  # as builder.host answers

# What is pulled, and whose checks speak for it: those that were run in an artifact of one of these
# formats. A folder is started by ch-run, as what comes out of a tarball is.
PULLED: Mapping[str, tuple[str, ...]] = {
    "oci": ("oci",),
    "sif": ("sif",),
    "charliecloud": ("charliecloud",),
    "directory": ("charliecloud", "oci"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageIndices:
    """How old the indices of packages are that an image was made with.

    Of each suite the oldest state counts, and of these the newest is the `date`: an archive of
    security updates is younger than the release that it is for. `behind_days` is the most by which
    one was older than what its mirror told of.
    """

    date: dt.datetime
    behind_days: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One run of an image's checks. Times are in UTC; `capabilities` are 70 for 7.0.

    `outcomes` has `passed`, `failed` or `skipped` by check. `driver` and `capabilities` are empty
    where no GPU was handed over.
    """

    started: dt.datetime
    finished: dt.datetime
    format: str
    architecture: str
    outcomes: Mapping[str, str]
    runner: str = ""
    launcher: str = ""
    emulated: bool = False
    driver: str = ""
    capabilities: tuple[int, ...] = ()
    tree: str = ""
    packages: PackageIndices | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Who built an image from what; `finished` is when, if it says.

    `recipe` and `tag` are those of the cell that was built; both are empty if it names none.
    """

    builder: str
    sources: tuple[str, ...] = ()
    finished: dt.datetime | None = None
    recipe: str = ""
    tag: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A component of a bill of materials."""

    name: str
    version: str = ""
    licences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """A bill of materials; `complete` unless it says itself that something is missing on it."""

    packages: tuple[Package, ...] = ()
    complete: bool = True


Content = Evidence | Provenance | Bill


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Something that somebody says of digests.

    `key` names the policy's key that signed it; it is empty if none did, and `fault` then says what
    is wrong. `signer` is whom a certificate names; several of the policy's keys may mean the same.
    A proof of one of the kinds with a content has it unless there is a fault. `digest` is where it
    was found.
    """

    kind: str
    subjects: tuple[str, ...] = ()
    key: str = ""
    fault: str = ""
    content: Content | None = None
    digest: str = ""
    signer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image of one architecture: its manifest's digest, and that of the index it is named by.

    `asked` is the architecture that was asked for, `architecture` what its configuration says.
    `created` is what the image says of itself.
    """

    digest: str
    architecture: str
    asked: str
    index: str = ""
    created: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledFor:
    """The host as far as the choice of evidence needs it; None is not known."""

    capabilities: tuple[int, ...] | None = None
    driver: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """What `check-host` answers for this image and host, with the reasons."""

    answer: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Previous:
    """What was pulled last under the same reference; `times` are those of `rollback.times_of`."""

    digest: str
    times: Mapping[str, dt.datetime] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """All that a policy judges.

    `artifact` is the digest of the published SIF or tarball, where one of these is pulled; it is
    empty if there is none.
    """

    reference: str
    format: str
    now: dt.datetime
    image: Image
    proofs: tuple[Proof, ...] = ()
    artifact: str = ""
    host: PulledFor = field(default_factory=PulledFor)
    contract: Contract | None = None
    previous: Previous | None = None


PASSED, REFUSED, NOT_ASKED = "passed", "refused", "not asked"
RESULTS = (PASSED, REFUSED, NOT_ASKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """The outcome of one rule: why, and if it refuses, what can be done."""

    rule: str
    result: str
    reason: str
    fix: str = ""


def passed(rule: str, reason: str) -> Ruling:
    return Ruling(rule=rule, result=PASSED, reason=reason)


def refused(rule: str, reason: str, fix: str) -> Ruling:
    return Ruling(rule=rule, result=REFUSED, reason=reason, fix=fix)


def not_asked(rule: str, reason: str) -> Ruling:
    return Ruling(rule=rule, result=NOT_ASKED, reason=reason)


_LONGEST = 1000  # letters of a reason
_MARKS = {PASSED: "✓", REFUSED: "✗", NOT_ASKED: "-"}


def as_lines(rulings: Iterable[Ruling], *, fixes: bool = True) -> list[str]:
    """A line for each ruling, and one more below a refusal that says what can be done.

    Much of a reason was written by somebody else: it can be printed, steers no terminal, and has an
    end.
    """
    some = list(rulings)
    width = max((len(one.rule) for one in some), default=0)
    lines = []
    for one in some:
        reason = printable(one.reason, most=_LONGEST)
        lines.append(f"  {_MARKS[one.result]} {one.result:9}  {one.rule:{width}}  {reason}")
        if fixes and one.fix and one.result == REFUSED:
            lines.append(" " * (15 + width + 1) + f"fix: {printable(one.fix)}")
    return lines
