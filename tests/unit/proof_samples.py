"""An image, keys and statements for the tests of proof."""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samples import ROOT, private_file

from builder.model.digests import Descriptor, digest_of
from builder.model.predicates import TEST_RESULT
from builder.trust.proof.attachments import (
    MANIFEST,
    ProofManifest,
    VerifiedProof,
    VerifiedStatement,
)
from builder.trust.proof.attestations import proofs
from builder.trust.proof.keys import PrivateKey, generate_key, private_key
from builder.trust.proof.statements import statement
from builder.trust.proof.verification import TrustedKey, verified

VECTORS = ROOT / "tests" / "data" / "proof"
PASSWORD = "correct horse"
NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)
CREATED = "2026-11-21T11:00:00Z"
REFERENCE = "registry.example.org/site/hpc-base"
IMAGE = Descriptor(media_type=MANIFEST, digest=digest_of(b"an image"), size=1234)
OTHER = digest_of(b"another image")
RESULT = {
    "result": "PASSED",
    "configuration": [],
    "passedTests": ["libraries"],
    "warnedTests": [],
    "failedTests": [],
}


MALFORMED, TOO_LARGE = "malformed", "too large"
WRONG_KEY, EXPIRED_KEY, KEYLESS = "wrong key", "expired key", "keyless"
OTHER_SUBJECT, WRONG_TYPE = "other subject", "wrong payload type"
KINDS = {
    TOO_LARGE: "are read$|the rest was not read|the bundle has (too many|more than)",
    WRONG_KEY: "a trusted key|who is not trusted|not in a log",
    EXPIRED_KEY: "no longer trusted",
    KEYLESS: "signed by a certificate",
    OTHER_SUBJECT: "about another image|signature is for|manifest refers to",
    WRONG_TYPE: "payload's type|not a Sigstore bundle|no DSSE|not an in-toto|payload is not a c",
}


@functools.cache
def our_key() -> PrivateKey:
    """The key that cosign made for these tests."""
    return private_key(str(private_file("cosign")), {"COSIGN_PASSWORD": PASSWORD})


@functools.cache
def other_key() -> PrivateKey:
    return generate_key()


def evidence(digest: str = IMAGE.digest, **changes: Any) -> bytes:
    """A statement on an image's tests."""
    predicate = {**RESULT, **changes}
    return statement(
        name="hpc-base/oci", digest=digest, predicate_type=TEST_RESULT, predicate=predicate
    )


def attached(
    *statements: bytes, key: PrivateKey | None = None, image: Descriptor = IMAGE
) -> tuple[ProofManifest, ...]:
    return proofs(image, statements, key or our_key(), reference=REFERENCE, created=CREATED)


def trusted(key: PrivateKey | None = None, **changes: Any) -> TrustedKey:
    return TrustedKey(key=(key or our_key()).public, name="site", **changes)


def judged(
    manifests: Sequence[ProofManifest], *keys: TrustedKey, digest: str = IMAGE.digest
) -> VerifiedProof:
    return verified(digest, manifests, keys or [trusted()], now=NOW)


def results(verdict: VerifiedProof) -> list[VerifiedStatement]:
    """The test results of a verdict, each payload once."""
    attestations = {
        original.payload: original
        for original in verdict.attestations
        if original.predicate_type == TEST_RESULT
    }
    return list(attestations.values())


def kind_of(reason: str) -> str:
    """The kind of a reason for which something vouches for nothing."""
    return next((kind for kind, words in KINDS.items() if re.search(words, reason)), MALFORMED)


def kinds(verdict: VerifiedProof) -> list[str]:
    """The kinds of what was rejected, each once, in order."""
    return sorted({kind_of(rejection.reason) for rejection in verdict.rejected})


def rebuilt(original: ProofManifest, change: Mapping[str, Any]) -> ProofManifest:
    """A manifest with other keys, and the same blobs."""
    manifest = {**json.loads(original.manifest), **change}
    return ProofManifest(
        manifest=json.dumps(manifest).encode(), blobs=original.blobs, tag=original.tag
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in some JSON."""
    yield path
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in pairs:
            yield from places(below, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """A copy of some JSON with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy
