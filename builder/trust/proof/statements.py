"""in-toto statements, their signed DSSE envelopes, and SLSA provenance.

https://github.com/secure-systems-lab/dsse/blob/master/envelope.md
https://slsa.dev/spec/v1.0/provenance; docs/security.md explains `BUILD_TYPE`. Provenance names no
host, mirror or local folder, and no part of a URL that may be secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from builder.model.errors import BadInput
from builder.model.exact_json import part, time_of
from builder.model.inputs import public_url
from builder.model.manifest import ImageInputs, Manifest, UsedBase
from builder.model.predicates import CYCLONEDX, PROGRAM, SLSA, STATEMENT
from builder.system.files import read_bound
from builder.trust.proof.attachments import MAX_PAYLOAD, Unusable, base64_bytes, json_object
from builder.trust.proof.keys import Signer

STATEMENT_V0 = "https://in-toto.io/Statement/v0.1"  # what `cosign attest` makes
IN_TOTO = "application/vnd.in-toto+json"
SIGN = "https://sigstore.dev/cosign/sign/v1"  # the predicate of a signature in a bundle
_MAX_SIGNATURES = 16
BUILD_TYPE = "pkg:generic/build-images#image/v1"
_IN_TOTO_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A signed payload, an in-toto statement; each signature is over `signed`."""

    payload: bytes
    signatures: tuple[bytes, ...]

    @property
    def signed(self) -> bytes:
        """The bytes that were signed: DSSE's pre-authentication encoding."""
        kind = IN_TOTO.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def as_json(self) -> dict[str, object]:
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": base64.b64encode(one).decode()} for one in self.signatures],
        }


def sealed_envelope(payload: bytes, signer: Signer) -> Envelope:
    """Return a statement signed by one key."""
    unsigned = Envelope(payload=payload, signatures=())
    return replace(unsigned, signatures=(signer.sign(unsigned.signed),))


def envelope_of(value: Mapping[str, object]) -> Envelope:
    """Read an envelope's JSON; raises `Unusable`. No signature is checked yet."""
    if value.get("payloadType") != IN_TOTO:
        kind = ascii(value.get("payloadType"))[:100]
        raise Unusable(f"the payload's type is {kind}, not {IN_TOTO}")
    signatures = value.get("signatures")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= _MAX_SIGNATURES:
        raise Unusable("the envelope has no signatures, or too many")
    return Envelope(
        payload=base64_bytes(value.get("payload"), "the payload"),
        signatures=tuple(base64_bytes(part(one, "sig"), "the signature") for one in signatures),
    )


def statement(
    *, name: str, digest: str, predicate_type: str, predicate: Mapping[str, object]
) -> bytes:
    """Return an unsigned statement about an image with this name and digest (`sha256:…`)."""
    return _statement([{"name": name, "digest": _digest(digest)}], predicate_type, predicate)


def signature_statement(digest: str) -> bytes:
    """Return the statement that cosign signs for a signature in a bundle."""
    return _statement([{"digest": _digest(digest), "annotations": {}}], SIGN, {})


def _statement(
    subjects: Sequence[Mapping[str, object]], kind: str, predicate: Mapping[str, object]
) -> bytes:
    return as_bytes(
        {"_type": STATEMENT, "subject": subjects, "predicateType": kind, "predicate": predicate}
    )


def as_bytes(value: Mapping[str, object]) -> bytes:
    """Return JSON without spaces, its keys in their order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def statement_of(payload: bytes, digest: str) -> dict[str, object]:
    """Read a signed statement; raises `Unusable` if it is not about the image `sha256:…`.

    A missing predicate becomes an empty one.
    """
    statement = json_object(payload, "the statement", limit=MAX_PAYLOAD, most=None)
    if statement.get("_type") not in (STATEMENT, STATEMENT_V0):
        raise Unusable("the payload is not an in-toto statement of version 1 or 0.1")
    if not isinstance(statement.get("predicateType"), str):
        raise Unusable("the statement has no predicateType")
    if not isinstance(statement.setdefault("predicate", {}), dict):
        raise Unusable("the statement's predicate is not an object")
    subjects = statement.get("subject")
    if not isinstance(subjects, list):
        raise Unusable("the statement has no subject")
    if digest.removeprefix("sha256:") not in [part(one, "digest", "sha256") for one in subjects]:
        raise Unusable(f"the statement is about another image, not {digest}")
    return statement


def provenance(manifest: Manifest) -> bytes:
    """Return SLSA provenance v1 of an image; its subjects are all artifacts of the image.

    Without a recorded builder, it is this program, which claims nothing. Raises `BadInput`
    for the manifest of an earlier version, which lacks some of the inputs.
    """
    try:
        subjects = [
            {"name": f"{manifest.image}/{form}", "digest": _digest(artifact.digest)}
            for form, artifact in sorted(manifest.artifacts.items())
        ]
        predicate = {
            "buildDefinition": _build_definition(manifest),
            "runDetails": _run_details(manifest),
        }
        return _statement(subjects, SLSA, predicate)
    except (TypeError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{manifest.image}: its manifest does not list all inputs of the build",
            hint="build it again with this version: build-images --image IDENTIFIER",
        ) from error


def _build_definition(manifest: Manifest) -> dict[str, object]:
    inputs = manifest.inputs
    if not (inputs.files and inputs.base.name) or inputs.sources is None:
        raise ValueError("no files, base or sources")
    cell = {key: value for key, value in sorted(asdict(manifest.cell).items()) if value != ""}
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {"image": manifest.image, "cell": cell, "engine": manifest.engine},
        "internalParameters": {
            "contentKey": manifest.content_key,
            "emulated": manifest.was_built_emulated,
            "nativeTools": inputs.native_tools,
            "sourceDateEpoch": inputs.source_date_epoch,
        },
        "resolvedDependencies": list(_dependencies(inputs)),
    }


def _run_details(manifest: Manifest) -> dict[str, object]:
    inputs = manifest.inputs
    program = {"uri": f"{PROGRAM}@{inputs.version}", "digest": _digest(inputs.program)}
    versions = {"build-images": inputs.version, "compiler": inputs.compiler}
    if inputs.specs is None:
        raise ValueError("no specs")
    return {
        "builder": {
            "id": manifest.builder or f"{PROGRAM}@{inputs.version}",
            "version": versions | dict(manifest.tools),
            "builderDependencies": [program],
        },
        "metadata": {"startedOn": time_of(manifest.started).strftime(_IN_TOTO_TIME)},
        "byproducts": [
            {"name": path, "digest": _digest(digest)}
            for path, digest in sorted(inputs.specs.items())
        ],
    }


def _dependencies(inputs: ImageInputs) -> Iterator[dict[str, object]]:
    """Yield the materials: the files that declare the image, its base, its sources."""
    for path, digest in sorted(inputs.files.items()):
        yield {"name": path, "digest": _digest(digest)}
    yield _base(inputs.base)
    for url, digest in sorted((inputs.sources or {}).items()):
        yield {"uri": public_url(url), "digest": _digest(digest)}


def _base(base: UsedBase) -> dict[str, object]:
    """Return the base image: by digest if it was made here, else by reference."""
    name = f"base image {base.name}"
    if base.digest:
        # It has the packages that the distribution had at that time.
        notes = {"made": base.created, "key": base.key}
        return {"name": name, "digest": _digest(base.digest), "annotations": notes}
    reference, _, digest = base.image.partition("@")
    repository, _, tag = reference.rpartition("/")[2].partition(":")
    version = f"@{digest.replace(':', '%3A')}" if digest else ""
    uri = f"pkg:oci/{repository}{version}" + (f"?tag={tag}" if tag else "")
    return {"name": name, "uri": uri, **({"digest": _digest(digest)} if digest else {})}


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    if algorithm != "sha256" or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(text)
    return {algorithm: value}


def statements_of(folder: Path, manifest: Manifest) -> tuple[bytes, ...]:
    """Return the statements to sign: the evidence of each run, bill of materials and provenance.

    `manifest` is the manifest.json in `folder`. Evidence is returned byte for byte. Raises
    `BadInput` if a file is missing, malformed, or differs from its digest in the manifest.
    """
    evidence = [_read(folder, manifest, path) for path in manifest.evidence]
    if not evidence:
        raise BadInput(
            f"{folder}: no evidence, so nothing about this image is proven",
            hint=f"build-images verify {folder}",
        )
    bill = statement(
        name=f"{manifest.image}/oci",
        digest=manifest.artifacts["oci"].digest,
        predicate_type=CYCLONEDX,
        predicate=json.loads(_read(folder, manifest, manifest.sbom)),
    )
    return (*evidence, bill, provenance(manifest))


def _read(folder: Path, manifest: Manifest, name: str) -> bytes:
    data = read_bound(folder, manifest, name)
    try:
        json_object(data, "the file", limit=MAX_PAYLOAD, most=None)
    except Unusable as error:
        raise BadInput(f"{folder / name}: {error}") from error
    return data
