"""Certificates of signers: by whom they were issued, for whom, and in which log they are.

https://github.com/sigstore/fulcio/blob/main/docs/certificate-specification.md
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import struct
from collections.abc import Sequence
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.certificate_transparency import (
    LogEntryType,
    SignatureAlgorithm,
    SignedCertificateTimestamp,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, ObjectIdentifier

from builder.trust.proof.attachments import MALFORMED, WRONG_KEY, Unusable
from builder.trust.proof.roots import Authority, Roots

NO_AUTHORITY = "the certificate is of no authority that the roots name"
E = TypeVar("E", bound=x509.ExtensionType)
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")  # a UTF8String in DER
_OLD_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")  # the bare text
_UTF8_STRING = 0x0C
_SHORT = 0x80  # lengths below stand in one byte
_KNOWN = {
    ExtensionOID.KEY_USAGE,
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
}
_SIGNS = {
    SignatureAlgorithm.ECDSA: ec.EllipticCurvePublicKey,
    SignatureAlgorithm.RSA: rsa.RSAPublicKey,
}
_MILLISECOND = dt.timedelta(milliseconds=1)
_MOST_TIMESTAMPS = 8  # of logs, in one certificate


def signer_of(certificate: x509.Certificate) -> tuple[str, str]:
    """Whom a certificate was issued for, and who vouched: an address of a workflow or a person.

    Raises `Unusable` where it does not say, or names several.
    """
    names = _extension(certificate, x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    mails = names.get_values_for_type(x509.RFC822Name)
    if len(list(names)) != 1 or not (uris or mails):
        raise Unusable(MALFORMED, "the certificate does not name one signer")
    name = (uris or mails)[0]
    if not name or not (name.isascii() and name.isprintable()):
        raise Unusable(MALFORMED, "the certificate's signer has a name that cannot be shown")
    return name, _issuer(certificate)


def check_authority(certificate: x509.Certificate, roots: Roots) -> None:
    """An authority of the roots signed a certificate, at whatever time; raises `Unusable`."""
    if not any(_is_of(certificate, one.chain[0]) for one in roots.certifiers):
        raise Unusable(WRONG_KEY, NO_AUTHORITY)


def check_issued(certificate: x509.Certificate, roots: Roots, times: Sequence[dt.datetime]) -> None:
    """An authority of the roots issued a certificate for signing, valid at all of some times.

    Where the roots name logs of certificates, it is in one of them. Raises `Unusable`.
    """
    _check_profile(certificate)
    if not all(_is_valid(certificate, time) for time in times):
        raise Unusable(WRONG_KEY, "the certificate was not valid when this was signed")
    issuers = [one for one in roots.certifiers if _issued(one, certificate, times)]
    if not issuers:
        raise Unusable(WRONG_KEY, "the certificate's authority was not believed at that time")
    logged = roots.certificate_logs
    if logged and not any(_is_logged(certificate, one.chain[0], roots) for one in issuers):
        raise Unusable(WRONG_KEY, "the certificate is in no log that the roots name")


def is_chain(
    chain: Sequence[x509.Certificate], time: dt.datetime, purpose: ObjectIdentifier
) -> bool:
    """Whether each certificate was issued by the next one, for a purpose, and valid at a time."""
    pairs = list(itertools.pairwise(chain))
    return all(_is_valid(one, time) for one in chain) and all(
        _is_of(one, issuer) and _is_authority(issuer, purpose, below=number)
        for number, (one, issuer) in enumerate(pairs)
    )


def _issued(
    authority: Authority, certificate: x509.Certificate, times: Sequence[dt.datetime]
) -> bool:
    chain = (certificate, *authority.chain)
    purpose = ExtendedKeyUsageOID.CODE_SIGNING
    return all(authority.span.covers(time) and is_chain(chain, time, purpose) for time in times)


def _is_valid(certificate: x509.Certificate, time: dt.datetime) -> bool:
    return certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc


def _is_of(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _is_authority(certificate: x509.Certificate, purpose: ObjectIdentifier, *, below: int) -> bool:
    """Return whether a certificate may issue others, with some authorities between it and the last.

    One that is limited in a way that is not known here, or to some names, may not.
    """
    found = {one.oid: one.value for one in certificate.extensions}
    limits, usage = found.get(ExtensionOID.BASIC_CONSTRAINTS), found.get(ExtensionOID.KEY_USAGE)
    if not isinstance(limits, x509.BasicConstraints) or not isinstance(usage, x509.KeyUsage):
        return False
    insists = {one.oid for one in certificate.extensions if one.critical}
    if insists - _KNOWN or ExtensionOID.NAME_CONSTRAINTS in found:
        return False
    purposes = found.get(ExtensionOID.EXTENDED_KEY_USAGE, [purpose])
    deep = limits.path_length is None or below <= limits.path_length
    return limits.ca and deep and usage.key_cert_sign and purpose in purposes


def _check_profile(certificate: x509.Certificate) -> None:
    """A certificate is for signing code, and all that it insists on is known here."""
    strange = {one.oid for one in certificate.extensions if one.critical} - _KNOWN
    if strange:
        raise Unusable(MALFORMED, "the certificate insists on something that is not known here")
    usage = _extension(certificate, x509.KeyUsage)
    purposes = _extension(certificate, x509.ExtendedKeyUsage)
    if not usage.digital_signature or ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
        raise Unusable(WRONG_KEY, "the certificate is not for signing code")
    for one in certificate.extensions:
        if isinstance(one.value, x509.BasicConstraints) and one.value.ca:
            raise Unusable(WRONG_KEY, "the certificate is an authority's, and no signer's")


def _extension(certificate: x509.Certificate, kind: type[E]) -> E:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound as error:
        raise Unusable(MALFORMED, f"the certificate has no {kind.__name__}") from error


def _issuer(certificate: x509.Certificate) -> str:
    """Who knew the signer, `https://token.actions.githubusercontent.com`."""
    found = {one.oid: one.value for one in certificate.extensions}
    new, old = (getattr(found.get(oid), "value", b"") for oid in (_ISSUER, _OLD_ISSUER))
    text = _utf8(new) if new else old
    if not text or not text.isascii():
        raise Unusable(MALFORMED, "the certificate does not say who knew the signer")
    return str(text, "ascii")


def _utf8(der: bytes) -> bytes:
    """What is in a UTF8String in DER; raises `Unusable`."""
    for head in (2, 3):
        text = der[head:]
        long = [] if len(text) < _SHORT else [_SHORT + 1]
        if len(text) < 2 * _SHORT and der[:head] == bytes([_UTF8_STRING, *long, len(text)]):
            return text
    raise Unusable(MALFORMED, "the certificate's issuer of identities cannot be read")


def _is_logged(certificate: x509.Certificate, issuer: x509.Certificate, roots: Roots) -> bool:
    """Return whether a log of certificates promised to hold this one (RFC 6962, 3.2)."""
    held = _extension(certificate, x509.PrecertificateSignedCertificateTimestamps)
    promises = list(held)
    if len(promises) > _MOST_TIMESTAMPS:
        raise Unusable(MALFORMED, "the certificate names too many logs")
    return any(_promised(one, certificate, issuer, roots) for one in promises)


def _promised(
    promise: SignedCertificateTimestamp,
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    roots: Roots,
) -> bool:
    if promise.entry_type != LogEntryType.PRE_CERTIFICATE:
        return False
    if not isinstance(promise.signature_hash_algorithm, hashes.SHA256):
        return False
    kind = _SIGNS.get(promise.signature_algorithm)
    time = promise.timestamp.replace(tzinfo=dt.timezone.utc)
    milliseconds = (time - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // _MILLISECOND
    content = certificate.tbs_precertificate_bytes
    key = issuer.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    data = (
        struct.pack("!BBQH", promise.version.value, 0, milliseconds, promise.entry_type.value)
        + hashlib.sha256(key).digest()
        + len(content).to_bytes(3, "big")
        + content
        + struct.pack("!H", len(promise.extension_bytes))
        + promise.extension_bytes
    )
    return any(
        one.identifier == promise.log_id
        and kind is not None
        and isinstance(one.key, kind)
        and one.span.covers(time)
        and one.signed(promise.signature, data)
        for one in roots.certificate_logs
    )
