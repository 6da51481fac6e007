"""Facts and claims gathered about an image, and the rulings on them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from builder.system.terminal import printable

SIGNATURE, EVIDENCE, PROVENANCE, BILL = "signature", "evidence", "provenance", "sbom"
OTHER = "other"  # unknown kind: no trusted key signed it
KINDS = (SIGNATURE, EVIDENCE, PROVENANCE, BILL, OTHER)
YES, NO, UNKNOWN = "yes", "no", "cannot tell"  # as builder.host answers

# Formats to pull, each with the artifact formats whose checks count for it. For ch-run, a pulled
# folder is the same as an unpacked tarball.
PULLED: Mapping[str, tuple[str, ...]] = {
    "oci": ("oci",),
    "sif": ("sif",),
    "charliecloud": ("charliecloud",),
    "directory": ("charliecloud", "oci"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageIndices:
    """Age of the package indices that an image was built with.

    For each suite the oldest index counts. `date` is the newest of these dates: an archive of
    security updates is newer than its release. `behind_days` is the largest number of days by which
    an index was older than the newest one of its mirror.
    """

    date: dt.datetime
    behind_days: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One run of an image's checks. Times are in UTC; `capabilities` are 70 for 7.0.

    `outcomes` has `passed`, `failed` or `skipped` by check. `driver` and `capabilities` are empty
    if the container had no GPU. `started` is None in a recorded case that does not state it.
    """

    started: dt.datetime | None = None
    finished: dt.datetime
    format: str
    runner: str = ""
    launcher: str = ""
    emulated: bool = False
    architecture: str
    outcomes: Mapping[str, str]
    driver: str = ""
    capabilities: tuple[int, ...] = ()
    tree: str = ""
    packages: PackageIndices | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """The builder and the sources of an image; `finished` is None if it is not stated.

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
    """A bill of materials; `complete` unless it declares itself incomplete."""

    packages: tuple[Package, ...] = ()
    complete: bool = True


Content = Evidence | Provenance | Bill


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement about digests, signed or not.

    `key` names the policy's key that signed it; it is empty if no key did, and `fault` has the
    reason. `signer` is the identity in a certificate; several of the policy's keys may match it.
    Evidence, provenance and bills without a fault have a content. `digest` is the source.
    """

    kind: str
    subjects: tuple[str, ...] = ()
    key: str = ""
    fault: str = ""
    content: Content | None = None
    digest: str = ""
    signer: str = ""

    @property
    def is_trusted(self) -> bool:
        """True if one of the policy's keys signed it, and it has no fault."""
        return bool(self.key) and not self.fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image of one architecture: the digests of its manifest and of the index that names it.

    `asked` is the requested architecture, `architecture` that of the configuration. `created` is
    the image's own statement.
    """

    digest: str
    architecture: str
    asked: str
    index: str = ""
    created: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledFor:
    """The facts about a host that the choice of evidence needs; None means unknown."""

    capabilities: tuple[int, ...] | None = None
    driver: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """The answer of `check-host` for this image and host, with the reasons."""

    answer: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Previous:
    """The last image pulled under the same reference; `times` are those of `times_of`."""

    digest: str
    times: Mapping[str, dt.datetime] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """All facts and claims that a policy judges.

    `artifact` is the digest of the published SIF or tarball, if one of these is pulled; else it is
    empty.
    """

    reference: str
    format: str
    now: dt.datetime
    image: Image
    proofs: tuple[Claim, ...] = ()
    artifact: str = ""
    host: PulledFor = field(default_factory=PulledFor)
    contract: Contract | None = None
    previous: Previous | None = None

    @property
    def digests(self) -> list[str]:
        """The digests that proof of the image may name: its own and that of its index."""
        return [digest for digest in (self.image.digest, self.image.index) if digest]


PASSED, REFUSED, NOT_ASKED = "passed", "refused", "not asked"
RESULTS = (PASSED, REFUSED, NOT_ASKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """The outcome of one rule, the reason and, for a refusal, the fix."""

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


_LONGEST = 1000  # characters of a reason
_MARKS = {PASSED: "✓", REFUSED: "✗", NOT_ASKED: "-"}


def as_lines(rulings: Iterable[Ruling], *, fixes: bool = True) -> list[str]:
    """Return a line for each ruling, and a second line with the fix for a refusal.

    Reasons contain untrusted text: they are made printable and cut off.
    """
    rulings = list(rulings)
    width = max((len(ruling.rule) for ruling in rulings), default=0)
    lines = []
    for ruling in rulings:
        reason = printable(ruling.reason, most=_LONGEST)
        lines.append(
            f"  {_MARKS[ruling.result]} {ruling.result:9}  {ruling.rule:{width}}  {reason}"
        )
        if fixes and ruling.fix and ruling.result == REFUSED:
            lines.append(" " * (15 + width + 1) + f"fix: {printable(ruling.fix)}")
    return lines
