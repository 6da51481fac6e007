"""Whom certificates are believed: the authorities and logs of a `trusted_root.json`.

The file is Sigstore's own, as `cosign trusted-root create` makes it and Sigstore's TUF repository
has it: https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_trustroot.proto
Nothing in it is asked for over the network, so that a site without one can hold proof against it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.trust.proof import attachments
from builder.trust.proof.attachments import Unusable

T = TypeVar("T")
LogKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
_KIND = "application/vnd.dev.sigstore.trustedroot"
_UTC = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", re.ASCII)
_LIMIT = 4 << 20  # bytes; that of Sigstore has 10 kB
# What cryptography raises at certificates that are none; most is read only when it is asked for.
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_HINT = "cosign trusted-root create makes one; cosign initialize brings Sigstore's own"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A time from its start to its end, both within it; without an end it goes on."""

    start: dt.datetime
    end: dt.datetime | None = None

    def covers(self, time: dt.datetime) -> bool:
        return self.start <= time and (self.end is None or time <= self.end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Authority:
    """A chain of certificates, each issued by the next one, and when it is believed."""

    chain: tuple[x509.Certificate, ...]
    span: Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A log's key, the identifier that its entries name it by, and when it is believed."""

    identifier: bytes
    key: LogKey
    span: Span

    def signed(self, signature: bytes, data: bytes) -> bool:
        """Return whether the log signed this, with SHA-256 where the key is not of Ed25519."""
        return signed_by(self.key, signature, data, hashes.SHA256())


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """Those who certify signers, who stamp times, the logs of signatures, and of certificates."""

    certifiers: tuple[Authority, ...]
    stampers: tuple[Authority, ...]
    logs: tuple[Log, ...]
    certificate_logs: tuple[Log, ...]


def roots_in(path: Path) -> Roots:
    """The roots in a file; raises `BadInput`, which says what is wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint=_HINT) from error
    except ValueError as error:  # a NUL
        raise BadInput(f"{str(path)!a}: no name of a file", hint=_HINT) from error
    return roots_of(content, name=str(path))


def roots_of(content: bytes, *, name: str) -> Roots:
    """The roots that a `trusted_root.json` names; raises `BadInput`."""
    try:
        value = attachments.json_object(content, "the file", limit=_LIMIT, most=None)
        if not str(value.get("mediaType", "")).startswith(_KIND):
            raise BadInput(f"{name}: not a trusted_root.json of Sigstore", hint=_HINT)
        made = Roots(
            certifiers=_all(value, "certificateAuthorities", _authority),
            stampers=_all(value, "timestampAuthorities", _authority),
            logs=_all(value, "tlogs", _log),
            certificate_logs=_all(value, "ctlogs", _log),
        )
    except (Unusable, *UNREADABLE) as error:
        raise BadInput(f"{name}: not a trusted_root.json that can be read: {error}") from error
    if not made.certifiers:
        raise BadInput(f"{name}: names no certificate authority", hint=_HINT)
    if not (made.logs or made.stampers):
        raise BadInput(f"{name}: names neither a log nor a time-stamping authority", hint=_HINT)
    return made


def signed_by(key: object, signature: bytes, data: bytes, hashed: hashes.HashAlgorithm) -> bool:
    """Return whether a key signed some data; False for keys of a kind that is not used here."""
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(hashed))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), hashed)
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _all(value: Mapping[str, object], key: str, read: Callable[[object], T]) -> tuple[T, ...]:
    found = value.get(key, [])
    if not isinstance(found, list):
        raise ValueError(f"{key} is no list")  # noqa: TRY004
    return tuple(read(one) for one in found)


def _authority(value: object) -> Authority:
    certificates = part({"": value}, "", "certChain", "certificates")
    if not isinstance(certificates, list) or not certificates:
        raise ValueError("an authority without certificates")
    chain = tuple(x509.load_der_x509_certificate(_raw({"": one}, "")) for one in certificates)
    return Authority(chain=chain, span=_span(part({"": value}, "", "validFor")))


def _log(value: object) -> Log:
    known = {"": value}
    raw = _raw(known, "", "publicKey")
    key = serialization.load_der_public_key(raw)
    if not isinstance(key, LogKey):
        raise ValueError("a log's key is of a kind that is not used")  # noqa: TRY004
    return Log(
        identifier=attachments.base64_bytes(
            part(known, "", "logId", "keyId"), "a log's identifier"
        ),
        key=key,
        span=_span(part(known, "", "publicKey", "validFor")),
    )


def _raw(value: Mapping[str, object], *keys: str) -> bytes:
    return attachments.base64_bytes(part(value, *keys, "rawBytes"), "a key or certificate")


def _span(value: object) -> Span:
    start, end = (part({"": value}, "", key) for key in ("start", "end"))
    if start is None:
        raise ValueError("something that is believed from no day on")
    return Span(start=_time(start), end=None if end is None else _time(end))


def _time(value: object) -> dt.datetime:
    """A time of RFC 3339 in UTC."""
    found = _UTC.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError(f"{ascii(value)[:40]} is no time in UTC")
    return dt.datetime.fromisoformat(found[1]).replace(tzinfo=dt.timezone.utc)
