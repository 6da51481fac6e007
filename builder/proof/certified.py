"""Signatures by certificates, as keyless signing makes them: who signed, if that can be believed.

It is believed where a site's roots name the authority that certified the signer, the log that has
the signature, and who vouches for the time at which it was made; all of it is in the bundle, and
nothing is asked for. https://github.com/sigstore/architecture-docs/blob/main/client-spec.md
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from builder.proof import strict
from builder.proof.chains import check_authority, check_issued, signer_of
from builder.proof.logged import Signed, logged
from builder.proof.roots import Roots, signed_by
from builder.proof.values import MALFORMED, TOO_LARGE, WRONG_KEY, Unusable

_MOST_ENTRIES = 8
_MOST_STAMPS = 8
_SHOWN = 200  # characters of what somebody calls themselves
_MAX_CERTIFICATE = 64 << 10  # bytes
# What cryptography raises at certificates that are none; most is read only when it is asked for.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Who signed: `subject` as the certificate names it, known to `issuer`, and when."""

    subject: str
    issuer: str
    time: dt.datetime


def certified(
    bundle: Mapping[str, Any],
    data: bytes,
    signature: bytes,
    roots: Roots,
    *,
    payload: bytes | None = None,
    wanted: Callable[[str, str], bool] = lambda _subject, _issuer: True,
) -> Signer:
    """Who signed some data, by a bundle; raises `Unusable` where the roots do not vouch for it.

    `payload` is what the data envelop, where they do. Whoever is not `wanted`, by name and issuer,
    is refused before much is read: everybody can have a certificate, and attach what they like.
    """
    try:
        return _signer(bundle, data, signature, roots, payload, wanted)
    except _UNREADABLE as error:
        raise Unusable(MALFORMED, "a certificate that cannot be read") from error


def _signer(
    bundle: Mapping[str, Any],
    data: bytes,
    signature: bytes,
    roots: Roots,
    payload: bytes | None,
    wanted: Callable[[str, str], bool],
) -> Signer:
    certificate = _certificate(bundle)
    check_authority(certificate, roots)
    subject, issuer = signer_of(certificate)
    if not wanted(subject, issuer):
        who, whose = ascii(subject)[:_SHOWN], ascii(issuer)[:_SHOWN]
        raise Unusable(WRONG_KEY, f"signed by {who}, whom {whose} knows: not trusted")
    hashed = _hashed(certificate)
    if not signed_by(certificate.public_key(), signature, data, hashed):
        raise Unusable(WRONG_KEY, "the certificate's key did not sign this")
    signed = Signed(
        data=data, signature=signature, certificate=certificate, hashed=hashed, payload=payload
    )
    times = _times(bundle, signed, roots)
    check_issued(certificate, roots, times)
    return Signer(subject=subject, issuer=issuer, time=min(times))


def _times(bundle: Mapping[str, Any], signed: Signed, roots: Roots) -> list[dt.datetime]:
    """All the times at which somebody whom the roots name saw the signature; at least one."""
    material = bundle["verificationMaterial"]
    stamps = _some(
        strict.part(material, "timestampVerificationData", "rfc3161Timestamps"), _MOST_STAMPS
    )
    contents = [
        strict.base64_bytes(strict.part({"": one}, "", "signedTimestamp"), "a time stamp")
        for one in stamps
    ]
    times = _stamped(contents, signed.signature, roots) if contents else []
    entries = _some(material.get("tlogEntries"), _MOST_ENTRIES)
    found = [logged(one, signed, roots.logs) for one in entries if isinstance(one, dict)]
    if len(found) < len(entries) or (roots.logs and not found):
        raise Unusable(WRONG_KEY, "the signature is in no log that the roots name")
    times += [one.time for one in found if one.time]
    if not times:
        raise Unusable(WRONG_KEY, "nobody whom the roots name says when this was signed")
    if not all(one.log.span.covers(time) for one in found for time in times):
        raise Unusable(WRONG_KEY, "an entry of a time at which the log is not believed")
    return times


def _stamped(stamps: list[bytes], signature: bytes, roots: Roots) -> list[dt.datetime]:
    # Reading them takes modules that start slowly, and the log's promise says the time as well.
    from builder.proof.stamps import stamped  # noqa: PLC0415

    return [stamped(one, signature, roots.stampers) for one in stamps]


def _some(value: object, most: int) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise Unusable(MALFORMED, f"a bundle with more than {most} entries or time stamps")
    return value


def _certificate(bundle: Mapping[str, Any]) -> x509.Certificate:
    material = bundle["verificationMaterial"]
    chain = strict.part(material, "x509CertificateChain", "certificates")
    several = chain if isinstance(chain, list) else [material.get("certificate")]
    if not 1 <= len(several) <= _MOST_ENTRIES:
        raise Unusable(MALFORMED, "a bundle without a certificate, or with too many")
    raw = [
        strict.base64_bytes(strict.part({"": one}, "", "rawBytes"), "a certificate")
        for one in several
    ]
    if max(map(len, raw)) > _MAX_CERTIFICATE:
        raise Unusable(TOO_LARGE, f"a certificate of more than {_MAX_CERTIFICATE} bytes")
    certificates = [x509.load_der_x509_certificate(one) for one in raw]
    if any(one.issuer == one.subject for one in certificates):
        raise Unusable(MALFORMED, "a bundle that brings an authority of its own")
    return certificates[0]


def _hashed(certificate: x509.Certificate) -> hashes.HashAlgorithm:
    """The hash that goes with a certificate's key."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        return hashes.SHA256()
    if isinstance(key, ec.EllipticCurvePublicKey):
        found = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
        if hashed := found.get(key.curve.key_size):
            return hashed
    raise Unusable(MALFORMED, "the certificate's key is of a kind that is not used here")
