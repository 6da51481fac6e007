"""Which evidence speaks for an image on a class of hosts, and what it says of each check."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.model.cells import FAILED, PASSED
from builder.model.versions import meets
from builder.trust.policy.records import EVIDENCE, OTHER, PULLED, Evidence, Gathered, Proof
from builder.trust.policy.site_policy import SAME, Policy, WantedHosts

BY_NO_KEY = "is by no key of the policy"
OF_ANOTHER = "is of another image"
_MOST_REASONS = 5  # that are shown
_EMULATED = "is emulated, which is not native"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The evidence that counts, the newest first, and how much does not, by reason."""

    proofs: tuple[Proof, ...]
    left_out: Mapping[str, int]

    @property
    def runs(self) -> tuple[Evidence, ...]:
        """What the evidence that counts says."""
        return tuple(run_of(one) for one in self.proofs)

    @property
    def why_none(self) -> str:
        """Why evidence was left out, in words."""
        return counted_reasons(self.left_out) or "there is none"

    @property
    def only_emulated(self) -> bool:
        """True if some would count, were it not emulated."""
        return not self.proofs and _EMULATED in self.left_out


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is known of one check: its outcome, and the run that decides it."""

    outcome: str
    run: Evidence


def counted_reasons(reasons: Mapping[str, int]) -> str:
    """Return how many proofs do not count for each reason; of many reasons, the first ones.

    Whoever may push can have a thousand reasons of a line each.
    """
    shown = [f"{number} {reason}" for reason, number in list(reasons.items())[:_MOST_REASONS]]
    if rest := sum(list(reasons.values())[_MOST_REASONS:]):
        shown.append(f"{rest} for other reasons")
    return "; ".join(shown)


def run_of(proof: Proof) -> Evidence:
    """The content of a piece of evidence."""
    assert isinstance(proof.content, Evidence)
    return proof.content


def trusted(proofs: Sequence[Proof], kind: str, digests: Sequence[str]) -> list[Proof]:
    """The proofs of a kind that a trusted key signed, and that are about one of some digests."""
    return [
        one
        for one in proofs
        if one.kind == kind and not one.fault and one.key and set(digests) & set(one.subjects)
    ]


def choose(policy: Policy, gathered: Gathered) -> Chosen:
    """The evidence about this very image, from hosts of the class that the policy asks for."""
    found, left_out = [], dict[str, int]()
    for proof in gathered.proofs:
        if proof.kind not in {EVIDENCE, OTHER} or _is_other(proof):
            continue
        if reason := _why_not(proof, policy, gathered):
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            found.append(proof)
    newest_first = sorted(found, key=lambda one: (run_of(one).finished, one.digest), reverse=True)
    return Chosen(proofs=tuple(newest_first), left_out=left_out)


def _is_other(proof: Proof) -> bool:
    """Whether it is something else that a trusted key signed, which is nothing that is judged."""
    return proof.kind == OTHER and bool(proof.key) and not proof.fault


def newest_proven(policy: Policy, gathered: Gathered, artifacts: Sequence[str]) -> str:
    """Of several published files of one format, the one that the newest evidence is about.

    An image that was packed again has several. Without any that has evidence it is the first;
    empty if there is none.
    """
    newest = dict[str, tuple[dt.datetime, str]]()
    signed = tuple(one for one in gathered.proofs if one.key and not one.fault)
    for one in artifacts:
        chosen = choose(policy, dataclasses.replace(gathered, artifact=one, proofs=signed))
        if chosen.proofs:
            newest[one] = (chosen.runs[0].finished, one)
    return max(newest, key=newest.__getitem__, default=next(iter(artifacts), ""))


def findings(runs: Sequence[Evidence]) -> dict[str, Finding]:
    """What is known of each check, from runs of which the newest comes first.

    The newest run that has the check decides. A failure is cleared by nothing but a later pass, and
    a native failure by nothing but a later native pass: being skipped or emulated proves less. Of
    runs that ended in the same second, none is later: the worst of them decides.
    """
    names = dict.fromkeys(name for run in runs for name in run.outcomes)
    return {name: _finding(name, [run for run in runs if name in run.outcomes]) for name in names}


def _finding(name: str, runs: Sequence[Evidence]) -> Finding:
    for run in runs:
        if run.outcomes[name] != FAILED:
            continue
        later = [one for one in runs if one.finished > run.finished]
        passes = [one for one in later if one.outcomes[name] == PASSED]
        if not [one for one in passes if run.emulated or not one.emulated]:
            return Finding(outcome=FAILED, run=run)
    last = [one for one in runs if one.finished == runs[0].finished]
    worst = next((one for one in last if one.outcomes[name] != PASSED), runs[0])
    return Finding(outcome=worst.outcomes[name], run=worst)


def _why_not(proof: Proof, policy: Policy, gathered: Gathered) -> str:
    """Why a proof does not count as evidence; empty if it does."""
    if proof.fault or not proof.key:
        return proof.fault or BY_NO_KEY
    if gathered.image.digest not in proof.subjects:
        return OF_ANOTHER
    if gathered.artifact and gathered.artifact not in proof.subjects:
        return f"is of another {gathered.format} of this image"
    run, formats = run_of(proof), PULLED[gathered.format]
    if run.format not in formats:
        return f"is of another format than {' or '.join(formats)}"
    if reason := _other_class(run, policy.evidence.hosts, gathered):
        return reason
    return _EMULATED if run.emulated and not policy.evidence.emulated else ""


def _other_class(run: Evidence, wanted: WantedHosts, gathered: Gathered) -> str:
    reasons = (
        _other_machine(run, wanted, gathered),
        _other_gpu(run, wanted, gathered),
        _other_start(run, wanted),
    )
    return next(filter(None, reasons), "")


def _other_machine(run: Evidence, wanted: WantedHosts, gathered: Gathered) -> str:
    fits = run.emulated or run.architecture == gathered.image.architecture
    if not fits or (wanted.architectures and run.architecture not in wanted.architectures):
        return f"is from a host of another architecture ({run.architecture})"
    if wanted.driver and not _fits(run.driver, wanted.driver, gathered.host.driver):
        return f"is from a host with {_named(run.driver)}"
    return ""


def _other_gpu(run: Evidence, wanted: WantedHosts, gathered: Gathered) -> str:
    if wanted.capabilities == ():
        return ""
    some = gathered.host.capabilities if wanted.capabilities is None else wanted.capabilities
    if some is None:
        return "is to be from a GPU like this host's, which is not known"
    return "" if {*some} & {*run.capabilities} else f"is not from a GPU of {_shown(some)}"


def _other_start(run: Evidence, wanted: WantedHosts) -> str:
    if wanted.runtimes and run.runner not in wanted.runtimes:
        return f"is by another runtime ({run.runner})"
    if wanted.launchers and run.launcher not in wanted.launchers:
        return f"is by another launcher ({run.launcher})"
    return ""


def _fits(driver: str, wanted: str, here: str | None) -> bool:
    """Return whether a driver meets a specifier, or is of the branch of the one that is here."""
    if wanted == SAME:
        return bool(driver and here) and driver.partition(".")[0] == str(here).partition(".")[0]
    return meets(driver, wanted)


def _named(driver: str) -> str:
    return f"driver {driver}" if driver else "no driver"


def _shown(capabilities: Sequence[int]) -> str:
    shown = ["{}.{}".format(*divmod(one, 10)) for one in capabilities]
    return f"capability {' or '.join(shown)}" if shown else "this host's kind: it has none"
