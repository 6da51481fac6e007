"""Choose the evidence that counts for an image on a class of hosts, and decide each check by it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from builder.model.cells import FAILED, PASSED
from builder.model.versions import meets
from builder.trust.policy.records import EVIDENCE, OTHER, PULLED, Claim, Evidence, Gathered
from builder.trust.policy.site_policy import SAME, Policy, RequiredHosts

_MOST_REASONS = 5  # shown at most
_EMULATED = "is emulated, not native"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The evidence that counts, newest first, and the number left out for each reason."""

    claims: tuple[Claim, ...]
    left_out: Mapping[str, int]

    @property
    def runs(self) -> tuple[Evidence, ...]:
        """The content of the evidence that counts."""
        return tuple(_run_of(claim) for claim in self.claims)

    @property
    def only_emulated(self) -> bool:
        """True if some evidence would count if it were native."""
        return not self.claims and _EMULATED in self.left_out


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedCheck:
    """The outcome of one check, and the run that decides it."""

    outcome: str
    run: Evidence


def counted_reasons(reasons: Mapping[str, int]) -> str:
    """Return the number of rejected claims for each reason; only the first reasons are listed.

    Anyone who may push to the registry can cause a thousand reasons.
    """
    shown = [f"{number} {reason}" for reason, number in list(reasons.items())[:_MOST_REASONS]]
    if rest := sum(list(reasons.values())[_MOST_REASONS:]):
        shown.append(f"{rest} for other reasons")
    return "; ".join(shown)


def faults_of(claims: Iterable[Claim]) -> str:
    """Return the reasons why claims do not count, in the form of `counted_reasons`."""
    return counted_reasons(Counter(map(_fault, claims)))


def _fault(claim: Claim) -> str:
    return claim.fault or ("is about another image" if claim.key else "has no trusted signature")


def _run_of(claim: Claim) -> Evidence:
    assert isinstance(claim.content, Evidence)
    return claim.content


def trusted(claims: Sequence[Claim], kind: str, digests: Sequence[str]) -> list[Claim]:
    """Return the claims of a kind about one of the digests, if a trusted key signed them."""
    return [
        claim
        for claim in claims
        if claim.kind == kind and claim.is_trusted and set(digests) & set(claim.subjects)
    ]


def choose(policy: Policy, gathered: Gathered) -> Chosen:
    """Return the evidence about this very image, from hosts of the class in the policy."""
    chosen, left_out = [], Counter[str]()
    for claim in gathered.proofs:
        if claim.kind not in {EVIDENCE, OTHER} or (claim.kind == OTHER and claim.is_trusted):
            continue
        if reason := _why_not(claim, policy, gathered):
            left_out[reason] += 1
        else:
            chosen.append(claim)
    chosen.sort(key=lambda claim: (_run_of(claim).finished, claim.digest), reverse=True)
    return Chosen(claims=tuple(chosen), left_out=left_out)


def newest_proven(policy: Policy, gathered: Gathered, artifacts: Sequence[str]) -> str:
    """Return the published file, of one format, that the newest evidence names.

    An image that was packed again has several files. Without evidence, return the first file;
    without files, return an empty text.
    """
    newest = dict[str, tuple[dt.datetime, str]]()
    signed = tuple(claim for claim in gathered.proofs if claim.is_trusted)
    for artifact in artifacts:
        chosen = choose(policy, replace(gathered, artifact=artifact, proofs=signed))
        if chosen.claims:
            newest[artifact] = (chosen.runs[0].finished, artifact)
    return max(newest, key=newest.__getitem__, default=next(iter(artifacts), ""))


def decided_checks(runs: Sequence[Evidence]) -> dict[str, DecidedCheck]:
    """Return the outcome of each check; `runs` are sorted, newest first.

    The newest run that has the check decides. Only a later pass clears a failure, and only a later
    native pass clears a native failure: a skipped or emulated check proves less. If runs ended in
    the same second, the worst of them decides.
    """
    names = dict.fromkeys(name for run in runs for name in run.outcomes)
    return {name: _decided(name, [run for run in runs if name in run.outcomes]) for name in names}


def _decided(name: str, runs: Sequence[Evidence]) -> DecidedCheck:
    for run in runs:
        if run.outcomes[name] == FAILED and not any(
            later.finished > run.finished
            and later.outcomes[name] == PASSED
            and (run.emulated or not later.emulated)
            for later in runs
        ):
            return DecidedCheck(outcome=FAILED, run=run)
    last = [run for run in runs if run.finished == runs[0].finished]
    worst = next((run for run in last if run.outcomes[name] != PASSED), runs[0])
    return DecidedCheck(outcome=worst.outcomes[name], run=worst)


def _why_not(claim: Claim, policy: Policy, gathered: Gathered) -> str:
    """Return why a claim does not count as evidence; empty if it does."""
    if not claim.is_trusted or gathered.image.digest not in claim.subjects:
        return _fault(claim)
    if gathered.artifact and gathered.artifact not in claim.subjects:
        return f"is about another {gathered.format} of this image"
    run, formats = _run_of(claim), PULLED[gathered.format]
    if run.format not in formats:
        return f"is for a format other than {' or '.join(formats)}"
    if reason := _other_class(run, policy.evidence.hosts, gathered):
        return reason
    return _EMULATED if run.emulated and not policy.evidence.emulated else ""


def _other_class(run: Evidence, hosts: RequiredHosts, gathered: Gathered) -> str:
    """Return how a run's host differs from the required ones; empty if it does not."""
    native = run.emulated or run.architecture == gathered.image.architecture
    if not native or (hosts.architectures and run.architecture not in hosts.architectures):
        return f"is from a host of another architecture ({run.architecture})"
    if hosts.driver and not _fits(run.driver, hosts.driver, gathered.host.driver):
        return f"is from a host with {f'driver {run.driver}' if run.driver else 'no driver'}"
    same, required = hosts.capabilities is None, hosts.capabilities
    capabilities = gathered.host.capabilities if same else required
    if capabilities is None:
        return "must be from a GPU like this host's, but this host's GPU is unknown"
    if required != () and not {*capabilities} & {*run.capabilities}:
        return f"is not from a GPU of {_shown(capabilities)}"
    programs = (
        ("runtime", run.runner, hosts.runtimes),
        ("launcher", run.launcher, hosts.launchers),
    )
    for title, name, accepted in programs:
        if accepted and name not in accepted:
            return f"is from another {title} ({name})"
    return ""


def _fits(driver: str, required: str, own: str | None) -> bool:
    """Return whether a driver matches a specifier or, for `same`, the host's driver branch."""
    if required == SAME:
        return bool(own) and driver.partition(".")[0] == str(own).partition(".")[0]
    return meets(driver, required)


def _shown(capabilities: Sequence[int]) -> str:
    shown = ["{}.{}".format(*divmod(number, 10)) for number in capabilities]
    return f"capability {' or '.join(shown)}" if shown else "this host's kind: this host has no GPU"
