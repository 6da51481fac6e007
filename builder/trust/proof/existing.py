"""What a key has vouched for already: what need not be said again, and what newer proof replaces.

An image that is verified every night says the same every night. Evidence takes the place of older
evidence that found the same in the same setting, so that what is attached to an image does not
grow: whoever pulls it reads all of that.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from builder.model.exact_json import member, part
from builder.model.predicates import BUNDLE_NOTE, TEST_RESULT
from builder.trust.proof import attachments
from builder.trust.proof.attachments import (
    DSSE,
    MAX_PAYLOAD,
    Attachment,
    Attestation,
    Descriptor,
    Unusable,
    Verdict,
)
from builder.trust.proof.attestations import attestation_tag
from builder.trust.proof.keys import PublicKey
from builder.trust.proof.manifests import layers_of, manifest_of
from builder.trust.proof.statements import SIGN, as_bytes, envelope_of
from builder.trust.proof.verification import BUNDLED, CLASSIC, TrustedKey, verified

_BOTH = {CLASSIC, BUNDLED}
_OF_A_HOST = ("arch", "driver", "gpus")  # what policies choose evidence by
_OF_A_LAUNCHER = ("name", "product", "ranks", "nodes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What is attached to an image, and what of it one key vouches for."""

    digest: str
    attached: tuple[Attachment, ...]
    verdict: Verdict

    @classmethod
    def of(cls, digest: str, attached: Iterable[Attachment], key: PublicKey) -> Standing:
        """Nobody else's word counts: a stranger could keep new proof from being attached."""
        some = tuple(attached)
        trusted = [TrustedKey(key=key, name="this key")]
        now = dt.datetime.now(dt.timezone.utc)
        return cls(digest=digest, attached=some, verdict=verified(digest, some, trusted, now=now))

    @property
    def is_signed(self) -> bool:
        """True if the image has the key's signature as a bundle."""
        return any(one.format == BUNDLED for one in self.verdict.signatures)

    def news(self, statements: Sequence[bytes]) -> list[bytes]:
        """Those that are not said yet: by other words, in one format alone, or only longer ago."""
        said: dict[tuple[str, str], set[str]] = {}
        for one in self.verdict.attestations:
            said.setdefault(_said(one.payload), set()).add(one.format)
        newest = self._newest([])
        found = []
        for statement in statements:
            topic, finished = _said(statement)
            stale = finished < newest.get(topic, "")
            if not stale and said.get((topic, finished), set()) != _BOTH:
                found.append(statement)
        return found

    def before(self, statements: Sequence[bytes]) -> dict[str, Attachment]:
        """What is at cosign's tags, by tag, without evidence that statements replace."""
        old = {one.payload for one in self._replaced(statements) if one.format == CLASSIC}
        found = {one.tag: one for one in self.attached if one.tag}
        tag = attestation_tag(self.digest)
        if old and tag in found:
            found[tag] = _without(found[tag], old)
        return found

    def replaced(self, statements: Sequence[bytes]) -> tuple[str, ...]:
        """The manifests of bundles whose evidence statements replace, by digest."""
        found = {one.source for one in self._replaced(statements) if one.format == BUNDLED}
        mine = [one for one in self.attached if one.digest in found]
        alone = {
            one.digest for one in mine if len(member(manifest_of(one.manifest), "layers")) == 1
        }
        return tuple(sorted(alone))

    def needed(self, made: Sequence[Attachment]) -> list[Attachment]:
        """Without a signature's bundle that is there: it would be one more, of today."""
        return [one for one in made if one.tag or not (self.is_signed and _is_signature(one))]

    def _replaced(self, statements: Sequence[bytes]) -> list[Attestation]:
        newest = self._newest(statements)
        return [
            one
            for one in self.verdict.of_type(TEST_RESULT, once=False)
            if (said := _said(one.payload))[1] < newest[said[0]]
        ]

    def _newest(self, statements: Sequence[bytes]) -> dict[str, str]:
        """When each topic of evidence was found last: of what is there, and of statements."""
        found: dict[str, str] = {}
        for statement in (*(one.payload for one in self.verdict.attestations), *statements):
            topic, finished = _said(statement)
            found[topic] = max(finished, found.get(topic, ""))
        return found


@functools.lru_cache(maxsize=1024)  # a bill of materials may have megabytes
def _said(content: bytes) -> tuple[str, str]:
    """What a statement says but for its time; and of evidence its time, in UTC.

    Provenance says when a build began: of builds that are alike in all else, the first one counts.
    """
    statement = json.loads(content)
    kind, predicate = statement["predicateType"], statement.get("predicate", {})
    subjects = sorted(json.dumps(one.get("digest"), sort_keys=True) for one in statement["subject"])
    try:
        if kind == TEST_RESULT:
            about, finished = _of_a_run(predicate)
            return _text([kind, subjects, about]), finished
        details = {**predicate["runDetails"], "metadata": None}
        return _text([kind, subjects, {**predicate, "runDetails": details}]), ""
    except (LookupError, TypeError, ValueError, AttributeError):
        return _text([kind, subjects, predicate]), ""


def _of_a_run(predicate: Mapping[str, object]) -> tuple[list[object], str]:
    """What decides whether evidence counts, and as what; and when its run ended."""
    run = member(predicate, "configuration", 0, "annotations")
    names = [sorted(member(predicate, f"{one}Tests")) for one in ("passed", "warned", "failed")]
    host, launcher = run["host"], run["launcher"]
    machines = [[one[key] for key in _OF_A_HOST] for one in launcher["machines"]]
    setting = [
        *(run["format"], run["emulated"], run["gpu"]["handed_over"], run["runner"]["name"]),
        *(host[key] for key in _OF_A_HOST),
        *(launcher[key] for key in _OF_A_LAUNCHER),
    ]
    finished = dt.datetime.fromisoformat(run["finished"]).astimezone(dt.timezone.utc)
    return [names, setting, machines], finished.isoformat()


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _without(there: Attachment, payloads: set[bytes]) -> Attachment:
    """A classic manifest without the layers that hold some statements."""
    manifest = manifest_of(there.manifest)
    gone = {
        one.digest
        for one in layers_of(there.manifest)
        if one.media_type == DSSE and _payload(there, one) in payloads
    }
    layers = [one for one in member(manifest, "layers") if one["digest"] not in gone]
    made = as_bytes({**manifest, "layers": layers})
    return replace(there, manifest=made, drops=frozenset(gone))


def _payload(there: Attachment, layer: Descriptor) -> bytes:
    try:
        content = there.blobs[layer.digest]
        value = attachments.json_object(content, "the envelope", limit=MAX_PAYLOAD)
        return envelope_of(value).payload
    except (Unusable, LookupError):
        return b""


def _is_signature(made: Attachment) -> bool:
    return bool(part(manifest_of(made.manifest), "annotations", BUNDLE_NOTE) == SIGN)
