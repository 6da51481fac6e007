"""Signatures by certificates of an authority and logs of the tests' own, as bundles and roots."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from builder.model.predicates import STATEMENT
from builder.trust.proof.attachments import BUNDLE
from builder.trust.proof.roots import Roots, roots_of
from builder.trust.proof.statements import SIGN, Envelope

SUBJECT = "https://git.example/site/images/.ci/build.yml@refs/heads/main"
ISSUER = "https://git.example"
DIGEST = f"sha256:{'3' * 64}"
SIGNED = dt.datetime(2026, 5, 1, 12, tzinfo=dt.timezone.utc)
_START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_END = dt.datetime(2036, 1, 1, tzinfo=dt.timezone.utc)
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
Key = ec.EllipticCurvePrivateKey
Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # with whether they are critical


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def der(key: Key) -> bytes:
    return key.public_key().public_bytes(
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
    """A log of signatures with one leaf, and when the roots say that it is believed."""

    key: Key = field(default_factory=new_key)
    spans: Sequence[tuple[str, str | None]] = (("2020-01-01T00:00:00Z", None),)

    @property
    def identifier(self) -> bytes:
        return hashlib.sha256(der(self.key)).digest()

    def as_roots(self) -> list[dict[str, Any]]:
        return [
            {
                "logId": {"keyId": text(self.identifier)},
                "publicKey": {
                    "rawBytes": text(der(self.key)),
                    "validFor": {"start": start, **({"end": end} if end else {})},
                },
            }
            for start, end in self.spans
        ]

    def entry(self, body: dict[str, Any], *, promised: bool = True) -> dict[str, Any]:
        """An entry of whatever body, the only leaf of the log's tree."""
        content = json.dumps(body).encode()
        root = hashlib.sha256(b"\0" + content).digest()
        note = f"log.example\n1\n{text(root)}\n"
        mark = text(self.identifier[:4] + signed(self.key, note.encode()))
        entry: dict[str, Any] = {
            "logIndex": "0",
            "logId": {"keyId": text(self.identifier)},
            "kindVersion": {"kind": body["kind"], "version": body["apiVersion"]},
            "integratedTime": str(int(SIGNED.timestamp())),
            "inclusionProof": {
                "logIndex": "0",
                "treeSize": "1",
                "rootHash": text(root),
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.example {mark}\n"},
            },
            "canonicalizedBody": text(content),
        }
        said = {
            "body": text(content),
            "integratedTime": int(SIGNED.timestamp()),
            "logID": self.identifier.hex(),
            "logIndex": 0,
        }
        promise = signed(self.key, json.dumps(said, separators=(",", ":"), sort_keys=True).encode())
        if promised:
            entry["inclusionPromise"] = {"signedEntryTimestamp": text(promise)}
        return entry


@dataclass(kw_only=True)
class Authority:
    """Who certifies signers. `limits` are what its certificate has besides what it must have.

    `own` are what its certificate says of itself, `extensions` what those of signers say besides
    their names.
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

    @property
    def certificate(self) -> x509.Certificate:
        return self.issued(
            self.key,
            "authority",
            [*self.own, *self.limits],
        )

    def leaf(
        self, key: Key, name: str = SUBJECT, issuer: str = ISSUER, *, days: int = 365
    ) -> x509.Certificate:
        told = b"\x0c" + bytes([len(issuer)]) + issuer.encode()
        raw = x509.UniformResourceIdentifier._init_without_validation(name)
        return self.issued(
            key,
            "",
            [
                (x509.SubjectAlternativeName([raw]), True),
                (x509.UnrecognizedExtension(_ISSUER, told), False),
                *self.extensions,
            ],
            days=days,
        )

    def roots(self, *logs: Log) -> Roots:
        raw = self.certificate.public_bytes(serialization.Encoding.DER)
        authority = {
            "certChain": {"certificates": [{"rawBytes": text(raw)}]},
            "validFor": {"start": "2020-01-01T00:00:00Z"},
        }
        value = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "certificateAuthorities": [authority],
            "tlogs": [one for log in logs for one in log.as_roots()],
        }
        return roots_of(json.dumps(value).encode(), name="roots.json")

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
                "payloadHash": {
                    "algorithm": "sha256",
                    "value": hashlib.sha256(unsigned.payload).hexdigest(),
                },
                "signatures": [{"signature": text(envelope.signatures[0]), "verifier": text(pem)}],
            },
        }
        raw = certificate.public_bytes(serialization.Encoding.DER)
        return {
            "mediaType": BUNDLE,
            "verificationMaterial": {
                "certificate": {"rawBytes": text(raw)},
                "tlogEntries": [log.entry(body) for log in logs],
            },
            "dsseEnvelope": envelope.as_json,
        }

    def issued(
        self, key: Key, name: str, extensions: Extensions, *, days: int = 3650
    ) -> x509.Certificate:
        made = x509.CertificateBuilder(
            issuer_name=named("authority"),
            subject_name=named(name) if name else x509.Name([]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=_START,
            not_valid_after=min(_END, _START + dt.timedelta(days=days)),
        )
        for value, critical in extensions:
            made = made.add_extension(value, critical=critical)
        return made.sign(self.key, hashes.SHA256())
