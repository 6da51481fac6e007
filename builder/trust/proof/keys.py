"""Keys: ECDSA on P-256 with SHA-256, as cosign makes them, and Ed25519.

A private key comes from a file or from an environment variable (`env://NAME`), either as cosign's
encrypted PEM, whose password is in `COSIGN_PASSWORD`, or as plain PKCS#8 PEM.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from builder.model.errors import BadInput, MissingPrerequisite

if TYPE_CHECKING:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the name of the variable, which is cosign's
ENVIRONMENT = "env://"
_OTHERS = 0o077
_MAX_KEY = 64 << 10  # bytes
_LABELS = ("ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY")  # the second up to 2.0
_BLOCK = re.compile(  # without backtracking: the time is proportional to the length
    rb"-----BEGIN (" + b"|".join(label.encode() for label in _LABELS) + rb")-----"
    rb"([A-Za-z0-9+/=\s]+)-----END \1-----"
)
_SCRYPT = {"N": 65536, "r": 8, "p": 1}  # as cosign 3.1: 64 MiB, 0.2 s
_MAX_MEMORY = 512 << 20  # bytes; a key file must not use up this machine's memory
_MAX_ROUNDS = 16  # of `p`; the time grows with it
_ACCEPTED = "keys are ECDSA on P-256 or Ed25519: 'build-images keys generate' makes a pair"

_Public = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_Private = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicKey:
    """A key that verifies signatures; `name` is its file or variable, for messages."""

    key: _Public
    name: str

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the key (DER, SubjectPublicKeyInfo), in hexadecimal."""
        return hashlib.sha256(self._encoded(serialization.Encoding.DER)).hexdigest()

    @property
    def hint(self) -> str:
        """The same SHA-256 in Base64, as in Sigstore bundles."""
        return _base64(bytes.fromhex(self.fingerprint))

    @property
    def pem(self) -> bytes:
        """The content of cosign.pub."""
        return self._encoded(serialization.Encoding.PEM)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Return whether a signature is this key's over the data."""
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def _encoded(self, encoding: serialization.Encoding) -> bytes:
        return self.key.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)


class Signer(Protocol):
    """A key that signs: a local one, or one that only the cosign program can reach."""

    @property
    def public(self) -> PublicKey: ...

    def sign(self, data: bytes) -> bytes: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateKey:
    """A key that signs; its value is never shown."""

    key: _Private
    name: str

    def __repr__(self) -> str:
        return f"PrivateKey({self.name!r})"

    @property
    def public(self) -> PublicKey:
        return PublicKey(key=self.key.public_key(), name=self.name)

    def sign(self, data: bytes) -> bytes:
        """Return a signature; the same data gives the same one (RFC 6979)."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        try:
            return self.key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        except UnsupportedAlgorithm:  # OpenSSL before 3.2
            return self.key.sign(data, ec.ECDSA(hashes.SHA256()))


def public_key(reference: str, environment: Mapping[str, str]) -> PublicKey:
    """Read a public key from a PEM file or a variable (`env://NAME`); raises `BadInput`."""
    return public_key_of(_read(reference, environment), name=reference)


def public_key_of(pem: bytes, *, name: str) -> PublicKey:
    """Read a public key in PEM; `name` is for messages. Raises `BadInput`."""
    if b"PRIVATE KEY" in pem:
        raise BadInput(f"{name}: this is a private key; name the public key (cosign.pub)")
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{name}: not a public key in PEM", hint=_ACCEPTED) from error
    if isinstance(key, _Public) and _is_accepted(key):
        return PublicKey(key=key, name=name)
    raise BadInput(f"{name}: unsupported kind of key", hint=_ACCEPTED)


def private_key(reference: str, environment: Mapping[str, str]) -> PrivateKey:
    """Read a private key from a file or a variable (`env://NAME`).

    Raises `BadInput`, which never quotes the key or the password. Like ssh, it refuses a file of
    this user that others can read or write. Raises `MissingPrerequisite` if the library that
    decrypts cosign's keys is missing.
    """
    pem = _read(reference, environment, private=True)
    try:
        if any(f"-----BEGIN {label}-----".encode() in pem for label in _LABELS):
            der = _decrypted(pem, reference, environment)
            key = serialization.load_der_private_key(der, password=None)
        else:
            key = serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:  # encrypted, but not in cosign's format
        raise BadInput(
            f"{reference}: the key is encrypted, but not in cosign's format",
            hint="convert it: cosign import-key-pair --key FILE",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{reference}: not a private key in PEM", hint=_ACCEPTED) from error
    if isinstance(key, _Private) and _is_accepted(key):
        return PrivateKey(key=key, name=reference)
    raise BadInput(f"{reference}: unsupported kind of key", hint=_ACCEPTED)


def _is_accepted(key: _Public | _Private) -> bool:
    return isinstance(getattr(key, "curve", None), ec.SECP256R1 | None)


def is_key_text(reference: str) -> bool:
    """Return whether what should name a key is a key's text, which no message may quote."""
    return "-----BEGIN" in reference or "\n" in reference


def _read(reference: str, environment: Mapping[str, str], *, private: bool = False) -> bytes:
    if is_key_text(reference):
        raise BadInput(
            "the text of a key in place of its name: every user of this machine could read it",
            hint="name the key's file; or put the key into a variable, and name it as env://NAME",
        )
    if reference.startswith(ENVIRONMENT):
        name = reference.removeprefix(ENVIRONMENT)
        if not environment.get(name):
            raise BadInput(f"{reference}: the environment variable {name} is not set, or empty")
        return environment[name].encode()
    try:
        with Path(reference).open("rb") as file:
            if private:
                _check_mode(reference, os.fstat(file.fileno()))
            pem = file.read(_MAX_KEY + 1)
    except OSError as error:
        raise BadInput(f"{reference}: the key cannot be read ({error.strerror})") from error
    if len(pem) > _MAX_KEY:
        raise BadInput(f"{reference}: too large for a key")
    return pem


def _check_mode(name: str, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and mode & _OTHERS:
        raise BadInput(
            f"{name}: mode {mode:04o} lets others read or write this private key",
            hint=f"chmod 600 {name}; if that is not possible, put the key into a variable, "
            "and name it as env://NAME",
        )


def generate_key() -> PrivateKey:
    """Return a new key on P-256."""
    return PrivateKey(key=ec.generate_private_key(ec.SECP256R1()), name="a new key")


def as_cosign_key(key: PrivateKey, password: bytes) -> bytes:
    """Return a private key in the format of cosign.key, encrypted with a password (may be empty).

    The format is that of go-securesystemslib's package `encrypted`, version "nacl/secretbox":
    https://github.com/secure-systems-lab/go-securesystemslib/blob/main/encrypted/encrypted.go
    """
    der = key.key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    secret_box, _ = _nacl()
    salt, nonce = os.urandom(32), os.urandom(24)
    text = bytes(secret_box(_derived(password, salt, **_SCRYPT)).encrypt(der, nonce).ciphertext)
    content = {
        "kdf": {"name": "scrypt", "params": _SCRYPT, "salt": _base64(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": _base64(nonce)},
        "ciphertext": _base64(text),
    }
    lines = textwrap.wrap(_base64(json.dumps(content, separators=(",", ":")).encode()), 64)
    label = _LABELS[0]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


def _decrypted(pem: bytes, name: str, environment: Mapping[str, str]) -> bytes:
    """Return the PKCS#8 DER in a cosign key; raises `BadInput`."""
    password = environment.get(PASSWORD)
    if password is None:
        raise BadInput(
            f"{name}: the key is encrypted, and {PASSWORD} is not set",
            hint=f"put the key's password into the environment variable {PASSWORD}",
        )
    secret_box, crypto_error = _nacl()
    try:
        params, salt, nonce, text = _parts(pem)
        memory = 128 * params["N"] * params["r"]
        if memory > _MAX_MEMORY or params["p"] > _MAX_ROUNDS:
            raise BadInput(
                f"{name}: decrypting this key needs {memory >> 20} MiB of memory and "
                f"{params['p']} rounds; at most {_MAX_MEMORY >> 20} MiB and {_MAX_ROUNDS} rounds"
            )
        key = _derived(password.encode(), salt, **params)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{name}: not a complete cosign key") from error
    try:
        return bytes(secret_box(key).decrypt(text, nonce))
    except (crypto_error, ValueError) as error:
        raise BadInput(f"{name}: the key cannot be decrypted with this password") from error


def _parts(pem: bytes) -> tuple[dict[str, int], bytes, bytes, bytes]:
    """Return the parameters of scrypt, its salt, the nonce and the encrypted text."""
    block = _BLOCK.search(pem)
    if block is None:
        raise ValueError("no PEM block")
    content = json.loads(base64.b64decode(b"".join(block[2].split()), validate=True))
    kdf, cipher = content["kdf"], content["cipher"]
    if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox"):
        raise ValueError("another kind of encryption")
    params = {name: kdf["params"][name] for name in _SCRYPT}
    if not all(type(number) is int and number > 0 for number in params.values()):
        raise ValueError("scrypt parameters that are not numbers")
    texts = (kdf["salt"], cipher["nonce"], content["ciphertext"])
    salt, nonce, text = (base64.b64decode(text, validate=True) for text in texts)
    return params, salt, nonce, text


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _derived(password: bytes, salt: bytes, *, N: int, r: int, p: int) -> bytes:  # noqa: N803 - RFC 7914
    memory = 128 * r * (N + p + 2)
    return hashlib.scrypt(password, salt=salt, n=N, r=r, p=p, maxmem=memory, dklen=32)


def _nacl() -> tuple[type[SecretBox], type[CryptoError]]:
    try:
        from nacl.exceptions import CryptoError  # noqa: PLC0415 - only encrypted keys need it
        from nacl.secret import SecretBox  # noqa: PLC0415
    except ImportError as error:
        raise MissingPrerequisite(
            "PyNaCl is not installed; it is needed to read cosign's encrypted keys",
            hint="install it (Debian: python3-nacl), or use a key in plain PKCS#8 PEM from "
            "env://NAME",
        ) from error
    return SecretBox, CryptoError
