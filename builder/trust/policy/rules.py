"""The rules of a policy: functions from a policy and the gathered facts to a ruling."""

from __future__ import annotations

import datetime as dt
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from builder.model.cells import FAILED, PASSED, SKIPPED
from builder.model.errors import counted, first_of
from builder.model.versions import is_version
from builder.trust.policy.evidence import (
    DecidedCheck,
    choose,
    counted_reasons,
    decided_checks,
    faults_of,
    trusted,
)
from builder.trust.policy.records import (
    BILL,
    NO,
    OTHER,
    PROVENANCE,
    SIGNATURE,
    YES,
    Bill,
    Claim,
    Evidence,
    Gathered,
    Package,
    Provenance,
    Ruling,
    not_asked,
    passed,
    refused,
)
from builder.trust.policy.site_policy import Policy, RequiredBill

SKEW = dt.timedelta(minutes=5)  # accepted difference between clocks
_SHOWN = 5
_GNU = {"affero": "agpl", "lesser": "lgpl", "library general": "lgpl", "general public": "gpl"}
# Their names or SPDX's, and the version behind: "lesser general public license, version 2.1".
_GNU_LICENCE = re.compile(
    r"(affero|agpl|lesser|library general|lgpl|general public|gpl)"
    r"(?:general|public|licen[sc]e|version|gpl|[\s,(v-])*(\d(?:\.\d)?)?"
)
_NO_EVIDENCE = "there is no evidence that counts"
_ASK = "ask the publisher of the image"
_NAME_KEY = "if you trust the key that signed it, add it to keys in the policy"
_RENAMED = "if this registry may use other names, set identity: ignored"


def identity(policy: Policy, gathered: Gathered) -> Ruling:
    """The image is of the requested recipe and cell.

    A registry may serve any proven image under any name. A trusted key's provenance says which
    image it is: the recipe is the repository's last component, the cell has the tag.
    """
    rule = "identity"
    if not policy.identity:
        return not_asked(rule, "the policy ignores it")
    name, tag = _named(gathered.reference)
    claims = trusted(gathered.proofs, PROVENANCE, [gathered.image.digest])
    built = [source for source in _provenances(claims) if source.recipe]
    if not built:
        reason = "no trusted provenance names the recipe of the image"
        fix = f"{_ASK} to sign its provenance; or {_RENAMED}"
        return refused(rule, reason, _fix(gathered, fix))
    tags = [source.tag for source in built if source.recipe == name]
    if not tags:
        others = list(dict.fromkeys(f"{source.recipe} {source.tag}" for source in built))
        return refused(rule, f"requested {name}, but this is {_listed(others)}", _RENAMED)
    itself = f"{name} {tag if tag in tags else tags[0]}"
    if tag not in tags and _is_of_a_cell(tag):
        return refused(rule, f"requested {name} {tag}, but this is {itself}", _RENAMED)
    note = "" if tag in tags else f"; {tag} is a floating tag: only the recipe is compared"
    if not tag:
        note = "; requested by digest, which names no cell"
    return passed(rule, f"it is {itself}{note}")


def _named(reference: str) -> tuple[str, str]:
    """Return the last component of a repository, and the tag, which is empty for a digest."""
    name, _, digest = reference.rpartition("/")[2].partition("@")
    name, _, tag = name.partition(":")
    return name, tag or ("" if digest else "latest")


def _is_of_a_cell(tag: str) -> bool:
    """Return whether a tag can be a cell's: those begin with a version and a hyphen."""
    version, hyphen, _ = tag.partition("-")
    return bool(hyphen) and is_version(version)


def architecture(policy: Policy, gathered: Gathered) -> Ruling:
    """The image's configuration has the requested architecture; a tag or an index can be wrong."""
    del policy
    rule, asked, actual = "architecture", gathered.image.asked, gathered.image.architecture
    if actual == asked:
        return passed(rule, f"the image is for {asked}")
    reason = f"the image is for {actual or 'an unknown architecture'}, not {asked}"
    return refused(rule, reason, f"{_ASK}: its index names the wrong image")


def signature(policy: Policy, gathered: Gathered) -> Ruling:
    """Enough of the policy's keys have signed the image, or the index that names it."""
    valid = trusted(gathered.proofs, SIGNATURE, gathered.digests)
    keys = sorted(_counted_once(valid))
    if len(keys) >= policy.signatures:
        return passed("signature", f"signed by {', '.join(keys)}")
    claims = [claim for claim in gathered.proofs if claim.kind in {SIGNATURE, OTHER}]
    reason = f"{len(keys)} of {policy.signatures} required signatures by keys of the policy"
    if faults := faults_of(claim for claim in claims if claim not in valid):
        reason += f" ({faults})"
    elif not claims:
        reason += ": the image is not signed"
    return refused("signature", reason, _fix(gathered, _NAME_KEY))


def _fix(gathered: Gathered, otherwise: str) -> str:
    """Return the fix if no trusted key signed anything, or `otherwise`."""
    if any(claim.is_trusted for claim in gathered.proofs):
        return otherwise
    return _NAME_KEY if gathered.proofs else f"{_ASK} to sign it"


def _counted_once(signatures: Iterable[Claim]) -> list[str]:
    """Return the policy's keys that signed, each paired with a signer of its own.

    Several keys may match the signer in a certificate, and several signers the same key.
    """
    keys: dict[str, set[str]] = {}
    for claim in signatures:
        keys.setdefault(claim.signer or claim.key, set()).add(claim.key)
    signers: dict[str, str] = {}

    def match(signer: str, tried: set[str]) -> bool:
        for key in sorted(keys[signer]):
            if key not in tried:
                tried.add(key)
                if key not in signers or match(signers[key], tried):
                    signers[key] = signer
                    return True
        return False

    for signer in sorted(keys):
        match(signer, set())
    return list(signers)


def dates(policy: Policy, gathered: Gathered) -> Ruling:
    """No trusted proof is dated in the future, or ends before it begins."""
    del policy
    latest = gathered.now + SKEW
    for claim in gathered.proofs:
        times = _times(claim) if claim.is_trusted else []
        if times and max(times) > latest:
            reason = f"{claim.kind} is dated {day_of(max(times))}, which is in the future"
            fix = "correct this machine's clock; if it is correct, do not trust this proof"
            return refused("dates", reason, fix)
        if times and times[0] > times[-1]:
            reason = f"{claim.kind} ends before it begins, at {day_of(times[-1])}"
            return refused("dates", reason, _ASK)
    return passed("dates", "no proof is dated in the future")


def evidence(policy: Policy, gathered: Gathered) -> Ruling:
    """There is evidence about this image from this class of hosts."""
    rule, chosen = "evidence", choose(policy, gathered)
    if not chosen.claims:
        reasons = counted_reasons(chosen.left_out) or "none attached"
        fix = _fix(gathered, f"{_ASK} to verify it on such a host")
        if chosen.only_emulated:
            fix = "set evidence: {emulated: accepted} in the policy, if that is enough"
        reason = f"no evidence for {gathered.format} on this class of hosts: {reasons}"
        return refused(rule, reason, fix)
    run = chosen.runs[0]
    where = f"{run.runner} on {run.architecture}, {'emulated' if run.emulated else 'native'}"
    gpus = f", driver {run.driver}" if run.driver else ""
    return passed(rule, f"checked by {where}{gpus}, {day_of(run.finished)}")


def checks(policy: Policy, gathered: Gathered) -> Ruling:
    """Every required check has passed, and none has failed. Skipped is not passed."""
    rule, runs = "checks", choose(policy, gathered).runs
    if not runs:
        return not_asked(rule, _NO_EVIDENCE)
    outcomes = decided_checks(runs)
    if failed := _with(outcomes, FAILED):
        day = day_of(outcomes[failed[0]].run.finished)
        reason = f"failed, {day}: {_listed(failed)}"
        return refused(rule, reason, f"{_ASK}: a later pass on such a host clears it")
    if lacking := [name for name in policy.evidence.required if name not in outcomes]:
        return refused(rule, f"never run: {_listed(lacking)}", f"{_ASK} to verify it again")
    skipped = _with(outcomes, SKIPPED)
    if unproven := [name for name in policy.evidence.required if name in skipped]:
        reason = f"skipped, so not passed: {_listed(unproven)}"
        return refused(rule, reason, f"{_ASK} to verify it on a host that can run these")
    if not _with(outcomes, PASSED):
        return refused(rule, "no check passed", f"{_ASK} to verify it on a host that can run some")
    count = counted(len(_with(outcomes, PASSED)), "check")
    more = f"; skipped and not required: {_listed(skipped)}" if skipped else ""
    return passed(rule, f"{count} passed{more}")


def age(policy: Policy, gathered: Gathered) -> Ruling:
    """The required checks passed recently enough."""
    rule, limit = "age", policy.evidence.max_age
    outcomes = decided_checks(choose(policy, gathered).runs)
    decisive = [outcomes[name].run for name in policy.evidence.required if name in outcomes]
    decisive = decisive or [check.run for check in outcomes.values()]
    if not decisive:
        return not_asked(rule, _NO_EVIDENCE)
    oldest = min(run.finished for run in decisive)
    shown = f"{day_of(oldest)}, {counted((gathered.now - oldest).days, 'day')} ago"
    if gathered.now - oldest > limit:
        reason = f"last proven {shown}; at most {counted(limit.days, 'day')} are allowed"
        return refused(rule, reason, f"{_ASK} to verify it again, or raise evidence.max_age")
    return passed(rule, f"proven {shown}")


def artifact(policy: Policy, gathered: Gathered) -> Ruling:
    """The evidence is about the published SIF or tarball."""
    rule = "artifact"
    if gathered.format in {"oci", "directory"}:
        return not_asked(rule, "this format is made from the image's layers")
    if not gathered.artifact:
        reason = f"no {gathered.format} was published for this image"
        return refused(rule, reason, "pull it as oci or directory, which need no such file")
    claims = choose(policy, replace(gathered, artifact="")).claims  # about any file
    if not claims:
        return not_asked(rule, _NO_EVIDENCE)
    if any(gathered.artifact in claim.subjects for claim in claims):
        return passed(rule, f"{short(gathered.artifact)} is a subject of the evidence")
    return refused(rule, f"no evidence that counts is about {short(gathered.artifact)}", _ASK)


def provenance(policy: Policy, gathered: Gathered) -> Ruling:
    """The policy accepts the builder of the image and one of its sources."""
    rule, required = "provenance", policy.provenance
    if required is None:
        return not_asked(rule, "the policy ignores it")
    built = _provenances(trusted(gathered.proofs, PROVENANCE, gathered.digests))
    if not built:
        return _lacking(rule, gathered, PROVENANCE)
    for source in built:
        has_builder = not required.builders or _any([source.builder], required.builders)
        if has_builder and (not required.sources or _any(source.sources, required.sources)):
            origin = f" from {source.sources[0]}" if source.sources else ""
            return passed(rule, f"built by {source.builder}{origin}")
    shown = "; ".join(f"{one.builder} from {_listed(one.sources) or 'no source'}" for one in built)
    return refused(rule, f"built by {shown}", "if you trust both, add them to the policy")


def bill(policy: Policy, gathered: Gathered) -> Ruling:
    """There is a bill of materials, and nothing forbidden is on it."""
    rule, required = "sbom", policy.bill
    if required is None:
        return not_asked(rule, "the policy ignores it")
    claims = trusted(gathered.proofs, BILL, gathered.digests)
    if not claims:
        return _lacking(rule, gathered, BILL)
    bills = [claim.content for claim in claims if isinstance(claim.content, Bill)]
    packages = [package for bill in bills for package in bill.packages]
    if forbidden := _forbidden(packages, required):
        fix = "choose an image without it, or change sbom in the policy"
        return refused(rule, f"forbidden: {_listed(forbidden)}", fix)
    asks = required.forbidden_packages or required.forbidden_licences
    if asks and not any(bill.complete and bill.packages for bill in bills):
        reason = "it is empty or incomplete, so it does not show that a package is absent"
        return refused(rule, reason, f"{_ASK} for a complete one, or forbid nothing")
    return passed(rule, f"{counted(len(packages), 'package')}, none forbidden")


def _forbidden(packages: Sequence[Package], required: RequiredBill) -> list[str]:
    """Return the packages that are forbidden by their names, then those by their licences."""
    names, licences = list[str](), list[str]()
    patterns = [pattern.casefold() for pattern in required.forbidden_licences]
    for package in packages:
        if any(_is_package(package, pattern) for pattern in required.forbidden_packages):
            names.append(f"{package.name} {package.version}".strip())
        for licence in package.licences:
            if _any(_spellings(licence.casefold()), patterns):
                licences.append(f"{package.name} ({licence})")
    return list(dict.fromkeys([*names, *licences]))


def _is_package(package: Package, pattern: str) -> bool:
    """Return whether a pattern NAME or NAME@VERSION matches.

    Names are compared as PyPI does, and versions also without the epoch, which `rpm -q` omits.
    """
    name, _, version = pattern.rpartition("@") if "@" in pattern[1:] else (pattern, "", "")
    versions = [package.version, package.version.partition(":")[2]]
    is_version = not version or _any(versions, [version])
    is_named = _any([_normalized(package.name)], [_normalized(name)])
    return (is_named and is_version) or _any([f"{package.name}@{package.version}"], [pattern])


def _normalized(name: str) -> str:
    """Return a package's name by PEP 503, https://peps.python.org/pep-0503/#normalized-names."""
    return re.sub(r"[-_.]+", "-", name).casefold()


def _spellings(licence: str) -> list[str]:
    """Return a licence, and those of GNU in it also as SPDX writes them: agplv3 as agpl-3.0."""
    matches = _GNU_LICENCE.finditer(licence)
    versions = [(_GNU.get(match[1], match[1]), match[2]) for match in matches]
    return [licence, *(f"{name}-{float(number) if number else ''}" for name, number in versions)]


def contract(policy: Policy, gathered: Gathered) -> Ruling:
    """`check-host` says that the image runs on this host; the answer "cannot tell" is refused."""
    rule = "host contract"
    if not policy.host_contract:
        return not_asked(rule, "the policy ignores it")
    if gathered.contract is None:
        return refused(rule, "the image has no host contract", "pull an image that has one")
    if gathered.contract.answer == YES:
        return passed(rule, "it runs on this host")
    answer = "no" if gathered.contract.answer == NO else "cannot tell"
    reasons = "; ".join(gathered.contract.reasons)
    fix = "build-images check-host shows details; to pull it anyway, set host_contract: ignored"
    return refused(rule, f"{answer}: {reasons}" if reasons else answer, fix)


def tree(expected: str, digest: str) -> Ruling:
    """The evidence is about the tree that was unpacked."""
    if not expected:
        return refused("tree", "the evidence names no tree digest", _ASK)
    if digest == expected:
        return passed("tree", f"{short(digest)}, as in the evidence")
    reason = f"the tree is {short(digest)}, but the evidence is about {short(expected)}"
    return refused("tree", reason, _ASK)


def _provenances(claims: Iterable[Claim]) -> list[Provenance]:
    return [claim.content for claim in claims if isinstance(claim.content, Provenance)]


def _times(claim: Claim) -> list[dt.datetime]:
    content = claim.content
    if isinstance(content, Evidence):
        return [content.started or content.finished, content.finished]
    if isinstance(content, Provenance) and content.finished:
        return [content.finished]
    return []


def _lacking(rule: str, gathered: Gathered, kind: str) -> Ruling:
    faults = faults_of(claim for claim in gathered.proofs if claim.kind in {kind, OTHER})
    reason = f"none counts ({faults})" if faults else "none attached"
    return refused(rule, reason, _fix(gathered, _ASK))


def _with(outcomes: Mapping[str, DecidedCheck], outcome: str) -> list[str]:
    return [name for name, check in outcomes.items() if check.outcome == outcome]


def _any(values: Sequence[str], globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(value, glob) for value in values for glob in globs)


def _listed(names: Sequence[str]) -> str:
    return first_of(names, _SHOWN)


def short(digest: str) -> str:
    """Return the beginning of a digest, for messages."""
    return digest[:19]


def day_of(time: dt.datetime) -> str:
    """Return the day of a time, for messages."""
    return time.date().isoformat()
