"""Times that an authority vouches for: https://www.rfc-editor.org/rfc/rfc3161

A stamp says that a signature was there at a time. It is believed of an authority that the site's
roots name, by that authority's own chain alone, as it was valid at that time.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from pyasn1.codec.der import decoder, encoder
from pyasn1.error import PyAsn1Error
from pyasn1.type.base import Asn1Item
from pyasn1_modules import rfc3161, rfc5035, rfc5652

from builder.trust.proof.attachments import MALFORMED, TOO_LARGE, WRONG_KEY, Unusable
from builder.trust.proof.chains import is_chain
from builder.trust.proof.roots import Authority, signed_by

MAX_STAMP = 8 << 10  # bytes; with three certificates one has 3 kB
_HASHES: dict[str, hashes.HashAlgorithm] = {
    "2.16.840.1.101.3.4.2.1": hashes.SHA256(),
    "2.16.840.1.101.3.4.2.2": hashes.SHA384(),
    "2.16.840.1.101.3.4.2.3": hashes.SHA512(),
}
# What signature algorithms hash with; what is not here says it in the digest's algorithm alone.
_SIGNED_WITH: dict[str, hashes.HashAlgorithm] = {
    "1.2.840.10045.4.3.2": hashes.SHA256(),  # ecdsa-with-SHA256
    "1.2.840.10045.4.3.3": hashes.SHA384(),
    "1.2.840.10045.4.3.4": hashes.SHA512(),
    "1.2.840.113549.1.1.11": hashes.SHA256(),  # sha256WithRSAEncryption
    "1.2.840.113549.1.1.12": hashes.SHA384(),
    "1.2.840.113549.1.1.13": hashes.SHA512(),
}
_GRANTED = (0, 1)  # granted, granted with modifications
_TIME = re.compile(r"(\d{14})(?:\.\d{1,9})?Z")


def stamped(stamp: bytes, signature: bytes, authorities: tuple[Authority, ...]) -> dt.datetime:
    """When one of the authorities saw a signature; raises `Unusable`.

    `stamp` is a TimeStampResp in DER.
    """
    check_size(stamp)
    try:
        content, signer = _parts(stamp)
        info = _decoded(content, rfc3161.TSTInfo())
        time = _time(str(info["genTime"]))
        imprint = info["messageImprint"]
        hashed = _hash(imprint["hashAlgorithm"])
        _check_attributes(content, signer)
        if not hmac.compare_digest(_digest(hashed, signature), bytes(imprint["hashedMessage"])):
            raise Unusable(WRONG_KEY, "a time stamp is of another signature")
        for one in authorities:
            if one.span.covers(time) and _is_by(one, signer, time):
                return time
    except (PyAsn1Error, ValueError, KeyError, IndexError, TypeError) as error:
        raise Unusable(MALFORMED, "a time stamp that cannot be read") from error
    raise Unusable(WRONG_KEY, "a time stamp is by no authority that the roots name for its time")


def check_size(stamp: bytes) -> None:
    """Raises `Unusable` for what is longer than time stamps are."""
    if len(stamp) > MAX_STAMP:
        raise Unusable(TOO_LARGE, f"a time stamp has {len(stamp)} bytes; at most {MAX_STAMP}")


def _parts(stamp: bytes) -> tuple[bytes, rfc5652.SignerInfo]:
    """What was stamped (TSTInfo in DER), and the one SignerInfo."""
    response = _decoded(stamp, rfc3161.TimeStampResp())
    if int(response["status"]["status"]) not in _GRANTED:
        raise Unusable(WRONG_KEY, "the time stamp was not granted")
    token = response["timeStampToken"]
    if token["contentType"] != rfc5652.id_signedData:
        raise Unusable(MALFORMED, "a time stamp that is not signed")
    signed = _decoded(bytes(token["content"]), rfc5652.SignedData())
    held = signed["encapContentInfo"]
    if held["eContentType"] != rfc3161.id_ct_TSTInfo or len(signed["signerInfos"]) != 1:
        raise Unusable(MALFORMED, "not the time stamp of one signer")
    return bytes(held["eContent"]), signed["signerInfos"][0]


def _check_attributes(content: bytes, signer: rfc5652.SignerInfo) -> None:
    """The signed attributes are about this content; raises `Unusable`."""
    kind = _attribute(signer, rfc5652.id_contentType)
    digest = _attribute(signer, rfc5652.id_messageDigest)
    if _decoded(kind, rfc5652.ContentType()) != rfc3161.id_ct_TSTInfo:
        raise Unusable(MALFORMED, "a time stamp whose attributes are about something else")
    said = bytes(_decoded(digest, rfc5652.MessageDigest()))
    if not hmac.compare_digest(_digest(_hash(signer["digestAlgorithm"]), content), said):
        raise Unusable(WRONG_KEY, "a time stamp that was changed")


def _is_by(authority: Authority, signer: rfc5652.SignerInfo, time: dt.datetime) -> bool:
    """Return whether an authority's first certificate signed, and was good for that."""
    certificate = authority.chain[0]
    attributes = rfc5652.SignedAttributes()
    attributes.extend(signer["signedAttrs"])
    named = str(signer["signatureAlgorithm"]["algorithm"])
    return (
        _names(signer, certificate)
        and signed_by(
            certificate.public_key(),
            bytes(signer["signature"]),
            encoder.encode(attributes),
            _SIGNED_WITH.get(named) or _hash(signer["digestAlgorithm"]),
        )
        and _stamps(certificate)
        and is_chain(authority.chain, time, ExtendedKeyUsageOID.TIME_STAMPING)
    )


def _names(signer: rfc5652.SignerInfo, certificate: x509.Certificate) -> bool:
    """Return whether the signed attributes name this certificate (RFC 5816)."""
    raw = _attribute(signer, rfc5035.id_aa_signingCertificateV2, optional=True)
    der = certificate.public_bytes(serialization.Encoding.DER)
    if raw:
        first = _decoded(raw, rfc5035.SigningCertificateV2())["certs"][0]
        return hmac.compare_digest(
            _digest(_hash(first["hashAlgorithm"]), der), bytes(first["certHash"])
        )
    raw = _attribute(signer, rfc5035.id_aa_signingCertificate)
    first = _decoded(raw, rfc5035.SigningCertificate())["certs"][0]
    # SHA-1 only says which one it is; the signature is over this, with a hash that is none.
    named = hashlib.sha1(der, usedforsecurity=False).digest()
    return hmac.compare_digest(named, bytes(first["certHash"]))


def _stamps(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is for time stamps, and for nothing else (RFC 3161, 2.3)."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return False
    return usage.critical and list(usage.value) == [ExtendedKeyUsageOID.TIME_STAMPING]


def _attribute(signer: rfc5652.SignerInfo, kind: object, *, optional: bool = False) -> bytes:
    found = [one["attrValues"] for one in signer["signedAttrs"] if one["attrType"] == kind]
    if not found and optional:
        return b""
    if len(found) != 1 or len(found[0]) != 1:
        raise Unusable(MALFORMED, "a time stamp without its signed attributes, or with some twice")
    return bytes(found[0][0])


def _decoded(der: bytes, kind: Asn1Item) -> Asn1Item:
    found, rest = decoder.decode(der, asn1Spec=kind)
    if rest:
        raise Unusable(MALFORMED, "a time stamp with something behind it")
    return found


def _hash(algorithm: rfc5652.AlgorithmIdentifier) -> hashes.HashAlgorithm:
    return _HASHES[str(algorithm["algorithm"])]


def _digest(hashed: hashes.HashAlgorithm, data: bytes) -> bytes:
    made = hashes.Hash(hashed)
    made.update(data)
    return made.finalize()


def _time(text: str) -> dt.datetime:
    found = _TIME.fullmatch(text)
    if not found:
        raise Unusable(MALFORMED, "a time stamp without its time in UTC")
    return dt.datetime.strptime(found[1], "%Y%m%d%H%M%S").replace(tzinfo=dt.timezone.utc)
