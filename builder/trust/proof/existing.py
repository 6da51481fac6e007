"""Proof by a key that an image has already: which statements are new, and which proof they replace.

An image that is verified every night gets the same findings every night. Evidence replaces older
evidence with the same findings in the same setting, so that what is attached to an image does not
grow: whoever pulls the image reads all of it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from builder.model.exact_json import part
from builder.model.predicates import BUNDLE_NOTE, TEST_RESULT, TestLists
from builder.model.records import plain, read
from builder.trust.proof.attachments import (
    DSSE,
    MAX_PAYLOAD,
    Attestation,
    BlobDescriptor,
    ProofManifest,
    Unusable,
    json_object,
)
from builder.trust.proof.attestations import attestation_tag
from builder.trust.proof.keys import PublicKey
from builder.trust.proof.manifests import layers_of, manifest_of
from builder.trust.proof.statements import SIGN, as_bytes, envelope_of, run_of
from builder.trust.proof.verification import BUNDLED, CLASSIC, TrustedKey, verified


class ExistingProof:
    """The proof that is attached to an image, and what one key vouches for.

    Proof by others does not count: a stranger could keep new proof from being attached.
    """

    def __init__(self, digest: str, attached: Iterable[ProofManifest], key: PublicKey) -> None:
        self._tag = attestation_tag(digest)
        self._attached = tuple(attached)
        trusted = [TrustedKey(key=key, name="this key")]
        now = dt.datetime.now(dt.timezone.utc)
        verdict = verified(digest, self._attached, trusted, now=now)
        self._is_signed = any(one.format == BUNDLED for one in verdict.signatures)
        self._attestations = [(one, *_topic(one.payload)) for one in verdict.attestations]

    def new_statements(self, statements: Sequence[bytes]) -> list[bytes]:
        """Return those that add something: not just other words, and not older evidence.

        A statement that exists in one of the two formats alone counts as new.
        """
        formats: dict[tuple[str, str], set[str]] = {}
        for attestation, *key in self._attestations:
            formats.setdefault((key[0], key[1]), set()).add(attestation.format)
        newest = self._newest([])
        new = []
        for statement in statements:
            topic, finished = _topic(statement)
            exists = formats.get((topic, finished)) == {CLASSIC, BUNDLED}
            if not exists and finished >= newest.get(topic, ""):
                new.append(statement)
        return new

    def before(self, statements: Sequence[bytes]) -> dict[str, ProofManifest]:
        """Return what is at cosign's tags, by tag, without evidence that statements replace."""
        old = {one.payload for one in self._replaced(statements) if one.format == CLASSIC}
        tagged = {attachment.tag: attachment for attachment in self._attached if attachment.tag}
        if old and self._tag in tagged:
            tagged[self._tag] = _without(tagged[self._tag], old)
        return tagged

    def replaced(self, statements: Sequence[bytes]) -> tuple[str, ...]:
        """Return the digests of bundles' manifests whose evidence statements replace."""
        sources = {one.source for one in self._replaced(statements) if one.format == BUNDLED}
        manifests = {one.digest: one.manifest for one in self._attached if one.digest in sources}
        return tuple(
            sorted(
                digest
                for digest, manifest in manifests.items()
                if len(part(manifest_of(manifest), "layers")) == 1
            )
        )

    def needed(self, attachments: Sequence[ProofManifest]) -> list[ProofManifest]:
        """Return them without the bundle of a signature that exists; it would only be newer."""
        return [
            attachment
            for attachment in attachments
            if attachment.tag or not (self._is_signed and _predicate_type(attachment) == SIGN)
        ]

    def _replaced(self, statements: Sequence[bytes]) -> list[Attestation]:
        newest = self._newest(statements)
        return [
            attestation
            for attestation, topic, finished in self._attestations
            if attestation.predicate_type == TEST_RESULT and finished < newest[topic]
        ]

    def _newest(self, statements: Sequence[bytes]) -> dict[str, str]:
        """Return the latest time of each topic, among what exists and statements."""
        newest: dict[str, str] = {}
        existing = [(topic, finished) for _, topic, finished in self._attestations]
        for topic, finished in (*existing, *map(_topic, statements)):
            newest[topic] = max(finished, newest.get(topic, ""))
        return newest


def _topic(content: bytes) -> tuple[str, str]:
    """Return the content of a statement without its time, as JSON, and the time of evidence in UTC.

    Of provenance of builds that are alike in all but their start, the first one counts.
    """
    statement = json.loads(content)
    kind, predicate = statement["predicateType"], statement.get("predicate", {})
    finished, topic = "", predicate
    try:
        if kind == TEST_RESULT:
            run, lists = run_of(statement), read(TestLists, predicate)
            time = dt.datetime.fromisoformat(run.finished).astimezone(dt.timezone.utc)
            names = [sorted(checks) for checks in (lists.passed, lists.skipped, lists.failed)]
            topic = [names, plain(replace(run, started="", finished="", indices=None))]
            finished = time.isoformat()
        else:
            details = {**predicate["runDetails"], "metadata": None}
            topic = {**predicate, "runDetails": details}
    except (LookupError, TypeError, ValueError, AttributeError):
        topic = predicate
    subjects = sorted(json.dumps(one.get("digest"), sort_keys=True) for one in statement["subject"])
    return json.dumps([kind, subjects, topic], sort_keys=True), finished


def _without(attachment: ProofManifest, payloads: set[bytes]) -> ProofManifest:
    """Return a classic manifest without the layers of some statements."""
    manifest = manifest_of(attachment.manifest)
    drops = {
        layer.digest
        for layer in layers_of(attachment.manifest)
        if layer.media_type == DSSE and _payload(attachment, layer) in payloads
    }
    layers = [layer for layer in part(manifest, "layers") if layer["digest"] not in drops]
    content = as_bytes({**manifest, "layers": layers})
    return replace(attachment, manifest=content, drops=frozenset(drops))


def _payload(attachment: ProofManifest, layer: BlobDescriptor) -> bytes:
    try:
        content = attachment.blobs[layer.digest]
        return envelope_of(json_object(content, "the envelope", limit=MAX_PAYLOAD)).payload
    except (Unusable, LookupError):
        return b""


def _predicate_type(attachment: ProofManifest) -> object:
    return part(manifest_of(attachment.manifest), "annotations", BUNDLE_NOTE)
