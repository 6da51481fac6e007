"""Verify keyless signatures, made with certificates, against a site's trusted root.

sigstore verifies them without a network. It requires a log of signatures and one of certificates
(https://github.com/sigstore/sigstore-python/issues/1529). A private Sigstore may lack either log:
`_PrivateVerifier` skips the check for a log that the trusted root does not name. sigstore ignores
the validity periods in a trusted root: `_trusted_at` first drops the authorities and logs that were
not trusted at each time in the bundle. sigstore also ignores the certificates above the issuer of a
certificate; `_ChainVerifier` verifies complete chains.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store
from cryptography.x509.verification import VerificationError as ChainError
from pydantic import ValidationError
from rfc3161_client import TimeStampResponse, decode_timestamp_response
from sigstore._internal.sct import verify_sct
from sigstore._internal.timestamp import TimestampVerificationResult
from sigstore._internal.trust import KeyringPurpose
from sigstore.errors import Error as SigstoreError
from sigstore.errors import VerificationError
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier
from sigstore.verify.policy import Identity, VerificationPolicy
from sigstore_models.bundle.v1 import Bundle as BundleModel
from sigstore_models.bundle.v1 import VerificationMaterial
from sigstore_models.common.v1 import TimeRange
from sigstore_models.rekor.v1 import TransparencyLogEntry
from sigstore_models.trustroot.v1 import CertificateAuthority
from sigstore_models.trustroot.v1 import TrustedRoot as TrustedRootModel

from builder.model.exact_json import part
from builder.trust.proof.attachments import Unusable
from builder.trust.proof.statements import IN_TOTO, Envelope

MAX_CERTIFICATE = 16 << 10  # bytes; Fulcio's have 1 kB
_MAX_ENTRIES = 8  # log entries, or certificates, of a bundle
_MAX_STAMPS = 4
_MAX_STAMP = 16 << 10  # bytes; a time stamp with three certificates has 3 kB
_SHOWN = 200  # characters of an error
_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")  # a UTF8String in DER
_OLD_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")  # the bare text
_LACKING = {
    "certificate_authorities": "the certificate is not from an authority",
    "tlogs": "the signature is not in a log",
    "ctlogs": "the certificate is not in a log",
}
# Users of an image cannot act on warnings about unusual certificates and bundles.
warnings.filterwarnings("ignore", module=r"(builder\.trust\.proof|sigstore|rfc3161_client)\.")
logging.getLogger("sigstore").addHandler(logging.NullHandler())


class CertifiedBundle:
    """A bundle signed by a certificate, read by sigstore but not verified yet.

    `subject` is the signer's name in the certificate, `issuer` the provider of that identity.
    """

    def __init__(self, value: Mapping[str, object]) -> None:
        """Read the JSON of a bundle; raises `Unusable`."""
        with _unusable("bundle"):
            self._bundle = BundleModel.from_json(json.dumps(_with_zeros(value)))
            self._material = self._bundle.verification_material
            data = self._material.timestamp_verification_data
            stamps = [stamp.signed_timestamp for stamp in data.rfc3161_timestamps] if data else []
            if len(stamps) > _MAX_STAMPS or len(self._material.tlog_entries) > _MAX_ENTRIES:
                raise Unusable("the bundle has too many log entries or time stamps")
            if any(len(stamp) > _MAX_STAMP for stamp in stamps):
                raise Unusable(f"a time stamp of the bundle has more than {_MAX_STAMP} bytes")
            self._stamps = [decode_timestamp_response(stamp) for stamp in stamps]
            self._certificate = _certificate(self._material)
            self.subject, self.issuer = _names(self._certificate)

    def verify(self, envelope: Envelope, root: Mapping[str, object]) -> dt.datetime:
        """Return the latest signing time of the bundle's envelope; raises `Unusable`.

        Entries of logs that the trusted root does not name are ignored, and so are time stamps if
        it names no timestamp authority.
        """
        with _unusable("bundle"):
            return self._verify(envelope, trusted_root(root))

    def _verify(self, envelope: Envelope, root: TrustedRootModel) -> dt.datetime:
        logs = {log.log_id.key_id for log in root.tlogs}
        entries = [entry for entry in self._material.tlog_entries if entry.log_id.key_id in logs]
        if root.tlogs and not entries:
            raise Unusable(f"{_LACKING['tlogs']} that the trusted root names")
        stamps = self._stamps if root.timestamp_authorities else []
        times = [stamp.tst_info.gen_time for stamp in stamps]
        times += [
            dt.datetime.fromtimestamp(entry.integrated_time, tz=dt.timezone.utc)
            for entry in entries
            if entry.integrated_time and entry.inclusion_promise
        ]
        if not times:
            raise Unusable("no log or authority of the trusted root confirms the signing time")
        trusted = _trusted_at(root, times, self._certificate)
        if not root.tlogs:
            verifier = _PrivateVerifier(trusted_root=trusted)
            verifier.verify_stamped(self._certificate, envelope, stamps)
        kind = _ChainVerifier if root.ctlogs else _PrivateVerifier
        policy = Identity(identity=self.subject)  # sigstore's issuer check knows only the old OID
        for entry in entries:
            bundle = self._with_entry(entry, stamps=bool(stamps))
            signed = kind(trusted_root=trusted).verify_dsse(bundle, policy)
            if signed != (IN_TOTO, envelope.payload):
                raise Unusable("the bundle is ambiguous")
        return max(times)

    def _with_entry(self, entry: TransparencyLogEntry, *, stamps: bool) -> Bundle:
        update: dict[str, object] = {"tlog_entries": [entry]}
        if not stamps:
            update["timestamp_verification_data"] = None
        material = self._material.model_copy(update=update)
        return Bundle(self._bundle.model_copy(update={"verification_material": material}))


class _ChainVerifier(Verifier):
    """Verifier that trusts the last certificate of each authority, and the others through it."""

    def _verify_chain_at_time(
        self, certificate: x509.Certificate, timestamp_result: TimestampVerificationResult
    ) -> list[x509.Certificate]:
        authorities = self._trusted_root._inner.certificate_authorities
        chains = [_chain_of(authority) for authority in authorities]
        # As in sigstore, which checks the purpose of signers' certificates separately.
        issuers, signers = (
            policy.may_be_present(x509.ExtendedKeyUsage, Criticality.NON_CRITICAL, None)
            for policy in (
                ExtensionPolicy.webpki_defaults_ca(),
                ExtensionPolicy.webpki_defaults_ee(),
            )
        )
        policies = PolicyBuilder().extension_policies(ca_policy=issuers, ee_policy=signers)
        policies = policies.store(Store([last for *_, last in chains])).time(timestamp_result.time)
        between = [one for *others, _ in chains for one in others]
        return policies.build_client_verifier().verify(certificate, between).chain[1:]


class _PrivateVerifier(_ChainVerifier):
    """Verifier for a private Sigstore that has no log of signatures, of certificates, or both."""

    def __init__(self, *, trusted_root: TrustedRoot) -> None:
        self._fulcio_certificate_chain = trusted_root.get_fulcio_certs()
        self._trusted_root = trusted_root

    def verify_stamped(
        self, certificate: x509.Certificate, envelope: Envelope, stamps: Sequence[TimeStampResponse]
    ) -> None:
        """Verify a signature without a log entry; raises errors of sigstore and cryptography."""
        [signature] = envelope.signatures
        results = [self._verify_signed_timestamp(stamp, signature) for stamp in stamps]
        self._check(certificate, [result for result in results if result])
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise VerificationError("the certificate's key is not an ECDSA key")
        key.verify(signature, envelope.signed, ec.ECDSA(hashes.SHA256()))

    def _verify_common_signing_cert(self, bundle: Bundle, policy: VerificationPolicy) -> None:
        policy.verify(bundle.signing_certificate)
        self._check(bundle.signing_certificate, self._establish_time(bundle))
        bundle.log_entry._verify(self._trusted_root.rekor_keyring(KeyringPurpose.VERIFY))

    def _check(
        self, certificate: x509.Certificate, times: Sequence[TimestampVerificationResult]
    ) -> None:
        if not times:
            raise VerificationError("not enough sources of verified time")
        chains = [self._verify_chain_at_time(certificate, time) for time in times]
        if self._trusted_root._inner.ctlogs:
            keys = self._trusted_root.ct_keyring(KeyringPurpose.VERIFY)
            verify_sct(certificate, chains[0], keys)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if not usage.digital_signature or ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
            raise VerificationError("key usage is not digital signature for code signing")


def trusted_root(value: Mapping[str, object]) -> TrustedRootModel:
    """Return a `trusted_root.json` as sigstore reads it; raises `Unusable`.

    sigstore requires keys that `cosign trusted-root create` omits.
    """
    with _unusable("trusted root"):
        authorities = {
            key: [
                {"subject": {"organization": "", "commonName": ""}}
                | {name: part(authority, name) for name in ("certChain", "validFor")}
                for authority in part(value, key) or []
            ]
            for key in ("certificateAuthorities", "timestampAuthorities")
        }
        text = json.dumps({"tlogs": [], "ctlogs": [], **value, **authorities})
        root = TrustedRootModel.from_json(text)
        TrustedRoot(root).get_fulcio_certs()
        TrustedRoot(root).get_timestamp_authorities()
        return root


def _trusted_at(
    root: TrustedRootModel, times: Sequence[dt.datetime], certificate: x509.Certificate
) -> TrustedRoot:
    """Return the part of a trusted root that was trusted at all given times.

    Certificate logs must have been trusted when they logged the certificate. Raises `Unusable` if
    all entries of one kind are dropped: `_PrivateVerifier` would skip their check.
    """
    kind = x509.PrecertificateSignedCertificateTimestamps
    logged = [
        promise.timestamp.replace(tzinfo=dt.timezone.utc)
        for extension in certificate.extensions
        if isinstance(extension.value, kind)
        for promise in extension.value
    ]
    update: dict[str, Sequence[object]] = {
        "certificate_authorities": [
            authority
            for authority in root.certificate_authorities
            if _covers(authority.valid_for, times) and _has_issued(authority, certificate)
        ],
        "timestamp_authorities": [
            # The end belongs to the period, but sigstore excludes it.
            authority.model_copy(update={"valid_for": TimeRange(start=authority.valid_for.start)})
            for authority in root.timestamp_authorities
            if _covers(authority.valid_for, times)
        ],
        "tlogs": [log for log in root.tlogs if _covers(log.public_key.valid_for, times)],
        "ctlogs": [log for log in root.ctlogs if _covers(log.public_key.valid_for, logged)],
    }
    for name, lack in _LACKING.items():
        if getattr(root, name) and not update[name]:
            raise Unusable(f"{lack} that the trusted root names for that time")
    return TrustedRoot(root.model_copy(update=update))


def _covers(period: TimeRange | None, times: Sequence[dt.datetime]) -> bool:
    return period is not None and all(
        period.start <= time and (period.end is None or time <= period.end) for time in times
    )


def _has_issued(authority: CertificateAuthority, certificate: x509.Certificate) -> bool:
    """Return whether an authority's first certificate issued another one, and was allowed to.

    sigstore accepts every certificate of the chain as the issuer, whatever its purpose.
    """
    chain = _chain_of(authority)
    try:
        certificate.verify_directly_issued_by(chain[0])
        extensions = [extension.value for one in chain for extension in one.extensions]
    except (ValueError, TypeError, InvalidSignature):
        return False
    purposes = [value for value in extensions if isinstance(value, x509.ExtendedKeyUsage)]
    return all(ExtendedKeyUsageOID.CODE_SIGNING in some for some in purposes)


def _chain_of(authority: CertificateAuthority) -> list[x509.Certificate]:
    raw = [certificate.raw_bytes for certificate in authority.cert_chain.certificates]
    return [x509.load_der_x509_certificate(one) for one in raw]


def _with_zeros(bundle: Mapping[str, object]) -> dict[str, object]:
    """Add zero and empty values, which JSON of protocol buffers omits and sigstore requires."""
    material = part(bundle, "verificationMaterial")
    entries = [
        {"logIndex": "0", **entry}
        | {"inclusionProof": {"logIndex": "0", "hashes": [], **entry["inclusionProof"]}}
        for entry in material.get("tlogEntries") or []
    ]
    return {**bundle, "verificationMaterial": {**material, "tlogEntries": entries}}


def _certificate(material: VerificationMaterial) -> x509.Certificate:
    """Return the signer's certificate; raises `Unusable` if the bundle has a self-signed one."""
    chain = material.x509_certificate_chain
    several = chain.certificates if chain else [material.certificate]
    contents = [certificate.raw_bytes for certificate in several if certificate]
    if len(contents) > _MAX_ENTRIES or any(len(raw) > MAX_CERTIFICATE for raw in contents):
        limits = f"{_MAX_ENTRIES} certificates, or one of more than {MAX_CERTIFICATE} bytes"
        raise Unusable(f"the bundle has more than {limits}")
    first, *others = [x509.load_der_x509_certificate(raw) for raw in contents]
    if any(certificate.issuer == certificate.subject for certificate in (first, *others)):
        raise Unusable("the bundle contains its own authority")
    return first


def _names(certificate: x509.Certificate) -> tuple[str, str]:
    """Return the signer, the address of a workflow or person, and the issuer of that identity."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    subjects = [
        *names.get_values_for_type(x509.UniformResourceIdentifier),
        *names.get_values_for_type(x509.RFC822Name),
    ]
    values = {extension.oid: extension.value for extension in certificate.extensions}
    new, old = (getattr(values.get(oid), "value", b"") for oid in (_ISSUER, _OLD_ISSUER))
    issuer = asn1.decode_der(str, new) if new else old.decode()
    if len(list(names)) != 1 or len(subjects) != 1:
        raise Unusable("the certificate does not name one signer")
    if not all(name and name.isascii() and name.isprintable() for name in (*subjects, issuer)):
        raise Unusable("the certificate names a signer or issuer that cannot be shown")
    return subjects[0], issuer


@contextlib.contextmanager
def _unusable(title: str) -> Iterator[None]:
    """Turn the libraries' errors about untrusted input into `Unusable`; `title` names the input."""
    try:
        yield
    except Unusable:
        raise
    except InvalidSignature as error:
        raise Unusable("the signature does not match the key in the certificate") from error
    except (SigstoreError, ChainError, x509.ExtensionNotFound) as error:
        reason = ascii(str(error).partition("\n")[0])[1:-1][:_SHOWN]
        raise Unusable(f"refused by sigstore: {reason}") from error
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
        at = f" at {ascii(place)[1:-1][:_SHOWN]}" if place else ""
        raise Unusable(f"the {title} is malformed{at}") from error
    except Exception as error:
        raise Unusable(f"the {title} is malformed") from error
