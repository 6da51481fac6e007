"""A server of tokens for a real registry, on loopback, with TLS."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from real_registry import PASSWORD, USER, RealRegistry, real_registry

_LEEWAY_S = 60  # for which docker-registry takes tokens whose time is over
_AUTH = """\
auth:
  token: {{{{realm: "https://{at}/token", service: tests, issuer: tests,
    rootcertbundle: {{folder}}/tokens.pem}}}}
"""


@dataclass
class Tokens:
    """What was asked, and what was given; everybody may pull, `USER` may push, too."""

    lasts_s: float = 300.0
    asked: list[tuple[str, str]] = field(default_factory=list)  # the name, and the scopes
    given: list[str] = field(default_factory=list)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens of tests")])
        now = dt.datetime.now(dt.timezone.utc)
        made = x509.CertificateBuilder(name, name, self.key.public_key(), 1, now, now + _DAY)
        self.authority = made.sign(self.key, hashes.SHA256())

    def answer(self, scopes: list[str], authorization: str) -> bytes:
        """A token, or nothing for a login that is wrong."""
        user, _, password = base64.b64decode(authorization[6:]).decode().partition(":")
        self.asked.append((user, " ".join(scopes)))
        if authorization and (user, password) != (USER, PASSWORD):
            return b""
        access = []
        for one in scopes:
            kind, name, actions = one.split(":")
            some = [word for word in actions.split(",") if user or word == "pull"]
            access.append({"type": kind, "name": name, "actions": some})
        token = self._signed({"sub": user, "access": access})
        self.given.append(token)
        return json.dumps({"token": token}).encode()

    def _signed(self, claims: dict[str, object]) -> str:
        now = time.time()
        times = {"nbf": int(now) - 5, "iat": int(now), "exp": int(now + self.lasts_s - _LEEWAY_S)}
        body = {"iss": "tests", "aud": "tests", "jti": str(len(self.given)), **times, **claims}
        chain = [base64.b64encode(self.authority.public_bytes(Encoding.DER)).decode()]
        head = {"typ": "JWT", "alg": "RS256", "x5c": chain}
        text = ".".join(_packed(json.dumps(part).encode()) for part in (head, body))
        return (
            f"{text}.{_packed(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
        )


_DAY = dt.timedelta(days=1)


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        tokens: Tokens = self.server.tokens  # type: ignore[attr-defined]
        scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
        body = tokens.answer(scopes, self.headers.get("Authorization", ""))
        refused = b'{"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]}'
        self.send_response(200 if body else 401)
        self.end_headers()
        self.wfile.write(body or refused)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def registry_with_tokens(folder: Path) -> Iterator[tuple[RealRegistry, Tokens]]:
    """A registry with TLS that takes tokens alone, and the server that gives them, with TLS."""
    tokens, server = Tokens(), ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.tokens = tokens  # type: ignore[attr-defined]
    folder.mkdir(parents=True)
    (folder / "tokens.pem").write_bytes(tokens.authority.public_bytes(Encoding.PEM))
    auth = _AUTH.format(at=f"127.0.0.1:{server.server_port}")
    with server, real_registry(folder, secured=True, auth=auth) as registry:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield registry, tokens
        finally:
            server.shutdown()
