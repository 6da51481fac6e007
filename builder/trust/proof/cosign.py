"""Signing with keys that only the cosign program can reach, and without a key.

References other than files and `env://NAME` are cosign's: `pkcs11:…`, `awskms://…`,
`azurekms://…`, `gcpkms://…`, `hashivault://…`, `k8s://…`, `gitlab://…`. Secrets for these reach it
through the environment (`COSIGN_PKCS11_PIN`, the cloud's own variables), never as arguments.
SoftHSM once lost its token when several programs opened it at once, so the programs of one home
take turns for `pkcs11:`.

Without a key, the identity of a CI job signs: cosign finds the job's token (GitHub's, GitLab's
`SIGSTORE_ID_TOKEN`, and others), gets a certificate from Fulcio, and logs the signature publicly.
The results are bundles that `builder.trust.proof.certificates` and `cosign verify
--certificate-identity` verify.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from builder.model.digests import Descriptor
from builder.model.errors import BadInput, MissingPrerequisite, StepFailed
from builder.model.exact_json import part
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.process import Completed, Processes
from builder.trust.proof.attachments import (
    BUNDLE,
    MAX_PAYLOAD,
    ProofManifest,
    Unusable,
    base64_bytes,
    json_object,
)
from builder.trust.proof.attestations import bundle, predicate_type
from builder.trust.proof.keys import ENVIRONMENT, Signer, private_key, public_key_of
from builder.trust.proof.statements import as_bytes, envelope_of

_ELSEWHERE = re.compile(r"pkcs11:|[a-z0-9]+://")
_PIN = re.compile(r"\bpin-value=", re.IGNORECASE)
_TIMEOUT_S = 300.0
KEYLESS = "keyless"
_HINT = "install cosign 3 or later, or use a local key: 'build-images keys generate'"
PKCS11 = "pkcs11:"
# Ignore a certificate beside the key in a token: cosign would verify it, and refuse to sign.
_BARE = {"COSIGN_PKCS11_IGNORE_CERTIFICATE": "1"}
_TOKENS = "'cosign pkcs11-tool list-tokens' lists the tokens"
_LIBRARY = "name the token's library: module-path in the URI, or COSIGN_PKCS11_MODULE_PATH"
# Error messages of cosign, in lower case, with a hint for each.
_HINTS = {
    "unknown flag": _HINT,
    "pkcs11 token key: unimplemented": "this cosign was built without PKCS#11, like Debian's: "
    "put a cosign with the build tag pkcs11key first on PATH",
    "ckr_pin_incorrect": "the PIN in COSIGN_PKCS11_PIN is wrong; tokens lock after a few tries",
    "get pin": "put the PIN into the environment variable COSIGN_PKCS11_PIN",
    "could not find pkcs#11 token": _TOKENS,
    "signer not set": "the token has no such key: 'cosign pkcs11-tool list-keys-uris' shows them",
    "could not find a slot": _TOKENS,
    "module_path": _LIBRARY,
    "pkcs11 module": _LIBRARY,
    "modulepath": _LIBRARY,
    "could not open pkcs#11": _LIBRARY,
}
# No log, no time stamp, and no access to the network to look for them.
_CONFIG = {
    "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
    "rekorTlogConfig": {},
    "tsaConfig": {},
}
_ROOT = {"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}


def signer_of(
    reference: str, environment: Mapping[str, str], processes: Processes, *, path: str | None = None
) -> Signer:
    """Return a key to sign with: a file, `env://NAME`, or one that the cosign program reaches.

    `path` is the PATH for programs. Raises `BadInput`, `MissingPrerequisite` if cosign
    is needed and missing, and `StepFailed` if it cannot reach the key.
    """
    if reference.startswith(ENVIRONMENT) or not _ELSEWHERE.match(reference):
        return private_key(reference, environment)
    if _PIN.search(unquote(reference)):  # as cosign reads it
        raise BadInput(
            "the key's URI contains a PIN, which every user of this machine could read",
            hint="leave pin-value out, and put it into the environment variable COSIGN_PKCS11_PIN",
        )
    return CosignSigner(reference, processes, path=path)


class CosignSigner:
    """A key that `cosign sign-blob` signs with; signatures are checked with its public half."""

    def __init__(self, reference: str, processes: Processes, *, path: str | None = None) -> None:
        """Get the public key from cosign; raises `MissingPrerequisite` and `StepFailed`."""
        self._reference, self._processes = reference, processes
        self._environment = {**_BARE, **({} if path is None else {"PATH": path})}
        self.public = public_key_of(self._run("public-key").stdout.encode(), name=reference)

    def sign(self, data: bytes) -> bytes:
        """Return a signature over the data; raises `StepFailed`."""
        with tempfile.TemporaryDirectory(prefix="build-images-sign.") as scratch:
            payload, target = Path(scratch, "payload"), Path(scratch, "bundle")
            config, root = Path(scratch, "config"), Path(scratch, "root")
            payload.write_bytes(data)
            config.write_bytes(as_bytes(_CONFIG))
            root.write_bytes(as_bytes(_ROOT))
            own = ("--signing-config", config, "--trusted-root", root)
            self._run("sign-blob", *own, "--bundle", target, "--yes", payload)
            content = target.read_bytes() if target.exists() else b""
        try:
            value = json_object(content, "cosign's bundle", limit=MAX_PAYLOAD)
            text = part(value, "messageSignature", "signature")
            signature = base64_bytes(text, "the signature in the bundle")
        except Unusable as error:
            raise StepFailed(f"cosign sign-blob: {error}") from error
        if not self.public.verifies(signature, data):
            raise StepFailed(
                f"cosign's signature does not match the public key of {self._reference}",
                hint="keys are ECDSA on P-256 with SHA-256, or Ed25519",
            )
        return signature

    def _run(self, command: str, *options: str | Path) -> Completed:
        argv = ["cosign", command, "--key", self._reference, *options]
        try:
            with self._turn():
                return self._processes.capture(argv, env=self._environment, timeout_s=_TIMEOUT_S)
        except MissingPrerequisite as error:
            raise MissingPrerequisite(
                f"{self._reference}: only the cosign program can reach this key, but it is not "
                "installed",
                hint=_HINT,
            ) from error
        except StepFailed as error:
            text = "\n".join(error.tail)
            message = text.partition("Error: ")[2].partition("\nerror during command")[0].strip()
            first, *rest = message.splitlines() or [error.message.rpartition(": ")[2], *error.tail]
            raise StepFailed(
                f"{self._reference}: cosign {command}: {first}",
                tail=rest,
                hint=next((hint for part, hint in _HINTS.items() if part in text.lower()), ""),
            ) from error

    def _turn(self) -> contextlib.AbstractContextManager[object]:
        if not self._reference.startswith(PKCS11):
            return contextlib.nullcontext()
        folder = Home.of_environment().path / "tokens"
        return locked(folder, "pkcs11", stopped=lambda: self._processes.stopping)


def keyless_attestations(
    image: Descriptor,
    statements: Sequence[bytes],
    processes: Processes,
    *,
    created: str,
    path: str | None = None,
    options: Sequence[str | Path] = (),
) -> tuple[ProofManifest, ...]:
    """Return the attestations of statements about an image, signed by `cosign attest-blob`.

    `options` are further arguments. Raises `BadInput` if a statement is not about the image,
    `MissingPrerequisite` without cosign, and `StepFailed` if cosign did not sign.
    """
    attachments = []
    for payload in statements:
        kind = predicate_type(payload, image.digest)
        content = _keyless_bundle(payload, processes, path, options)
        attachments.append(bundle(image, content, kind, created=created))
    return tuple(attachments)


def _keyless_bundle(
    payload: bytes, processes: Processes, path: str | None, options: Sequence[str | Path]
) -> bytes:
    """Sign a statement with cosign; return the bundle."""
    with tempfile.TemporaryDirectory(prefix="build-images-sign.") as folder:
        statement, target = Path(folder, "statement.json"), Path(folder, "bundle.json")
        statement.write_bytes(payload)
        argv = ["cosign", "attest-blob", "--yes", *options]
        try:
            processes.capture(
                [*argv, "--statement", statement, "--bundle", target],
                env={} if path is None else {"PATH": path},
                timeout_s=_TIMEOUT_S,
                hint="use a CI job that may request an identity token, or sign with a key",
            )
        except MissingPrerequisite as error:
            raise MissingPrerequisite(
                "signing without a key needs the cosign program, which is not installed",
                hint="install cosign 3 or later, or sign with a key",
            ) from error
        content = target.read_bytes() if target.exists() else b""
    try:
        value = json_object(content, "cosign's bundle", limit=MAX_PAYLOAD)
        envelope = envelope_of(part(value, "dsseEnvelope") or {})
    except Unusable as error:
        raise StepFailed(f"cosign attest-blob: {error}") from error
    if value.get("mediaType") != BUNDLE or envelope.payload != payload:
        raise StepFailed("cosign attest-blob: the bundle does not contain the statement to sign")
    return content
