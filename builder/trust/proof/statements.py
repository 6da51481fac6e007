"""in-toto statements, and the DSSE envelopes that they are signed in.

https://github.com/secure-systems-lab/dsse/blob/master/envelope.md
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit, urlunsplit

from builder import __version__
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.model.manifest import ImageInputs, Manifest, UsedBase
from builder.model.predicates import SLSA, STATEMENT
from builder.trust.proof import attachments
from builder.trust.proof.attachments import (
    MALFORMED,
    MAX_PAYLOAD,
    OTHER_SUBJECT,
    WRONG_TYPE,
    Unusable,
)
from builder.trust.proof.keys import PublicKey, Signer

STATEMENT_V0 = "https://in-toto.io/Statement/v0.1"  # what `cosign attest` makes
IN_TOTO = "application/vnd.in-toto+json"
SIGN = "https://sigstore.dev/cosign/sign/v1"  # the predicate of a signature in a bundle
_MAX_SIGNATURES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A signed payload: `payload_type` is a media type; each signature is over `signed`."""

    payload: bytes
    signatures: tuple[bytes, ...]
    payload_type: str = IN_TOTO

    @property
    def signed(self) -> bytes:
        """The bytes that were signed: DSSE's pre-authentication encoding."""
        kind = self.payload_type.encode()
        return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def as_json(self) -> dict[str, object]:
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": self.payload_type,
            "signatures": [{"sig": base64.b64encode(one).decode()} for one in self.signatures],
        }


def sealed_envelope(payload: bytes, signer: Signer) -> Envelope:
    """A statement signed by one key."""
    unsigned = Envelope(payload=payload, signatures=())
    return Envelope(payload=payload, signatures=(signer.sign(unsigned.signed),))


def envelope_of(value: Mapping[str, object]) -> Envelope:
    """An envelope out of its JSON; raises `Unusable`. No signature is checked yet."""
    if value.get("payloadType") != IN_TOTO:
        kind = ascii(value.get("payloadType"))[:100]
        raise Unusable(WRONG_TYPE, f"the payload's type is {kind}, not {IN_TOTO}")
    given = value.get("signatures")
    if not isinstance(given, list) or not 1 <= len(given) <= _MAX_SIGNATURES:
        raise Unusable(MALFORMED, "the envelope has no signatures, or too many")
    return Envelope(
        payload=attachments.base64_bytes(value.get("payload"), "the payload"),
        signatures=tuple(
            attachments.base64_bytes(part({"": one}, "", "sig"), "the signature") for one in given
        ),
    )


def signed_by(envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Those of some keys that signed an envelope."""
    data = envelope.signed
    return tuple(key for key in keys if any(key.verifies(one, data) for one in envelope.signatures))


def statement(
    *, name: str, digest: str, predicate_type: str, predicate: Mapping[str, object]
) -> bytes:
    """A statement about an image, `sha256:…`, as it is signed. `name` says what the image is."""
    subject = {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    return as_bytes(
        {
            "_type": STATEMENT,
            "subject": [subject],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )


def signature_statement(digest: str) -> bytes:
    """The statement that cosign signs for a signature in a bundle."""
    subject = {"digest": {"sha256": digest.removeprefix("sha256:")}, "annotations": {}}
    return as_bytes(
        {"_type": STATEMENT, "subject": [subject], "predicateType": SIGN, "predicate": {}}
    )


def as_bytes(value: Mapping[str, object]) -> bytes:
    """JSON without spaces, in the order given."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def statement_of(payload: bytes, digest: str) -> dict[str, object]:
    """A signed statement about an image, `sha256:…`; raises `Unusable` where it is about others."""
    found = attachments.json_object(payload, "the statement", limit=MAX_PAYLOAD, most=None)
    if found.get("_type") not in (STATEMENT, STATEMENT_V0):
        raise Unusable(WRONG_TYPE, "the payload is not an in-toto statement of version 1 or 0.1")
    if not isinstance(found.get("predicateType"), str):
        raise Unusable(MALFORMED, "the statement has no predicateType")
    if not isinstance(found.setdefault("predicate", {}), dict):
        raise Unusable(MALFORMED, "the statement's predicate is not an object")
    subjects = found.get("subject")
    if not isinstance(subjects, list):
        raise Unusable(MALFORMED, "the statement has no subject")
    named = [part({"": one}, "", "digest", "sha256") for one in subjects]
    if digest.removeprefix("sha256:") not in named:
        raise Unusable(OTHER_SUBJECT, f"the statement is about another image than {digest}")
    return found


BUILD_TYPE = "pkg:generic/build-images#image/v1"
PROGRAM = "pkg:generic/build-images"


def builder_of(environment: Mapping[str, str]) -> str:
    """What built: the workflow of GitHub or the project of GitLab, else this program alone.

    A program that runs wherever somebody starts it can claim nothing: SLSA Build level 1.
    """
    if server := environment.get("GITHUB_SERVER_URL"):
        return f"{server}/{environment.get('GITHUB_WORKFLOW_REF', '')}"
    if environment.get("GITLAB_CI"):
        return environment.get("CI_PROJECT_URL", PROGRAM)
    return f"{PROGRAM}@{__version__}"


def provenance(manifest: Manifest, *, builder_id: str) -> bytes:
    """The statement on an image, out of its manifest.json; subjects are all of its artifacts.

    Raises `BadInput` where the manifest is of an earlier version, which did not note all of it.
    """
    try:
        made = _statement(manifest, builder_id)
    except (TypeError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{manifest.image}: its manifest does not say what it was made from",
            hint="build it again with this version: build-images --image IDENTIFIER",
        ) from error
    return as_bytes(made)


def _statement(manifest: Manifest, builder_id: str) -> dict[str, object]:
    inputs, name = manifest.inputs, manifest.image
    if not inputs.files or not inputs.base.name or inputs.sources is None or inputs.specs is None:
        raise ValueError(name)
    cell = {key: value for key, value in sorted(asdict(manifest.cell).items()) if value != ""}
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": f"{name}/{form}", "digest": _digest(one.digest)}
            for form, one in sorted(manifest.artifacts.items())
        ],
        "predicateType": SLSA,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"image": name, "cell": cell, "engine": manifest.engine},
                "internalParameters": {
                    "contentKey": manifest.content_key,
                    "emulated": manifest.was_built_emulated,
                    "nativeTools": inputs.native_tools,
                    "sourceDateEpoch": inputs.source_date_epoch,
                },
                "resolvedDependencies": list(_dependencies(inputs)),
            },
            "runDetails": {
                "builder": {
                    "id": builder_id,
                    "version": {"build-images": inputs.version, "compiler": inputs.compiler}
                    | dict(manifest.tools),
                    "builderDependencies": [
                        {
                            "uri": f"{PROGRAM}@{inputs.version}",
                            "digest": _digest(inputs.program),
                        }
                    ],
                },
                "metadata": {"startedOn": _timestamp(manifest.started)},
                "byproducts": [
                    {"name": path, "digest": _digest(digest)}
                    for path, digest in sorted(inputs.specs.items())
                ],
            },
        },
    }


def _dependencies(inputs: ImageInputs) -> Iterator[dict[str, object]]:
    """The materials: the files that declare the image, its base, its sources."""
    for path, digest in sorted(inputs.files.items()):
        yield {"name": path, "digest": _digest(digest)}
    yield _base(inputs.base)
    for url, digest in sorted((inputs.sources or {}).items()):
        yield {"uri": _public(url), "digest": _digest(digest)}


def _base(base: UsedBase) -> dict[str, object]:
    """The base image: one that was made here by its digest, others as their reference has it."""
    name = f"base image {base.name}"
    if base.digest:
        # Its packages are those that the distribution had when it was made.
        notes = {"made": base.created, "key": base.key}
        return {"name": name, "digest": _digest(base.digest), "annotations": notes}
    reference, _, digest = base.image.partition("@")
    repository, _, tag = reference.rpartition("/")[2].partition(":")
    version = f"@{digest.replace(':', '%3A')}" if digest else ""
    found: dict[str, object] = {
        "name": name,
        "uri": f"pkg:oci/{repository}{version}" + (f"?tag={tag}" if tag else ""),
    }
    return {**found, "digest": _digest(digest)} if digest else found


def _public(url: str) -> str:
    """A URL without a user, a password or a query: those may be secrets."""
    parts = urlsplit(url)
    if not parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    if algorithm != "sha256" or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(text)
    return {algorithm: value}


def _timestamp(text: str) -> str:
    """A time as in-toto writes it: in UTC, to the second, with a Z."""
    found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
    return found.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
