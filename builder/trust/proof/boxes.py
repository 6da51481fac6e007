"""cosign's encrypted private keys: a PEM block that holds JSON, scrypt and NaCl's secretbox.

The form is that of go-securesystemslib's package `encrypted`, version "nacl/secretbox" with scrypt:
https://github.com/secure-systems-lab/go-securesystemslib/blob/main/encrypted/encrypted.go
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from builder.model.errors import BadInput, MissingPrerequisite

if TYPE_CHECKING:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

LABEL = "ENCRYPTED SIGSTORE PRIVATE KEY"
_LABELS = (LABEL, "ENCRYPTED COSIGN PRIVATE KEY")  # the second up to cosign 2.0
_BLOCK = re.compile(  # each part ends where it has to: the time is in proportion to the length
    rb"-----BEGIN (" + b"|".join(label.encode() for label in _LABELS) + rb")-----"
    rb"([A-Za-z0-9+/=\s]+)-----END \1-----"
)
_SCRYPT = {"N": 65536, "r": 8, "p": 1}  # what cosign 3.1 takes: 64 MiB, 0.2 s
_MAX_MEMORY = 512 << 20  # bytes: a key file does not decide how much memory this machine has
_MAX_ROUNDS = 16  # of `p`, each of which costs the time of one


def is_box(pem: bytes) -> bool:
    """Return whether a file holds a private key as cosign encrypts it."""
    return any(f"-----BEGIN {label}-----".encode() in pem for label in _LABELS)


def opened(pem: bytes, password: bytes, *, name: str) -> bytes:
    """The PKCS#8 DER in a cosign key. Raises `BadInput` where it is not one, or not decrypted."""
    secret_box, refused = _nacl()
    try:
        params, salt, nonce, text = _parts(pem)
        memory = 128 * params["N"] * params["r"]
        if memory > _MAX_MEMORY or not 1 <= params["p"] <= _MAX_ROUNDS:
            raise BadInput(
                f"{name}: decrypting this key would take {memory >> 20} MiB of memory, "
                f"{params['p']} times over; at most {_MAX_MEMORY >> 20} MiB, {_MAX_ROUNDS} times"
            )
        key = _derived(password, salt, **params)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{name}: not a whole key of cosign's") from error
    try:
        found = secret_box(key).decrypt(text, nonce)
    except (refused, ValueError) as error:
        raise BadInput(f"{name}: the key cannot be decrypted with this password") from error
    return bytes(found)


def closed(der: bytes, password: bytes) -> bytes:
    """A cosign key (PEM) of PKCS#8 DER."""
    secret_box, _ = _nacl()
    salt, nonce = os.urandom(32), os.urandom(24)
    key = _derived(password, salt, **_SCRYPT)
    text = bytes(secret_box(key).encrypt(der, nonce).ciphertext)
    content = {
        "kdf": {"name": "scrypt", "params": _SCRYPT, "salt": _base64(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": _base64(nonce)},
        "ciphertext": _base64(text),
    }
    lines = textwrap.wrap(_base64(json.dumps(content, separators=(",", ":")).encode()), 64)
    return "\n".join([f"-----BEGIN {LABEL}-----", *lines, f"-----END {LABEL}-----", ""]).encode()


def _parts(pem: bytes) -> tuple[dict[str, int], bytes, bytes, bytes]:
    """The parameters of scrypt, its salt, the nonce and the encrypted text."""
    block = _BLOCK.search(pem)
    if block is None:
        raise ValueError("no PEM block")
    content = json.loads(base64.b64decode(b"".join(block[2].split()), validate=True))
    kdf, cipher = content["kdf"], content["cipher"]
    if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox"):
        raise ValueError("another kind of encryption")
    params = {name: _whole_number(kdf["params"], name) for name in _SCRYPT}
    return params, _bytes(kdf["salt"]), _bytes(cipher["nonce"]), _bytes(content["ciphertext"])


def _whole_number(params: Mapping[str, object], name: str) -> int:
    value = params[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(name)
    return value


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not Base64") from error


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
            "PyNaCl is not installed, and cosign's encrypted keys cannot be read without it",
            hint="install it (Debian: python3-nacl), or use a key in plain PKCS#8 PEM from "
            "env://NAME",
        ) from error
    return SecretBox, CryptoError
