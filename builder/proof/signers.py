"""Which key signs: a local one, or one that only the cosign program can reach.

What is not a file or `env://NAME` is cosign's to understand: `pkcs11:…`, `awskms://…`,
`azurekms://…`, `gcpkms://…`, `hashivault://…`, `k8s://…`, `gitlab://…`. The secrets for these reach
it through the environment (`COSIGN_PKCS11_PIN`, the cloud's own variables), never as arguments.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BadInput, MissingPrerequisite, StepFailed
from builder.process import Processes
from builder.proof import strict
from builder.proof.envelopes import as_bytes
from builder.proof.keys import ENVIRONMENT, PublicKey, Signer, private_key, public_key_of
from builder.proof.values import MAX_PAYLOAD, Unusable

_ELSEWHERE = re.compile(r"pkcs11:|[a-z0-9]+://")
_PIN = re.compile(r"\bpin-value=", re.IGNORECASE)
_TIMEOUT_S = 180.0
_HINT = "install cosign 3 or later, or use a local key: 'build-images keys generate'"
# Neither a log nor a time stamp; and nothing fetched from the network to look for one.
_CONFIG = {
    "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
    "rekorTlogConfig": {},
    "tsaConfig": {},
}
_ROOT = {"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}


def signer_of(
    reference: str, environment: Mapping[str, str], processes: Processes, *, path: str | None = None
) -> Signer:
    """What signs with a key: a file, `env://NAME`, or what the cosign program understands.

    `path` is where programs are looked for. Raises `BadInput`, `MissingPrerequisite` where cosign
    is needed and missing, and `StepFailed` where it cannot reach the key.
    """
    if reference.startswith(ENVIRONMENT) or not _ELSEWHERE.match(reference):
        return private_key(reference, environment)
    if _PIN.search(reference):
        raise BadInput(
            "the key's URI holds a PIN, which every user of this machine could read",
            hint="leave pin-value out, and put it into the environment variable COSIGN_PKCS11_PIN",
        )
    return by_cosign(reference, processes, path=path)


def by_cosign(reference: str, processes: Processes, *, path: str | None = None) -> Signer:
    """A key that cosign signs with; its public half is asked for at once."""
    environment = {} if path is None else {"PATH": path}
    try:
        asked = processes.capture(
            ["cosign", "public-key", "--key", reference], env=environment, timeout_s=_TIMEOUT_S
        )
    except MissingPrerequisite as error:
        raise MissingPrerequisite(
            f"{reference}: only the cosign program can reach this key, and it is not installed",
            hint=_HINT,
        ) from error
    public = public_key_of(asked.stdout.encode(), name=reference)
    return CosignSigner(
        reference=reference, public=public, processes=processes, environment=environment
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CosignSigner:
    """Signs through `cosign sign-blob`; what it makes is checked with the public key."""

    reference: str
    public: PublicKey
    processes: Processes
    environment: Mapping[str, str]

    def sign(self, data: bytes) -> bytes:
        """A signature over the data; raises `StepFailed`."""
        with tempfile.TemporaryDirectory(prefix="build-images-sign.") as scratch:
            content = self._run(Path(scratch), data)
        try:
            bundle = strict.json_object(content, "cosign's bundle", limit=MAX_PAYLOAD)
            text = strict.part(bundle, "messageSignature", "signature")
            signature = strict.base64_bytes(text, "the signature in it")
        except Unusable as error:
            raise StepFailed(f"cosign sign-blob: {error.reason}") from error
        if not self.public.verifies(signature, data):
            raise StepFailed(
                f"cosign's signature does not fit the public key of {self.reference}",
                hint="keys are ECDSA on P-256 with SHA-256, or Ed25519",
            )
        return signature

    def _run(self, scratch: Path, data: bytes) -> bytes:
        payload, bundle = scratch / "payload", scratch / "bundle"
        config, root = scratch / "config", scratch / "root"
        payload.write_bytes(data)
        config.write_bytes(as_bytes(_CONFIG))
        root.write_bytes(as_bytes(_ROOT))
        where: list[str | Path] = [
            "--signing-config",
            config,
            "--trusted-root",
            root,
            "--bundle",
            bundle,
        ]
        self.processes.capture(
            ["cosign", "sign-blob", "--key", self.reference, *where, "--yes", payload],
            env=self.environment,
            timeout_s=_TIMEOUT_S,
            hint=_HINT,
        )
        return bundle.read_bytes() if bundle.exists() else b""
