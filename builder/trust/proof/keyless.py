"""Signing without a key, where a CI system vouches for its job, and Fulcio for its certificate.

cosign finds the job's identity itself (GitHub's, GitLab's `SIGSTORE_ID_TOKEN`, and others), and
notes the signature in the public log. What comes of it are bundles, which
`builder.trust.proof.certified` judges, and `cosign verify --certificate-identity`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.exact_json import part
from builder.system.process import Processes
from builder.trust.proof import attachments
from builder.trust.proof.attachments import BUNDLE, MAX_PAYLOAD, Attachment, Descriptor, Unusable
from builder.trust.proof.attestations import about, bundle, predicate_type_of
from builder.trust.proof.statements import envelope_of, signature_statement

KEYLESS = "keyless"
_TIMEOUT_S = 300.0


def keyless_proofs(
    image: Descriptor,
    statements: Sequence[bytes],
    processes: Processes,
    *,
    created: str,
    path: str | None = None,
    options: Sequence[str | Path] = (),
) -> tuple[Attachment, ...]:
    """An image's signature and the attestations of some statements; see `keyless_attestations`."""
    some = (signature_statement(image.digest), *statements)
    return keyless_attestations(image, some, processes, created=created, path=path, options=options)


def keyless_attestations(
    image: Descriptor,
    statements: Sequence[bytes],
    processes: Processes,
    *,
    created: str,
    path: str | None = None,
    options: Sequence[str | Path] = (),
) -> tuple[Attachment, ...]:
    """The attestations of some statements about an image, signed through cosign.

    `options` are given to `cosign attest-blob` as well. Raises `BadInput` where a statement is not
    about the image, `MissingPrerequisite` without cosign, `StepFailed` where it did not sign.
    """
    environment = {} if path is None else {"PATH": path}
    found = []
    for payload in statements:
        about(payload, image.digest)
        content = _signed(payload, processes, environment, options)
        kind = predicate_type_of(payload)
        found.append(bundle(image, content, kind, created=created))
    return tuple(found)


def _signed(
    payload: bytes,
    processes: Processes,
    environment: Mapping[str, str],
    options: Sequence[str | Path],
) -> bytes:
    with tempfile.TemporaryDirectory(prefix="build-images-sign.") as folder:
        statement, target = Path(folder, "statement.json"), Path(folder, "bundle.json")
        statement.write_bytes(payload)
        where: list[str | Path] = ["--statement", statement, "--bundle", target]
        try:
            processes.capture(
                ["cosign", "attest-blob", "--yes", *options, *where],
                env=environment,
                timeout_s=_TIMEOUT_S,
                hint="it needs a CI job that may ask for an identity token; else sign with a key",
            )
        except MissingPrerequisite as error:
            raise MissingPrerequisite(
                "signing without a key needs the cosign program, which is not installed",
                hint="install cosign 3 or later, or sign with a key",
            ) from error
        content = target.read_bytes() if target.exists() else b""
    return _checked(content, payload)


def _checked(content: bytes, payload: bytes) -> bytes:
    """The bundle, if it holds the statement that was to be signed."""
    try:
        value = attachments.json_object(content, "cosign's bundle", limit=MAX_PAYLOAD)
        envelope = envelope_of(part(value, "dsseEnvelope") or {})
    except Unusable as error:
        raise StepFailed(f"cosign attest-blob: {error.reason}") from error
    if value.get("mediaType") != BUNDLE or envelope.payload != payload:
        raise StepFailed("cosign attest-blob: the bundle does not hold what was to be signed")
    return content
