"""What proof is made of: manifests that refer to an image, claims, and what is found of them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from builder.model import exact_json
from builder.model.digests import digest_of
from builder.model.exact_json import member

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"

SIGNATURE_NOTE = "dev.cosignproject.cosign/signature"
CONTAINER_SIGNATURE = "cosign container image signature"

# cosign's own limit is 128 MiB; the bill of materials of 2,000 packages is 2 MiB.
MAX_MANIFEST = 4 << 20  # bytes; the least that a registry must accept (OCI distribution spec)
MAX_PAYLOAD = 32 << 20  # bytes of one signature, attestation or bundle
MAX_LAYERS = 200  # of one manifest
MAX_ATTACHMENTS = 1000  # of one image
MAX_CLAIMS = 2000  # layers of all these manifests: each may take some signatures' checks

# Why something vouches for nothing.
MALFORMED = "malformed"
WRONG_KEY = "wrong key"
EXPIRED_KEY = "expired key"
KEYLESS = "keyless"
OTHER_SUBJECT = "other subject"
WRONG_TYPE = "wrong payload type"
TOO_LARGE = "too large"


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """What an OCI manifest says of a blob or of another manifest. `size` counts bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        return {**found, "annotations": dict(self.annotations)} if self.annotations else found


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A manifest that belongs to an image, with the blobs it names by their digests.

    `tag` is where the classic format keeps it (`sha256-….sig`); a referrer has none, is written
    by its digest, and names the image as its `subject`. `replaces` are the digests of manifests
    that are to go when it is there. It is `fresh` if the image had no proof at all. `drops` are
    layers, by their digests, that were left out of what was at the tag; what others have written
    there since is `merge`d.
    """

    manifest: bytes
    blobs: Mapping[str, bytes]
    tag: str = ""
    artifact_type: str = ""
    replaces: tuple[str, ...] = ()
    fresh: bool = False
    drops: frozenset[str] = frozenset()
    merge: Callable[[bytes], Attachment | None] | None = field(
        default=None, compare=False, repr=False
    )

    def merged(self, there: bytes) -> Attachment | None:
        """This proof with what is at its tag now, `there` (empty if nothing is).

        None where that has all of it. Raises `Refused` for what is no proof.
        """
        assert self.merge is not None  # whoever makes what has a tag says how
        return self.merge(there)

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def media_type(self) -> str:
        return MANIFEST

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(media_type=MANIFEST, digest=self.digest, size=len(self.manifest))


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A signature of the image itself, by the trusted keys named in `keys`.

    `signer` is whom a certificate names, who is one, in the policy's words of several keys perhaps.
    `reference` is the name that the signer gave to the image, where the format has one. `source`
    is the digest of the manifest that it was found in; `format` is classic or bundle.
    """

    keys: tuple[str, ...]
    source: str
    format: str
    reference: str = ""
    signer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attestation:
    """An in-toto statement about the image that the trusted keys named in `keys` signed.

    `payload` is what was signed, byte for byte.
    """

    statement: Mapping[str, object]
    payload: bytes
    keys: tuple[str, ...]
    source: str
    format: str

    @property
    def predicate_type(self) -> str:
        return str(self.statement["predicateType"])

    @property
    def predicate(self) -> Mapping[str, object]:
        found: Mapping[str, object] = member(self.statement, "predicate")
        return found


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Rejection:
    """Something that vouches for nothing. `kind` is one of the constants above, for programs."""

    kind: str
    reason: str
    source: str
    format: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the trusted keys vouch for of one image, and what was rejected."""

    signatures: tuple[Signature, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    def of_type(self, predicate_type: str, *, once: bool = True) -> tuple[Attestation, ...]:
        """The attestations with a predicate type; `once` is each payload, in whatever format."""
        found: dict[object, Attestation] = {}
        for one in self.attestations:
            if one.predicate_type == predicate_type:
                found.setdefault(one.payload if once else len(found), one)
        return tuple(found.values())


class Unusable(Exception):
    """What was found cannot vouch for anything; raised and caught in this package."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


MOST_VALUES = 10_000  # of a bundle, an envelope or a log's entry; the largest have some hundred
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def json_object(
    data: bytes, what: str, *, limit: int, most: int | None = MOST_VALUES
) -> dict[str, object]:
    """A JSON object in UTF-8; raises `Unusable`, which names `what` it was to be.

    It has at most `limit` bytes and `most` values; None is for what a trusted key has signed.
    """
    if len(data) > limit:
        raise Unusable(TOO_LARGE, f"{what} has {len(data)} bytes; at most {limit} are read")
    try:
        found = exact_json.parsed(data, most=most)
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be shown
    except ValueError as error:
        raise Unusable(MALFORMED, f"{what} is not JSON that can be relied on") from error
    if not isinstance(found, dict):
        raise Unusable(MALFORMED, f"{what} is not a JSON object")
    return found


def base64_bytes(text: object, what: str) -> bytes:
    """The bytes of Base64 in the usual or the URL-safe alphabet; raises `Unusable`."""
    if not isinstance(text, str):
        raise Unusable(MALFORMED, f"{what} is not there")
    try:
        return base64.b64decode(text.translate(_USUAL), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable(MALFORMED, f"{what} is not Base64") from error


_USUAL = str.maketrans("-_", "+/")


def descriptor(value: object, what: str, *, limit: int) -> Descriptor:
    """A descriptor of an OCI manifest; raises `Unusable`, also where the blob is too large."""
    if not isinstance(value, dict):
        raise Unusable(MALFORMED, f"{what} is not a descriptor")
    size, digest, media_type = value.get("size"), value.get("digest"), value.get("mediaType")
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise Unusable(MALFORMED, f"{what} has no SHA-256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Unusable(MALFORMED, f"{what} has no size")
    if size > limit:
        raise Unusable(TOO_LARGE, f"{what} has {size} bytes; at most {limit} are read")
    if not isinstance(media_type, str):
        raise Unusable(MALFORMED, f"{what} has no media type")
    notes = value.get("annotations") or {}
    return Descriptor(
        media_type=media_type, digest=digest, size=size, annotations=texts(notes, what)
    )


def texts(value: object, what: str) -> dict[str, str]:
    """Annotations: texts by texts; raises `Unusable`."""
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise Unusable(MALFORMED, f"the annotations of {what} are not texts")
    return value
