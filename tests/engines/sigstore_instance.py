"""A private Sigstore on loopback: it certifies whoever has its token, and stamps times.

It speaks Fulcio's protocol and that of time-stamping authorities (`openssl ts`), and has a log of
certificates; with its signing configuration and its roots the cosign program is its client.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import json
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

SUBJECT = "https://git.site.example/images/.ci/build.yml@refs/heads/main"
ISSUER = "https://git.site.example"
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_TIMESTAMPS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_START = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
_END = dt.datetime(2099, 1, 1, tzinfo=dt.timezone.utc)
_OPENSSL = """\
[tsa]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
ess_cert_id_chain = no
ess_cert_id_alg = sha256
"""
Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def der(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _builder(name: str, key: ec.EllipticCurvePublicKey, issuer: str) -> x509.CertificateBuilder:
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(named[0])
        .issuer_name(named[1])
        .public_key(key)
        .serial_number(x509.random_serial_number())
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def authority(name: str) -> tuple[Key, x509.Certificate]:
    """An authority of its own."""
    key = new_key()
    made = (
        _builder(name, key.public_key(), name)
        .not_valid_before(_START)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, made.sign(key, hashes.SHA256())


@dataclass(kw_only=True)
class Instance:
    """The keys of everybody, and a folder for the files of `openssl ts` and of cosign."""

    folder: Path
    token: str
    url: str = ""

    def __post_init__(self) -> None:
        self.alone = threading.Lock()
        self.key, self.certificate = authority("certifier")
        self.log = new_key()
        stamps, self.stamps = authority("stamps")
        self.stamper_key = new_key()
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        self.stamper = (
            _builder("stamper", self.stamper_key.public_key(), "stamps")
            .not_valid_before(_START)
            .not_valid_after(_END)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(usage, critical=True)
            .sign(stamps, hashes.SHA256())
        )
        private = self.stamper_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (self.folder / "tsa.key").write_bytes(private)
        (self.folder / "tsa.pem").write_bytes(pem(self.stamper))
        (self.folder / "serial").write_text("01")
        (self.folder / "tsa.cnf").write_text(_OPENSSL.format(folder=self.folder))
        self.roots.write_text(json.dumps(self.trusted_root()))

    @property
    def roots(self) -> Path:
        return self.folder / "trusted_root.json"

    @property
    def environment(self) -> dict[str, str]:
        """What makes cosign this instance's client, as a CI job has it."""
        return {
            "SIGSTORE_ID_TOKEN": self.token,
            "COSIGN_SIGNING_CONFIG": str(self.folder / "signing_config.json"),
            "COSIGN_TRUSTED_ROOT": str(self.roots),
        }

    def certified(
        self, public: ec.EllipticCurvePublicKey, subject: str = SUBJECT
    ) -> list[x509.Certificate]:
        """The chain for a signer: for ten minutes, and in the log of certificates."""
        now = dt.datetime.now(tz=dt.timezone.utc).replace(microsecond=0)
        named = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject)])
        who = ISSUER.encode()
        issuer = x509.UnrecognizedExtension(_ISSUER, bytes([0x0C, len(who)]) + who)
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        certifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(seconds=10))
            .not_valid_after(now + dt.timedelta(minutes=10))
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(named, critical=True)
            .add_extension(issuer, critical=False)
            .add_extension(certifier, critical=False)
        )
        before = made.sign(self.key, hashes.SHA256()).tbs_certificate_bytes
        promise = x509.UnrecognizedExtension(_TIMESTAMPS, self._promised(before, now))
        final = made.add_extension(promise, critical=False).sign(self.key, hashes.SHA256())
        return [final, self.certificate]

    def _promised(self, content: bytes, now: dt.datetime) -> bytes:
        """The log's promise to hold a certificate: RFC 6962, 3.3."""
        head = struct.pack("!BBQH", 0, 0, int(now.timestamp() * 1000), 1)
        data = head + hashlib.sha256(der(self.key)).digest()
        data += len(content).to_bytes(3, "big") + content + b"\0\0"
        signature = self.log.sign(data, ec.ECDSA(hashes.SHA256()))
        one = b"\0" + hashlib.sha256(der(self.log)).digest()
        one += struct.pack("!Q", int(now.timestamp() * 1000)) + b"\0\0"
        one += b"\x04\x03" + struct.pack("!H", len(signature)) + signature
        listed = struct.pack("!H", len(one)) + one
        listed = struct.pack("!H", len(listed)) + listed
        assert len(listed) < 0x80
        return bytes([0x04, len(listed)]) + listed

    def stamped(self, query: bytes) -> bytes:
        """The answer of a time-stamping authority to a query, both in DER."""
        asked, answer = self.folder / "query.tsq", self.folder / "answer.tsr"
        words = ["openssl", "ts", "-reply", "-config", str(self.folder / "tsa.cnf")]
        words += ["-section", "tsa", "-queryfile", str(asked), "-out", str(answer)]
        words += ["-signer", str(self.folder / "tsa.pem"), "-inkey", str(self.folder / "tsa.key")]
        with self.alone:
            asked.write_bytes(query)
            subprocess.run(words, check=True, capture_output=True)
            return answer.read_bytes()

    def trusted_root(self) -> dict[str, Any]:
        """The roots that believe this instance."""
        from_start = {"start": "2020-01-01T00:00:00Z"}

        def chain(*some: x509.Certificate) -> dict[str, Any]:
            raw = [one.public_bytes(serialization.Encoding.DER) for one in some]
            return {
                "subject": {"organization": "site", "commonName": "site"},
                "uri": self.url or "http://127.0.0.1",
                "certChain": {"certificates": [{"rawBytes": text(one)} for one in raw]},
                "validFor": from_start,
            }

        log = {
            "baseUrl": f"{self.url}/ct",
            "hashAlgorithm": "SHA2_256",
            "publicKey": {
                "rawBytes": text(der(self.log)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": from_start,
            },
            "logId": {"keyId": text(hashlib.sha256(der(self.log)).digest())},
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [],
            "certificateAuthorities": [chain(self.certificate)],
            "ctlogs": [log],
            "timestampAuthorities": [chain(self.stamper, self.stamps)],
        }

    def signing_config(self) -> dict[str, Any]:
        def service(url: str) -> dict[str, Any]:
            return {
                "url": url,
                "majorApiVersion": 1,
                "validFor": {"start": "2020-01-01T00:00:00Z"},
                "operator": "site",
            }

        return {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service(self.url)],
            "oidcUrls": [],
            "rekorTlogUrls": [],
            "rekorTlogConfig": {},
            "tsaUrls": [service(f"{self.url}/api/v1/timestamp")],
            "tsaConfig": {"selector": "ANY"},
        }


def token(subject: str = SUBJECT) -> str:
    """What a CI system says of its job; the instance knows it by the whole of it."""
    end = int(_END.timestamp())
    claims = {"iss": ISSUER, "sub": subject, "aud": "sigstore", "exp": end, "iat": 1600000000}
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
    return ".".join([*(one.decode() for one in encoded), "c2lnbmF0dXJl"])


@contextlib.contextmanager
def sigstore_instance(folder: Path) -> Iterator[Instance]:
    """An instance that answers on loopback until the end of the context."""
    instance = Instance(folder=folder, token=token())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body would wait 40 ms for its headers

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/v1/timestamp":
                self.answer(201, instance.stamped(body), "application/timestamp-reply")
                return
            asked = json.loads(body)
            if self.headers.get("Authorization") != f"Bearer {instance.token}":
                self.answer(401, b'{"code": 16, "message": "no such token"}', "application/json")
                return
            content = asked["publicKeyRequest"]["publicKey"]["content"].encode()
            public = serialization.load_pem_public_key(content)
            assert isinstance(public, ec.EllipticCurvePublicKey)
            proof = base64.b64decode(asked["publicKeyRequest"]["proofOfPossession"])
            public.verify(proof, SUBJECT.encode(), ec.ECDSA(hashes.SHA256()))
            chain = [pem(one).decode() for one in instance.certified(public)]
            said = {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}
            self.answer(200, json.dumps(said).encode(), "application/json")

        def answer(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # cosign closes what it does not need
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        instance.url = f"http://127.0.0.1:{server.server_address[1]}"
        config = json.dumps(instance.signing_config())
        (folder / "signing_config.json").write_text(config)
        instance.roots.write_text(json.dumps(instance.trusted_root()))
        yield instance
        server.shutdown()
