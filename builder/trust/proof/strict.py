"""Reading what others wrote: JSON and Base64 that mean one thing only."""

from __future__ import annotations

import base64
import binascii
import json
import re

from builder.model import exact_json
from builder.trust.proof.values import MALFORMED, TOO_LARGE, Descriptor, Unusable

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
