"""Entries of Rekor, the public log of signatures: that it has them, and what they say.

Its entries are held against a log's key that the site's roots name, and not asked for: the proof
that an entry is in the log, with the log's signature of its state, comes with the bundle.
https://github.com/sigstore/architecture-docs/blob/main/client-spec.md
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from builder.model.exact_json import part
from builder.trust.proof import attachments
from builder.trust.proof.attachments import MALFORMED, TOO_LARGE, WRONG_KEY, Unusable
from builder.trust.proof.roots import Log

MAX_BODY = 8 << 20  # bytes; entries of the kind `intoto` may hold what was signed
_DEEPEST = 64  # of trees of logs: 2^64 leaves
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_LINE = re.compile("\u2014 (\\S+) (\\S+)")
_HINT = 4  # bytes of a log's identifier, before its signature
_MOST_LINES = 100
_MOST_SIGNATURES = 3  # that say that they are of one log: who checks them takes time
_MOST_CHECKPOINT = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """What was signed, and by which certificate; `payload` is that of an envelope, if it was one.

    `hashed` is the hash of the signature. `data` are the bytes that it is over.
    """

    data: bytes
    signature: bytes
    certificate: x509.Certificate
    hashed: hashes.HashAlgorithm
    payload: bytes | None = None


def logged(entry: object, signed: Signed, logs: tuple[Log, ...]) -> Entry | None:
    """An entry of one of the logs about just this signature; None where it is of another log.

    Raises `Unusable` where it is of one of the logs, or says so, and is not as it should be.
    """
    if not isinstance(entry, dict):
        raise Unusable(MALFORMED, "a log's entry that is none")
    identifier = attachments.base64_bytes(part(entry, "logId", "keyId"), "a log's identifier")
    known = [one for one in logs if one.identifier == identifier]
    if not known:
        return None
    encoded = entry.get("canonicalizedBody")
    if isinstance(encoded, str) and len(encoded) > MAX_BODY:
        raise Unusable(TOO_LARGE, f"a log's entry has {len(encoded)} bytes; at most {MAX_BODY}")
    body = attachments.base64_bytes(encoded, "a log's entry")
    found, errors, time = [], [], None
    for log in known:  # one key may be there twice, for one time and another
        try:
            _check_inclusion(entry, body, log)
            time = _promised(entry, body, log)
            found.append(log)
        except Unusable as error:
            errors.append(error)
    if not found:
        raise errors[0]
    _check_about(entry, body, signed)
    return Entry(logs=tuple(found), time=time)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The log that has an entry, as the roots name it, and since when, if it said so itself."""

    logs: tuple[Log, ...]
    time: dt.datetime | None

    def is_believed(self, time: dt.datetime) -> bool:
        """Return whether the log is believed of a time."""
        return any(one.span.covers(time) for one in self.logs)


def _check_inclusion(entry: Mapping[str, object], body: bytes, log: Log) -> None:
    """The entry is a leaf of a tree whose root the log signed: RFC 9162, 2.1.3."""
    proof = part(entry, "inclusionProof")
    if not isinstance(proof, dict):
        raise Unusable(MALFORMED, "a log's entry without the proof that it is there")
    # What is 0 may be left out, as in all JSON of protocol buffers.
    index, size = (_number(proof.get(key, 0)) for key in ("logIndex", "treeSize"))
    root = attachments.base64_bytes(proof.get("rootHash"), "a log's root")
    given = proof.get("hashes") or []
    if not isinstance(given, list) or len(given) > _DEEPEST or not index < size:
        raise Unusable(MALFORMED, "a proof that is none of this log's tree")
    path = [attachments.base64_bytes(one, "a hash of a log's tree") for one in given]
    if not hmac.compare_digest(_root(body, index, size, path), root):
        raise Unusable(WRONG_KEY, "the entry is not in the log's tree")
    _check_checkpoint(part(proof, "checkpoint", "envelope"), size, root, log)


def _root(body: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root of a tree that has this leaf, by the hashes beside its way up."""
    found, last = hashlib.sha256(b"\x00" + body).digest(), size - 1
    for beside in path:
        if last == 0:
            raise Unusable(MALFORMED, "a proof that is longer than the log's tree is high")
        if index & 1 or index == last:
            found = hashlib.sha256(b"\x01" + beside + found).digest()
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            found = hashlib.sha256(b"\x01" + found + beside).digest()
        index, last = index >> 1, last >> 1
    if last:
        raise Unusable(MALFORMED, "a proof that does not reach the root of the log's tree")
    return found


def _check_checkpoint(text: object, size: int, root: bytes, log: Log) -> None:
    """The log signed this size and root: https://c2sp.org/tlog-checkpoint"""
    if not isinstance(text, str) or len(text) > _MOST_CHECKPOINT:
        raise Unusable(MALFORMED, "a log's entry without the log's signed state")
    note, blank, signatures = text.partition("\n\n")
    lines = note.split("\n")
    if not blank or len(lines) < 3 or not lines[0] or len(lines) > _MOST_LINES:  # noqa: PLR2004
        raise Unusable(MALFORMED, "a log's state that cannot be read")
    if _number(lines[1]) != size or attachments.base64_bytes(lines[2], "a log's root") != root:
        raise Unusable(WRONG_KEY, "the log's state is that of another tree")
    signed = f"{note}\n".encode()
    some = itertools.islice(_signatures(signatures, log), _MOST_SIGNATURES)
    if not any(log.signed(one, signed) for one in some):
        raise Unusable(WRONG_KEY, "the log's state is not signed by the log")


def _signatures(text: str, log: Log) -> Iterator[bytes]:
    """The signatures of a note that say that they are this log's."""
    for line in text.split("\n")[:_MOST_LINES]:
        if found := _LINE.fullmatch(line):
            content = attachments.base64_bytes(found[2], "a signature of a log's state")
            if content[:_HINT] == log.identifier[:_HINT]:
                yield content[_HINT:]


def _promised(entry: Mapping[str, object], body: bytes, log: Log) -> dt.datetime | None:
    """When the log says that it took the entry; None where it does not say so."""
    if entry.get("inclusionPromise") is None:
        return None
    promise = part(entry, "inclusionPromise", "signedEntryTimestamp")
    seconds = _number(entry.get("integratedTime"))
    said = {
        "body": base64.b64encode(body).decode(),
        "integratedTime": seconds,
        "logID": log.identifier.hex(),
        "logIndex": _number(entry.get("logIndex", 0)),
    }
    data = json.dumps(said, separators=(",", ":"), sort_keys=True).encode()
    if not log.signed(attachments.base64_bytes(promise, "a log's promise"), data):
        raise Unusable(WRONG_KEY, "the log did not promise this entry for its time")
    try:
        time = dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise Unusable(MALFORMED, "a log's entry of no time") from error
    if not log.span.covers(time):
        raise Unusable(WRONG_KEY, "an entry of a time at which the log is not believed")
    return time


def _check_about(entry: Mapping[str, object], body: bytes, signed: Signed) -> None:
    """What the entry says is what was signed, byte for byte; raises `Unusable`."""
    said = attachments.json_object(body, "a log's entry", limit=MAX_BODY)
    kind = f"{said.get('kind')}/{said.get('apiVersion')}"
    named = part(entry, "kindVersion") or {}
    if kind != f"{part(named, 'kind')}/{part(named, 'version')}":
        raise Unusable(MALFORMED, "a log's entry of another kind than it says")
    about = _ABOUT.get(kind)
    if about is None:
        raise Unusable(MALFORMED, f"a log's entry of the kind {ascii(kind)[:60]}, unknown here")
    if not about(part(said, "spec") or {}, signed):
        raise Unusable(WRONG_KEY, "the log's entry is about another signature")


def _is_hashedrekord(spec: Mapping[str, object], signed: Signed) -> bool:
    return (
        part(spec, "data", "hash", "algorithm") == signed.hashed.name
        and part(spec, "data", "hash", "value") == _digest(signed).hex()
        and _is(part(spec, "signature", "content"), signed.signature)
        and _is_pem(part(spec, "signature", "publicKey", "content"), signed)
    )


def _is_hashedrekord_2(spec: Mapping[str, object], signed: Signed) -> bool:
    known = "hashedRekordV002"
    return _is_hash(part(spec, known, "data"), signed.hashed, _digest(signed)) and _is_signature_2(
        part(spec, known, "signature"), signed
    )


def _is_dsse(spec: Mapping[str, object], signed: Signed) -> bool:
    if signed.payload is None:
        return False
    signatures = part(spec, "signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        return False
    [one] = signatures
    return (
        part(spec, "payloadHash", "algorithm") == "sha256"
        and part(spec, "payloadHash", "value") == hashlib.sha256(signed.payload).hexdigest()
        and _is(part({"": one}, "", "signature"), signed.signature)
        and _is_pem(part({"": one}, "", "verifier"), signed)
    )


def _is_dsse_2(spec: Mapping[str, object], signed: Signed) -> bool:
    if signed.payload is None:
        return False
    signatures = part(spec, "dsseV002", "signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        return False
    digest = hashlib.sha256(signed.payload).digest()
    return _is_hash(
        part(spec, "dsseV002", "payloadHash"), hashes.SHA256(), digest
    ) and _is_signature_2(signatures[0], signed)


def _is_intoto(spec: Mapping[str, object], signed: Signed) -> bool:
    """What cosign 2 logged; the signature is in Base64 twice."""
    if signed.payload is None:
        return False
    content = part(spec, "content") or {}
    signatures = part(content, "envelope", "signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        return False
    once = attachments.base64_bytes(part({"": signatures[0]}, "", "sig"), "a log's signature")
    return (
        part(content, "payloadHash", "algorithm") == "sha256"
        and part(content, "payloadHash", "value") == hashlib.sha256(signed.payload).hexdigest()
        and once.isascii()
        and _is(once.decode(), signed.signature)
        and _is_pem(part({"": signatures[0]}, "", "publicKey"), signed)
    )


_ABOUT = {
    "hashedrekord/0.0.1": _is_hashedrekord,
    "hashedrekord/0.0.2": _is_hashedrekord_2,
    "dsse/0.0.1": _is_dsse,
    "dsse/0.0.2": _is_dsse_2,
    "intoto/0.0.2": _is_intoto,
}
_NAMES_2 = {"sha256": "SHA2_256", "sha384": "SHA2_384", "sha512": "SHA2_512"}


def _is_hash(given: object, hashed: hashes.HashAlgorithm, digest: bytes) -> bool:
    algorithm, value = (part({"": given}, "", key) for key in ("algorithm", "digest"))
    return algorithm == _NAMES_2.get(hashed.name) and _is(value, digest)


def _is_signature_2(given: object, signed: Signed) -> bool:
    known = {"": given}
    raw = part(known, "", "verifier", "x509Certificate", "rawBytes")
    return _is(part(known, "", "content"), signed.signature) and _is(raw, _der(signed))


def _is_pem(given: object, signed: Signed) -> bool:
    """Return whether this is the signer's certificate: PEM in Base64."""
    pem = attachments.base64_bytes(given, "a log's certificate")
    try:
        return x509.load_pem_x509_certificate(pem) == signed.certificate
    except ValueError:
        return False


def _is(given: object, wanted: bytes) -> bool:
    return hmac.compare_digest(attachments.base64_bytes(given, "what a log's entry says"), wanted)


def _digest(signed: Signed) -> bytes:
    made = hashes.Hash(signed.hashed)
    made.update(signed.data)
    return made.finalize()


def _der(signed: Signed) -> bytes:
    return signed.certificate.public_bytes(serialization.Encoding.DER)


def _number(value: object) -> int:
    """A number of a log, which JSON of protocol buffers writes as a text."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        raise Unusable(MALFORMED, "a number of a log's entry that is none")
    return int(text)
