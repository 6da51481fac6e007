"""Signatures by certificates of an authority and logs of the tests' own, as bundles and roots."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from builder.model.predicates import STATEMENT
from builder.trust.proof.attachments import BUNDLE
from builder.trust.proof.statements import SIGN, Envelope

SUBJECT = "https://git.example/site/images/.ci/build.yml@refs/heads/main"
ISSUER = "https://git.example"
DIGEST = f"sha256:{'3' * 64}"
SIGNED = dt.datetime(2026, 5, 1, 12, tzinfo=dt.timezone.utc)
_START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_END = dt.datetime(2036, 1, 1, tzinfo=dt.timezone.utc)
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_TIMESTAMPS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
Key = ec.EllipticCurvePrivateKey
Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # with whether they are critical


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def der(item: Key | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.DER)
    return item.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signed(key: Key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def usage(**on: bool) -> x509.KeyUsage:
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"]
    names += ("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: on.get(name, False) for name in names})


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(kw_only=True)
class Log:
    """A log of signatures with one leaf, or of certificates, and when the roots trust it."""

    key: Key = field(default_factory=new_key)
    periods: Sequence[tuple[str, str | None]] = (("2020-01-01T00:00:00Z", None),)

    @property
    def identifier(self) -> bytes:
        return hashlib.sha256(der(self.key)).digest()

    def as_roots(self) -> list[dict[str, Any]]:
        return [
            {
                "baseUrl": "https://log.example",
                "hashAlgorithm": "SHA2_256",
                "logId": {"keyId": text(self.identifier)},
                "publicKey": {
                    "rawBytes": text(der(self.key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": {"start": start, **({"end": end} if end else {})},
                },
            }
            for start, end in self.periods
        ]

    def entry(self, body: dict[str, Any]) -> dict[str, Any]:
        """An entry of whatever body, the only leaf of the log's tree."""
        content = json.dumps(body).encode()
        root = hashlib.sha256(b"\0" + content).digest()
        note = f"log.example\n1\n{text(root)}\n"
        mark = text(self.identifier[:4] + signed(self.key, note.encode()))
        promised = {
            "body": text(content),
            "integratedTime": int(SIGNED.timestamp()),
            "logID": self.identifier.hex(),
            "logIndex": 0,
        }
        data = json.dumps(promised, separators=(",", ":"), sort_keys=True).encode()
        return {
            "logIndex": "0",
            "logId": {"keyId": text(self.identifier)},
            "kindVersion": {"kind": body["kind"], "version": body["apiVersion"]},
            "integratedTime": str(int(SIGNED.timestamp())),
            "inclusionPromise": {"signedEntryTimestamp": text(signed(self.key, data))},
            "inclusionProof": {
                "logIndex": "0",
                "treeSize": "1",
                "rootHash": text(root),
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.example {mark}\n"},
            },
            "canonicalizedBody": text(content),
        }

    def promise(self, content: bytes, issuer: Key) -> x509.UnrecognizedExtension:
        """The promise to hold a certificate: RFC 6962, 3.3."""
        time = int(SIGNED.timestamp() * 1000)
        data = struct.pack("!BBQH", 0, 0, time, 1) + hashlib.sha256(der(issuer)).digest()
        data += len(content).to_bytes(3, "big") + content + b"\0\0"
        signature = signed(self.key, data)
        stamp = b"\0" + self.identifier + struct.pack("!Q", time) + b"\0\0\4\3"
        stamp += struct.pack("!H", len(signature)) + signature
        stamps = struct.pack("!H", len(stamp)) + stamp
        stamps = struct.pack("!H", len(stamps)) + stamps
        return x509.UnrecognizedExtension(_TIMESTAMPS, bytes([0x04, len(stamps)]) + stamps)


@dataclass(kw_only=True)
class Authority:
    """Who certifies signers. `limits` are what its certificate has besides what it must have.

    `own` are what its certificate says of itself, `extensions` what those of signers say besides
    their names. Without a `certificate_log` it is a private one that has none.
    """

    limits: Extensions = ()
    own: Extensions = (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage(key_cert_sign=True), True),
    )
    extensions: Extensions = (
        (usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
    )
    key: Key = field(default_factory=new_key)
    certificate_log: Log | None = field(default_factory=Log)

    @property
    def certificate(self) -> x509.Certificate:
        return self.issued(self.key, "authority", [*self.own, *self.limits])

    def leaf(self, key: Key, name: str = SUBJECT, issuer: str = ISSUER) -> x509.Certificate:
        head = [len(issuer)] if len(issuer) < 0x80 else [0x81, len(issuer)]
        known = x509.UnrecognizedExtension(_ISSUER, bytes([0x0C, *head]) + issuer.encode())
        raw = x509.UniformResourceIdentifier._init_without_validation(name)
        names = x509.SubjectAlternativeName([raw])
        return self.issued(key, "", [(names, True), (known, False), *self.extensions], days=365)

    def roots(self, *logs: Log) -> dict[str, Any]:
        authority = {
            "certChain": {"certificates": [{"rawBytes": text(der(self.certificate))}]},
            "validFor": {"start": "2020-01-01T00:00:00Z"},
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "certificateAuthorities": [authority],
            "tlogs": [entry for log in logs for entry in log.as_roots()],
            "ctlogs": self.certificate_log.as_roots() if self.certificate_log else [],
        }

    def bundle(self, *logs: Log, name: str = SUBJECT, issuer: str = ISSUER) -> dict[str, Any]:
        """A signature of the image `DIGEST`, with an entry of each log."""
        key = new_key()
        statement = {
            "_type": STATEMENT,
            "predicateType": SIGN,
            "subject": [{"digest": {"sha256": DIGEST.removeprefix("sha256:")}}],
            "predicate": {},
        }
        unsigned = Envelope(payload=json.dumps(statement).encode(), signatures=())
        envelope = Envelope(payload=unsigned.payload, signatures=(signed(key, unsigned.signed),))
        certificate = self.leaf(key, name, issuer)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        body = {
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
                "payloadHash": {
                    "algorithm": "sha256",
                    "value": hashlib.sha256(unsigned.payload).hexdigest(),
                },
                "signatures": [{"signature": text(envelope.signatures[0]), "verifier": text(pem)}],
            },
        }
        return {
            "mediaType": BUNDLE,
            "verificationMaterial": {
                "certificate": {"rawBytes": text(der(certificate))},
                "tlogEntries": [log.entry(body) for log in logs],
            },
            "dsseEnvelope": envelope.as_json,
        }

    def issued(
        self, key: Key, name: str, extensions: Extensions, *, days: int = 3650
    ) -> x509.Certificate:
        own, issuer = key.public_key(), self.key.public_key()
        builder = x509.CertificateBuilder(
            issuer_name=named("authority"),
            subject_name=named(name) if name else x509.Name([]),
            public_key=own,
            serial_number=x509.random_serial_number(),
            not_valid_before=_START,
            not_valid_after=min(_END, _START + dt.timedelta(days=days)),
        )
        identifiers = [
            (x509.SubjectKeyIdentifier.from_public_key(own), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), False),
        ]
        for value, critical in [*extensions, *identifiers]:
            builder = builder.add_extension(value, critical=critical)
        if self.certificate_log and not name:
            content = builder.sign(self.key, hashes.SHA256()).tbs_certificate_bytes
            promise = self.certificate_log.promise(content, self.key)
            builder = builder.add_extension(promise, critical=False)
        return builder.sign(self.key, hashes.SHA256())
