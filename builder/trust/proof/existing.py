"""The existing proof of an image by one key: find new statements and the proof they replace.

An image that is verified every night gets the same findings every night. New evidence
replaces older evidence with the same findings in the same setting. So the proof of an image, which
every pull reads, does not grow.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from builder.model.exact_json import part, time_of
from builder.model.predicates import BUNDLE_NOTE, TEST_RESULT, RunFacts, result_of
from builder.model.records import plain
from builder.trust.proof.attachments import ProofManifest, VerifiedStatement, manifest_of
from builder.trust.proof.keys import PublicKey
from builder.trust.proof.statements import SIGN
from builder.trust.proof.verification import BUNDLED, CLASSIC, TrustedKey, verified


@dataclass(frozen=True, kw_only=True, slots=True)
class _Topic:
    """The content of a statement without its time, as JSON, and the time of evidence in UTC."""

    text: str
    finished: str


class ExistingProof:
    """The proof that is attached to an image, and the part that one key signed.

    Other keys do not count: otherwise a stranger could prevent new proof from being attached.
    """

    def __init__(self, digest: str, attached: Iterable[ProofManifest], key: PublicKey) -> None:
        self._attached = tuple(attached)
        trusted = [TrustedKey(key=key, name="this key")]
        now = dt.datetime.now(dt.timezone.utc)
        proven = verified(digest, self._attached, trusted, now=now)
        self._is_signed = any(signature.format == BUNDLED for signature in proven.signatures)
        self._attestations = [(entry, _topic(entry.payload)) for entry in proven.attestations]

    @property
    def tagged(self) -> dict[str, ProofManifest]:
        """The proof at cosign's tags, by tag."""
        return {attachment.tag: attachment for attachment in self._attached if attachment.tag}

    def new_statements(self, statements: Sequence[bytes]) -> list[bytes]:
        """Return the statements with new content, without evidence that is older than existing.

        A statement that exists in only one of the two formats counts as new.
        """
        newest = self._newest([])
        formats: dict[_Topic, set[str]] = {}
        for attestation, topic in self._attestations:
            formats.setdefault(topic, set()).add(attestation.format)
        new = []
        for statement in statements:
            topic = _topic(statement)
            exists = formats.get(topic) == {CLASSIC, BUNDLED}
            if not exists and topic.finished >= newest.get(topic.text, ""):
                new.append(statement)
        return new

    def completed(
        self, proofs: Sequence[ProofManifest], statements: Sequence[bytes]
    ) -> list[ProofManifest]:
        """Return the proof to write, with its replacements, and without an existing signature.

        `statements` are all statements to attach. The last proof replaces old bundles, and proof at
        a tag drops old layers.
        """
        replaced = self._replaced(statements)
        drops = frozenset(entry.layer for entry in replaced if entry.format == CLASSIC)
        sources = {entry.source for entry in replaced if entry.format == BUNDLED}
        needed = [
            replace(proof, fresh=not self._attached, drops=drops)
            for proof in proofs
            if proof.tag
            or not self._is_signed
            or part(manifest_of(proof.manifest), "annotations", BUNDLE_NOTE) != SIGN
        ]
        if needed:
            alone = {
                proof.digest
                for proof in self._attached
                if proof.digest in sources and len(part(manifest_of(proof.manifest), "layers")) == 1
            }
            needed[-1] = replace(needed[-1], replaces=tuple(sorted(alone)))
        return needed

    def _replaced(self, statements: Sequence[bytes]) -> list[VerifiedStatement]:
        """Return existing evidence for which there is newer evidence with the same findings."""
        newest = self._newest(statements)
        return [
            attestation
            for attestation, topic in self._attestations
            if attestation.predicate_type == TEST_RESULT and topic.finished < newest[topic.text]
        ]

    def _newest(self, statements: Sequence[bytes]) -> dict[str, str]:
        """Return the latest time of each topic in existing and new statements."""
        newest: dict[str, str] = {}
        for topic in (*(topic for _, topic in self._attestations), *map(_topic, statements)):
            newest[topic.text] = max(topic.finished, newest.get(topic.text, ""))
        return newest


def _topic(content: bytes) -> _Topic:
    """Return the topic of a statement.

    Provenances that differ only in the metadata of the build have the same topic: the first counts.
    """
    statement = json.loads(content)
    kind, predicate = statement["predicateType"], statement.get("predicate", {})
    finished, topic = "", predicate
    try:
        if kind == TEST_RESULT:
            result = result_of(statement)
            run, lists = result.run, result.lists
            names = [sorted(checks) for checks in (lists.passed, lists.skipped, lists.failed)]
            topic = [names, plain(_setting(run))]
            finished = time_of(run.finished).isoformat()
        else:
            details = {**predicate["runDetails"], "metadata": None}
            topic = {**predicate, "runDetails": details}
    except (LookupError, TypeError, ValueError, AttributeError):
        topic = predicate
    subjects = sorted(json.dumps(one.get("digest"), sort_keys=True) for one in statement["subject"])
    text = json.dumps([kind, subjects, topic], sort_keys=True)
    return _Topic(text=text, finished=finished)


def _setting(run: RunFacts) -> RunFacts:
    """Return only the facts of a run that policies select evidence by."""
    launcher = run.launcher
    if launcher:
        machines = tuple(replace(machine, cpu="", os="") for machine in launcher.machines)
        launcher = replace(launcher, machines=machines)
    runner, host = replace(run.runner, version=""), replace(run.host, cpu="", os="")
    return replace(
        run, started="", finished="", indices=None, runner=runner, host=host, launcher=launcher
    )
