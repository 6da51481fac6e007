"""Signatures by certificates, as keyless signing makes them: who signed, if that can be believed.

It is believed where a site's roots name the authority that certified the signer, the log that has
the signature, and who vouches for the time at which it was made; all of it is in the bundle, and
nothing is asked for. https://github.com/sigstore/architecture-docs/blob/main/client-spec.md
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from builder.model.exact_json import part
from builder.trust.proof import attachments
from builder.trust.proof.attachments import MALFORMED, TOO_LARGE, WRONG_KEY, Unusable
from builder.trust.proof.chains import check_authority, check_issued, signer_of
from builder.trust.proof.logged import Signed, logged
from builder.trust.proof.roots import UNREADABLE, Roots, signed_by

_MOST_ENTRIES = 8
_MOST_STAMPS = 4
_MOST_OF_STAMPS = 2 << 20  # bytes; of one image's proof, so that what others pad ends
_SHOWN = 200  # characters of what somebody calls themselves
_MAX_CERTIFICATE = 16 << 10  # bytes; Fulcio's have 1 kB
_RSA_BITS = 2048
_HASHES = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
# What cryptography says of odd certificates is for whoever makes them.
warnings.filterwarnings("ignore", module=r"builder\.trust\.proof\.")


@dataclass(kw_only=True, slots=True)
class Allowance:
    """How many bytes of time stamps are still read: a stranger's take time."""

    left: int = _MOST_OF_STAMPS

    def take(self, number: int) -> None:
        """Use some; raises `Unusable` where there are no more."""
        self.left -= number
        if self.left < 0:
            raise Unusable(TOO_LARGE, f"more than {_MOST_OF_STAMPS:,} bytes of time stamps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Who signed: `subject` as the certificate names it, known to `issuer`.

    The signature was seen first at a `time`, and `last` at another one, or the same.
    """

    subject: str
    issuer: str
    time: dt.datetime
    last: dt.datetime


def certified(
    bundle: Mapping[str, object],
    data: bytes,
    signature: bytes,
    roots: Roots,
    *,
    payload: bytes | None = None,
    allowance: Allowance | None = None,
    wanted: Callable[[str, str], bool] = lambda _subject, _issuer: True,
) -> Signer:
    """Who signed some data, by a bundle; raises `Unusable` where the roots do not vouch for it.

    `payload` is what the data envelop, where they do. Whoever is not `wanted`, by name and issuer,
    is refused before much is read: everybody can have a certificate, and attach what they like.
    What in it is of logs and authorities that the roots do not name counts for nothing. `allowance`
    is for all bundles of an image.
    """
    try:
        return _signer(bundle, data, signature, roots, payload, allowance or Allowance(), wanted)
    except UNREADABLE as error:
        raise Unusable(MALFORMED, "a certificate that cannot be read") from error


def _signer(
    bundle: Mapping[str, object],
    data: bytes,
    signature: bytes,
    roots: Roots,
    payload: bytes | None,
    allowance: Allowance,
    wanted: Callable[[str, str], bool],
) -> Signer:
    others = _certificates(bundle)
    certificate = next(others)
    check_authority(certificate, roots)
    subject, issuer = signer_of(certificate)
    if not wanted(subject, issuer):
        who, whose = ascii(subject)[:_SHOWN], ascii(issuer)[:_SHOWN]
        raise Unusable(WRONG_KEY, f"signed by {who}, whom {whose} knows: not trusted")
    if any(one.issuer == one.subject for one in (certificate, *others)):
        raise Unusable(MALFORMED, "a bundle that brings an authority of its own")
    hashed = _hashed(certificate)
    if not signed_by(certificate.public_key(), signature, data, hashed):
        raise Unusable(WRONG_KEY, "the certificate's key did not sign this")
    signed = Signed(
        data=data, signature=signature, certificate=certificate, hashed=hashed, payload=payload
    )
    times = _times(bundle, signed, roots, allowance)
    check_issued(certificate, roots, times)
    return Signer(subject=subject, issuer=issuer, time=min(times), last=max(times))


def _times(
    bundle: Mapping[str, object], signed: Signed, roots: Roots, allowance: Allowance
) -> list[dt.datetime]:
    """All the times at which somebody whom the roots name saw the signature; at least one."""
    material = part(bundle, "verificationMaterial")
    stamps = _some(part(material, "timestampVerificationData", "rfc3161Timestamps"), _MOST_STAMPS)
    contents = [
        attachments.base64_bytes(part({"": one}, "", "signedTimestamp"), "a time stamp")
        for one in stamps
    ]
    times, errors = list[dt.datetime](), list[Unusable]()
    if contents and roots.stampers:
        times, errors = _stamped(contents, signed, roots, allowance)
    entries = _some(part(material, "tlogEntries"), _MOST_ENTRIES)
    found = [one for entry in entries if (one := logged(entry, signed, roots.logs))]
    if roots.logs and not found:
        raise Unusable(WRONG_KEY, "the signature is in no log that the roots name")
    times += [one.time for one in found if one.time]
    if not times:
        nobody = Unusable(WRONG_KEY, "nobody whom the roots name says when this was signed")
        raise errors[0] if errors else nobody
    if not all(one.is_believed(time) for one in found for time in times):
        raise Unusable(WRONG_KEY, "an entry of a time at which the log is not believed")
    return times


def _stamped(
    stamps: list[bytes], signed: Signed, roots: Roots, allowance: Allowance
) -> tuple[list[dt.datetime], list[Unusable]]:
    """The times of those stamps that count, and what is wrong with the others."""
    # Reading them takes modules that start slowly, and the log's promise says the time as well.
    from builder.trust.proof.stamps import check_size, stamped  # noqa: PLC0415

    times, errors = [], list[Unusable]()
    for one in stamps:
        try:
            check_size(one)
            allowance.take(len(one))
            times.append(stamped(one, signed.signature, roots.stampers))
        except Unusable as error:  # an authority that is not named is not told from rubbish
            errors.append(error)
    return times, errors


def _some(value: object, most: int) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unusable(MALFORMED, "a bundle whose entries or time stamps are no list")
    if len(value) > most:
        raise Unusable(TOO_LARGE, f"a bundle with more than {most} entries or time stamps")
    return value


def _certificates(bundle: Mapping[str, object]) -> Iterator[x509.Certificate]:
    """The signer's, and those that stand behind it, each read only when it is asked for."""
    material = part(bundle, "verificationMaterial")
    chain = part(material, "x509CertificateChain", "certificates")
    several = chain if isinstance(chain, list) else [part(material, "certificate")]
    if not 1 <= len(several) <= _MOST_ENTRIES:
        raise Unusable(MALFORMED, "a bundle without a certificate, or with too many")
    for one in several:
        raw = attachments.base64_bytes(part({"": one}, "", "rawBytes"), "a certificate")
        if len(raw) > _MAX_CERTIFICATE:
            raise Unusable(TOO_LARGE, f"a certificate of more than {_MAX_CERTIFICATE} bytes")
        yield x509.load_der_x509_certificate(raw)


def _hashed(certificate: x509.Certificate) -> hashes.HashAlgorithm:
    """The hash that goes with a certificate's key."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS:
        return hashes.SHA256()
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _HASHES:
        return _HASHES[key.curve.name]
    raise Unusable(MALFORMED, "the certificate's key is of a kind that is not used here")
