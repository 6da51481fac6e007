"""Which key signs: a local one, or one that only the cosign program can reach.

What is not a file or `env://NAME` is cosign's to understand: `pkcs11:…`, `awskms://…`,
`azurekms://…`, `gcpkms://…`, `hashivault://…`, `k8s://…`, `gitlab://…`. The secrets for these reach
it through the environment (`COSIGN_PKCS11_PIN`, the cloud's own variables), never as arguments.
Programs that open a token at once get in each other's way, and SoftHSM's was lost by it, so for
`pkcs11:` those of one home take turns.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from builder.model.errors import BadInput, MissingPrerequisite, StepFailed
from builder.model.exact_json import part
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.process import Completed, Processes
from builder.trust.proof import attachments
from builder.trust.proof.attachments import MAX_PAYLOAD, Unusable
from builder.trust.proof.keys import ENVIRONMENT, PublicKey, Signer, private_key, public_key_of
from builder.trust.proof.statements import as_bytes

_ELSEWHERE = re.compile(r"pkcs11:|[a-z0-9]+://")
_PIN = re.compile(r"\bpin-value=", re.IGNORECASE)
_TIMEOUT_S = 180.0
_HINT = "install cosign 3 or later, or use a local key: 'build-images keys generate'"
PKCS11 = "pkcs11:"
# A certificate beside the key in a token is not used: cosign would judge it, and refuse to sign.
_BARE = {"COSIGN_PKCS11_IGNORE_CERTIFICATE": "1"}
_TOKENS = "'cosign pkcs11-tool list-tokens' shows those that are there"
_LIBRARY = "name the token's library: module-path in the URI, or COSIGN_PKCS11_MODULE_PATH"
# What cosign says, in small letters, and what helps.
_HINTS = {
    "unknown flag": _HINT,
    "pkcs11 token key: unimplemented": "this cosign was built without PKCS#11, as Debian's is: "
    "one that was built with the tag pkcs11key has to be first on PATH",
    "ckr_pin_incorrect": "COSIGN_PKCS11_PIN holds another PIN; tokens lock after a few wrong ones",
    "get pin": "put the PIN into the environment variable COSIGN_PKCS11_PIN",
    "could not find pkcs#11 token": _TOKENS,
    "signer not set": "the token has no such key: 'cosign pkcs11-tool list-keys-uris' shows them",
    "could not find a slot": _TOKENS,
    "module_path": _LIBRARY,
    "pkcs11 module": _LIBRARY,
    "modulepath": _LIBRARY,
    "could not open pkcs#11": _LIBRARY,
}
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
    if _PIN.search(unquote(reference)):  # as cosign reads it
        raise BadInput(
            "the key's URI holds a PIN, which every user of this machine could read",
            hint="leave pin-value out, and put it into the environment variable COSIGN_PKCS11_PIN",
        )
    return by_cosign(reference, processes, path=path)


def by_cosign(reference: str, processes: Processes, *, path: str | None = None) -> Signer:
    """A key that cosign signs with; its public half is asked for at once."""
    cosign = _Cosign(
        reference=reference,
        processes=processes,
        environment={**_BARE, **({} if path is None else {"PATH": path})},
    )
    public = public_key_of(cosign.run("public-key").stdout.encode(), name=reference)
    return CosignSigner(cosign=cosign, public=public)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cosign:
    """The program, with a key that it can reach."""

    reference: str
    processes: Processes
    environment: Mapping[str, str]

    def run(self, command: str, *more: str | Path) -> Completed:
        """Run a command with the key; raises `MissingPrerequisite` and `StepFailed`."""
        with self._turn():
            return self._run(["cosign", command, "--key", self.reference, *more], command)

    def _run(self, words: Sequence[str | Path], command: str) -> Completed:
        try:
            return self.processes.capture(words, env=self.environment, timeout_s=_TIMEOUT_S)
        except MissingPrerequisite as error:
            raise MissingPrerequisite(
                f"{self.reference}: only the cosign program can reach this key, and it is not "
                "installed",
                hint=_HINT,
            ) from error
        except StepFailed as error:
            text = "\n".join(error.tail)
            said = text.partition("Error: ")[2].partition("\nerror during command")[0].strip()
            first, *rest = said.splitlines() or [error.message.rpartition(": ")[2], *error.tail]
            raise StepFailed(
                f"{self.reference}: cosign {command}: {first}",
                tail=rest,
                hint=next((hint for part, hint in _HINTS.items() if part in text.lower()), ""),
            ) from error

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if not self.reference.startswith(PKCS11):
            yield
            return
        place = Home.of_environment().path / "tokens"
        with locked(place, "pkcs11", stopped=lambda: self.processes.stopping):
            yield


@dataclass(frozen=True, kw_only=True, slots=True)
class CosignSigner:
    """Signs through `cosign sign-blob`; what it makes is checked with the public key."""

    cosign: _Cosign
    public: PublicKey

    def sign(self, data: bytes) -> bytes:
        """A signature over the data; raises `StepFailed`."""
        with tempfile.TemporaryDirectory(prefix="build-images-sign.") as scratch:
            content = self._run(Path(scratch), data)
        try:
            bundle = attachments.json_object(content, "cosign's bundle", limit=MAX_PAYLOAD)
            text = part(bundle, "messageSignature", "signature")
            signature = attachments.base64_bytes(text, "the signature in it")
        except Unusable as error:
            raise StepFailed(f"cosign sign-blob: {error.reason}") from error
        if not self.public.verifies(signature, data):
            raise StepFailed(
                f"cosign's signature does not fit the public key of {self.cosign.reference}",
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
        self.cosign.run("sign-blob", *where, "--yes", payload)
        return bundle.read_bytes() if bundle.exists() else b""
