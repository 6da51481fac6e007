"""in-toto statements, and the DSSE envelopes that they are signed in.

https://github.com/secure-systems-lab/dsse/blob/master/envelope.md
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.model.exact_json import part
from builder.model.predicates import STATEMENT
from builder.trust.proof import strict
from builder.trust.proof.keys import PublicKey, Signer
from builder.trust.proof.values import (
    MALFORMED,
    MAX_PAYLOAD,
    OTHER_SUBJECT,
    WRONG_TYPE,
    Unusable,
)

STATEMENT_V0 = "https://in-toto.io/Statement/v0.1"  # what `cosign attest` makes
IN_TOTO = "application/vnd.in-toto+json"
SIGN = "https://sigstore.dev/cosign/sign/v1"  # the predicate of a signature in a bundle
_MAX_SIGNATURES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A signed payload: `payload_type` is a media type; each signature is over `signed`."""

    payload: bytes
    signatures: tuple[bytes, ...]
    payload_type: str = IN_TOTO

    @property
    def signed(self) -> bytes:
        """The bytes that were signed: DSSE's pre-authentication encoding."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def as_json(self) -> dict[str, object]:
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": self.payload_type,
            "signatures": [{"sig": base64.b64encode(one).decode()} for one in self.signatures],
        }


def sealed(payload: bytes, signer: Signer) -> Envelope:
    """A statement signed by one key."""
    unsigned = Envelope(payload=payload, signatures=())
    return Envelope(payload=payload, signatures=(signer.sign(unsigned.signed),))


def envelope_of(value: Mapping[str, object]) -> Envelope:
    """An envelope out of its JSON; raises `Unusable`. No signature is checked yet."""
    if value.get("payloadType") != IN_TOTO:
        kind = ascii(value.get("payloadType"))[:100]
        raise Unusable(WRONG_TYPE, f"the payload's type is {kind}, not {IN_TOTO}")
    given = value.get("signatures")
    if not isinstance(given, list) or not 1 <= len(given) <= _MAX_SIGNATURES:
        raise Unusable(MALFORMED, "the envelope has no signatures, or too many")
    return Envelope(
        payload=strict.base64_bytes(value.get("payload"), "the payload"),
        signatures=tuple(
            strict.base64_bytes(part({"": one}, "", "sig"), "the signature") for one in given
        ),
    )


def signed_by(envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Those of some keys that signed an envelope."""
    data = envelope.signed
    return tuple(key for key in keys if any(key.verifies(one, data) for one in envelope.signatures))


def statement(
    *, name: str, digest: str, predicate_type: str, predicate: Mapping[str, object]
) -> bytes:
    """A statement about an image, `sha256:…`, as it is signed. `name` says what the image is."""
    subject = {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    return as_bytes(
        {
            "_type": STATEMENT,
            "subject": [subject],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def signature_statement(digest: str) -> bytes:
    """The statement that cosign signs for a signature in a bundle."""
    subject = {"digest": {"sha256": digest.removeprefix("sha256:")}, "annotations": {}}
    return as_bytes(
        {"_type": STATEMENT, "subject": [subject], "predicateType": SIGN, "predicate": {}}
    )


def as_bytes(value: Mapping[str, object]) -> bytes:
    """JSON without spaces, in the order given."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def statement_of(payload: bytes, digest: str) -> dict[str, object]:
    """A signed statement about an image, `sha256:…`; raises `Unusable` where it is about others."""
    found = strict.json_object(payload, "the statement", limit=MAX_PAYLOAD, most=None)
    if found.get("_type") not in (STATEMENT, STATEMENT_V0):
        raise Unusable(WRONG_TYPE, "the payload is not an in-toto statement of version 1 or 0.1")
    if not isinstance(found.get("predicateType"), str):
        raise Unusable(MALFORMED, "the statement has no predicateType")
    if not isinstance(found.setdefault("predicate", {}), dict):
        raise Unusable(MALFORMED, "the statement's predicate is not an object")
    subjects = found.get("subject")
    if not isinstance(subjects, list):
        raise Unusable(MALFORMED, "the statement has no subject")
    named = [part({"": one}, "", "digest", "sha256") for one in subjects]
    if digest.removeprefix("sha256:") not in named:
        raise Unusable(OTHER_SUBJECT, f"the statement is about another image than {digest}")
    return found
