"""The rules: each is a function from a policy and what was gathered to one ruling."""

from __future__ import annotations

import dataclasses
import datetime as dt
import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from builder.model.cells import FAILED, PASSED, SKIPPED
from builder.model.errors import counted
from builder.model.versions import is_version
from builder.trust.policy import records as known
from builder.trust.policy.evidence import (
    BY_NO_KEY,
    OF_ANOTHER,
    Finding,
    choose,
    counted_reasons,
    findings,
    trusted,
)
from builder.trust.policy.records import (
    Bill,
    Evidence,
    Gathered,
    Package,
    Proof,
    Provenance,
    Ruling,
    not_asked,
    passed,
    refused,
)
from builder.trust.policy.site_policy import Policy

SKEW = dt.timedelta(minutes=5)  # by which clocks may differ
_SHOWN = 5
_NO_EVIDENCE = "there is no evidence that counts"
_ASK = "ask whoever published the image"
_NAME_KEY = "name the key that signed it under keys, if you trust it"
_RENAMED = "say identity: ignored, if this registry is to name images otherwise"


def identity(policy: Policy, found: Gathered) -> Ruling:
    """The image is of the recipe, and of the cell, whose name was asked for.

    A registry may serve any proven image under any name. Whose image it is, a trusted key's
    provenance says: the recipe is the repository's last component, the cell has the tag.
    """
    rule = "identity"
    if not policy.identity:
        return not_asked(rule, "the policy ignores it")
    name, tag = _named(found.reference)
    proofs = trusted(found.proofs, known.PROVENANCE, [found.image.digest])
    contents = [one.content for one in proofs]
    said = [one for one in contents if isinstance(one, Provenance) and one.recipe]
    if not said:
        reason = "no provenance that counts says of which recipe the image is"
        fix = f"{_ASK} to sign its provenance; or {_RENAMED}"
        return refused(rule, reason, _fix_of_unsigned(found) or fix)
    mine = [one for one in said if one.recipe == name]
    if not mine:
        others = _listed(list(dict.fromkeys(f"{one.recipe} {one.tag}" for one in said)))
        return refused(rule, f"asked for {name}, and this is {others}", _RENAMED)
    return _of_tag(rule, name, tag, [one.tag for one in mine])


def _of_tag(rule: str, name: str, tag: str, tags: Sequence[str]) -> Ruling:
    if tag in tags:
        return passed(rule, f"it is {name} {tag}")
    itself = f"{name} {tags[0]}"
    if not tag:
        return passed(rule, f"it is {itself}; asked for by digest, which names no cell")
    if _is_of_a_cell(tag):
        return refused(rule, f"asked for {name} {tag}, and this is {itself}", _RENAMED)
    return passed(rule, f"it is {itself}; {tag} is a floating tag, the recipe alone is compared")


def _named(reference: str) -> tuple[str, str]:
    """The last component of a reference's repository, and its tag; that is empty for a digest."""
    name, _, digest = reference.rpartition("/")[2].partition("@")
    name, _, tag = name.partition(":")
    return name, tag or ("" if digest else "latest")


def _is_of_a_cell(tag: str) -> bool:
    """Whether a tag may be a cell's own: it begins with a version and a hyphen, as they all do."""
    parts = tag.split("-")
    return any(is_version("-".join(parts[:end])) for end in range(1, len(parts)))


def architecture(policy: Policy, found: Gathered) -> Ruling:
    """The configuration says what was asked for: a tag or an index may lie."""
    del policy
    image, rule = found.image, "architecture"
    if image.architecture == image.asked:
        return passed(rule, f"the image is for {image.asked}")
    reason = f"the image is for {image.architecture or 'nothing that is known'}, not {image.asked}"
    return refused(rule, reason, f"{_ASK}: its index names the wrong image")


def signature(policy: Policy, found: Gathered) -> Ruling:
    """Enough of the policy's keys have signed the image, or the index that names it."""
    rule, wanted = "signature", policy.signatures
    good = trusted(found.proofs, known.SIGNATURE, digests_of(found))
    keys = sorted(_counted_once(good))
    if len(keys) >= wanted:
        return passed(rule, f"signed by {', '.join(keys)}")
    some = [one for one in found.proofs if one.kind in {known.SIGNATURE, known.OTHER}]
    reason = f"{len(keys)} of {counted(wanted, 'signature')} by keys of the policy"
    counts = {id(one) for one in good}
    if why := _whys(one for one in some if id(one) not in counts):
        reason += f" ({why})"
    elif not some:
        reason += ": the image is not signed"
    return refused(rule, reason, _fix_of_unsigned(found) or _NAME_KEY)


def _fix_of_unsigned(found: Gathered) -> str:
    """What helps where no trusted key signed anything; empty where one did: that is not it."""
    if any(one.key and not one.fault for one in found.proofs):
        return ""
    return _NAME_KEY if found.proofs else f"{_ASK} to sign it"


def _counted_once(signatures: Iterable[Proof]) -> list[str]:
    """The policy's keys that signed: one for each signer, and one signer for each.

    A certificate's signer may be meant by several, and one of these by several signers.
    """
    keys: dict[str, set[str]] = {}
    for one in signatures:
        keys.setdefault(one.signer or one.key, set()).add(one.key)
    signers: dict[str, str] = {}

    def counts(signer: str, tried: set[str]) -> bool:
        for key in sorted(keys[signer] - tried):
            if key in tried:
                continue
            tried.add(key)
            if key not in signers or counts(signers[key], tried):
                signers[key] = signer
                return True
        return False

    for signer in sorted(keys):
        counts(signer, set())
    return list(signers)


def dates(policy: Policy, found: Gathered) -> Ruling:
    """Nothing that is trusted is dated in the future, or ends before it begins."""
    del policy
    latest = found.now + SKEW
    for proof in found.proofs:
        if proof.fault or not proof.key:
            continue
        times = _times(proof)
        if not times:
            continue
        if times[-1] > latest or times[0] > latest:
            return refused(
                "dates",
                f"{proof.kind} is dated {day_of(max(times))}, which is still to come",
                "set this machine's clock right; if it is, do not trust this proof",
            )
        if times[0] > times[-1]:
            reason = f"{proof.kind} ends before it begins, at {day_of(times[-1])}"
            return refused("dates", reason, _ASK)
    return passed("dates", "no proof is dated in the future")


def evidence(policy: Policy, found: Gathered) -> Ruling:
    """There is evidence about this image from this class of hosts."""
    rule, chosen = "evidence", choose(policy, found)
    if not chosen.proofs:
        accepted = "say evidence: {emulated: accepted} in the policy, if that is enough"
        fix = accepted if chosen.only_emulated else ""
        reason = f"no evidence for {found.format} on this class of hosts: {chosen.why_none}"
        fix = fix or _fix_of_unsigned(found) or f"{_ASK} to verify it on such a host"
        return refused(rule, reason, fix)
    run = chosen.runs[0]
    how = "emulated" if run.emulated else "native"
    where = f"{run.runner} on {run.architecture}, {how}"
    gpus = f", driver {run.driver}" if run.driver else ""
    return passed(rule, f"checked by {where}{gpus}, {day_of(run.finished)}")


def checks(policy: Policy, found: Gathered) -> Ruling:
    """Every required check has passed, and none has failed. Skipped is not passed."""
    rule, runs = "checks", choose(policy, found).runs
    if not runs:
        return not_asked(rule, _NO_EVIDENCE)
    outcomes = findings(runs)
    if failed := _with(outcomes, FAILED):
        day = day_of(outcomes[failed[0]].run.finished)
        reason = f"failed, {day}: {_listed(failed)}"
        return refused(rule, reason, f"{_ASK}: a later pass on such a host clears it")
    if lacking := [name for name in policy.evidence.required if name not in outcomes]:
        return refused(rule, f"never run: {_listed(lacking)}", f"{_ASK} to verify it again")
    skipped = _with(outcomes, SKIPPED)
    if unproven := [name for name in policy.evidence.required if name in skipped]:
        reason = f"skipped, which is not passed: {_listed(unproven)}"
        return refused(rule, reason, f"{_ASK} to verify it where these can be run")
    if not _with(outcomes, PASSED):
        return refused(rule, "no check passed", f"{_ASK} to verify it where some can be run")
    count = counted(len(_with(outcomes, PASSED)), "check")
    more = f"; skipped and not asked for: {_listed(skipped)}" if skipped else ""
    return passed(rule, f"{count} passed{more}")


def age(policy: Policy, found: Gathered) -> Ruling:
    """The runs in which the required checks passed are not too long ago."""
    rule, limit = "age", policy.evidence.max_age
    outcomes = findings(choose(policy, found).runs)
    decisive = [outcomes[name].run for name in policy.evidence.required if name in outcomes]
    decisive = decisive or [one.run for one in outcomes.values()]
    if not decisive:
        return not_asked(rule, _NO_EVIDENCE)
    oldest = min(run.finished for run in decisive)
    shown = f"{day_of(oldest)}, {counted((found.now - oldest).days, 'day')} ago"
    if found.now - oldest > limit:
        reason = f"last proven {shown}; at most {counted(limit.days, 'day')} are allowed"
        return refused(rule, reason, f"{_ASK} to verify it again, or raise evidence.max_age")
    return passed(rule, f"proven {shown}")


def artifact(policy: Policy, found: Gathered) -> Ruling:
    """The SIF or tarball that would be taken is the one that the evidence is about."""
    rule = "artifact"
    if found.format in {"oci", "directory"}:
        return not_asked(rule, "it is made of the image's own layers")
    if not found.artifact:
        reason = f"no {found.format} was published for this image"
        return refused(rule, reason, "pull it as oci or directory, which need none")
    proofs = choose(policy, dataclasses.replace(found, artifact="")).proofs  # about any file
    if not proofs:
        return not_asked(rule, _NO_EVIDENCE)
    if any(found.artifact in one.subjects for one in proofs):
        return passed(rule, f"{short(found.artifact)} is a subject of the evidence")
    return refused(rule, f"no evidence that counts is about {short(found.artifact)}", _ASK)


def provenance(policy: Policy, found: Gathered) -> Ruling:
    """Whoever built the image, and what from, is among those that the policy names."""
    rule, wanted = "provenance", policy.provenance
    if wanted is None:
        return not_asked(rule, "the policy ignores it")
    proofs = trusted(found.proofs, known.PROVENANCE, digests_of(found))
    if not proofs:
        return refused(rule, _none(found, known.PROVENANCE), _fix_of_unsigned(found) or _ASK)
    said = [one.content for one in proofs if isinstance(one.content, Provenance)]
    for one in said:
        if _matches([one.builder], wanted.builders) and _matches(one.sources, wanted.sources):
            source = f" from {one.sources[0]}" if one.sources else ""
            return passed(rule, f"built by {one.builder}{source}")
    shown = "; ".join(f"{one.builder} from {_listed(one.sources) or 'nothing'}" for one in said)
    return refused(rule, f"built by {shown}", "name builder and source in the policy, if trusted")


def bill(policy: Policy, found: Gathered) -> Ruling:
    """There is a bill of materials, and nothing forbidden is on it."""
    rule, wanted = "sbom", policy.bill
    if wanted is None:
        return not_asked(rule, "the policy ignores it")
    proofs = trusted(found.proofs, known.BILL, digests_of(found))
    if not proofs:
        return refused(rule, _none(found, known.BILL), _fix_of_unsigned(found) or _ASK)
    bills = [one.content for one in proofs if isinstance(one.content, Bill)]
    packages = [package for one in bills for package in one.packages]
    bad = [
        *(f"{p.name} {p.version}".strip() for p in packages if _forbidden(p, policy)),
        *(
            f"{p.name} ({licence})"
            for p in packages
            for licence in p.licences
            if _any([licence], wanted.forbidden_licences)
        ),
    ]
    if bad:
        fix = "take an image without it, or change sbom in the policy"
        return refused(rule, f"forbidden: {_listed(list(dict.fromkeys(bad)))}", fix)
    asked = wanted.forbidden_packages or wanted.forbidden_licences
    if asked and not any(one.complete and one.packages for one in bills):
        reason = "it names no package, or says that it is incomplete: what is on it proves nothing"
        return refused(rule, reason, f"{_ASK} for a whole one, or forbid nothing")
    return passed(rule, f"{counted(len(packages), 'package')}, none forbidden")


def contract(policy: Policy, found: Gathered) -> Ruling:
    """The image runs on this host, as `check-host` says; what it cannot tell is no yes."""
    rule = "host contract"
    if not policy.host_contract:
        return not_asked(rule, "the policy ignores it")
    if found.contract is None:
        return refused(rule, "the image has no host contract", "pull one that has")
    if found.contract.answer == known.YES:
        return passed(rule, "it runs on this host")
    answer = "no" if found.contract.answer == known.NO else "cannot tell"
    reasons = "; ".join(found.contract.reasons)
    fix = "build-images check-host says more; host_contract: ignored pulls it all the same"
    return refused(rule, f"{answer}: {reasons}" if reasons else answer, fix)


def tree(expected: str, found: str) -> Ruling:
    """What was unpacked is the tree that the evidence is about."""
    if not expected:
        return refused("tree", "the evidence names no tree digest", _ASK)
    if found == expected:
        return passed("tree", f"{short(found)}, as the evidence says")
    reason = f"the tree is {short(found)}, and the evidence is about {short(expected)}"
    return refused("tree", reason, _ASK)


def digests_of(found: Gathered) -> list[str]:
    """The digests that proof of an image may be about: its own, and that of its index."""
    return [one for one in (found.image.digest, found.image.index) if one]


def _times(proof: Proof) -> list[dt.datetime]:
    if isinstance(proof.content, Evidence):
        return [proof.content.started, proof.content.finished]
    if isinstance(proof.content, Provenance) and proof.content.finished:
        return [proof.content.finished]
    return []


def _none(found: Gathered, kind: str) -> str:
    some = [one for one in found.proofs if one.kind in {kind, known.OTHER}]
    why = _whys(some)
    return f"there is none that counts ({why})" if why else "there is none"


def _whys(proofs: Iterable[Proof]) -> str:
    return counted_reasons(
        Counter(one.fault or (OF_ANOTHER if one.key else BY_NO_KEY) for one in proofs)
    )


def _with(outcomes: Mapping[str, Finding], outcome: str) -> list[str]:
    return [name for name, one in outcomes.items() if one.outcome == outcome]


def _forbidden(package: Package, policy: Policy) -> bool:
    assert policy.bill is not None
    names = [package.name, f"{package.name}@{package.version}"]
    return _any(names, policy.bill.forbidden_packages)


def _matches(values: Sequence[str], globs: Sequence[str]) -> bool:
    return not globs or _any(values, globs)


def _any(values: Sequence[str], globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(value, glob) for value in values for glob in globs)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def short(digest: str) -> str:
    """The beginning of a digest, as people are shown it."""
    return digest[:19]


def day_of(time: dt.datetime) -> str:
    """The day of a time, as people are shown it."""
    return time.date().isoformat()
