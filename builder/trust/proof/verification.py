"""Verification of an image's proof: the signatures and statements that trusted signers vouch for.

A signature is verified before its content is read. Invalid proof is listed with the reason
and does not affect the rest: anyone who may write to a registry can attach it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from builder.model.digests import Descriptor
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.trust.proof.attachments import (
    BUNDLES,
    CONTAINER_SIGNATURE,
    MAX_ATTACHMENTS,
    MAX_CLAIMS,
    MAX_PAYLOAD,
    SIGNATURE_NOTE,
    SIMPLE_SIGNING,
    ProofManifest,
    Rejection,
    Unusable,
    VerifiedProof,
    VerifiedStatement,
    base64_bytes,
    content_of,
    json_object,
    layers_of,
    subject_of,
)
from builder.trust.proof.keys import PublicKey
from builder.trust.proof.statements import SIGN, Envelope, envelope_of, statement_of

CLASSIC, BUNDLED = "classic", "bundle"
_SKEW = dt.timedelta(minutes=5)  # accepted difference between clocks
_SHOWN = 200  # characters of a name
_MAX_ROOT = 4 << 20  # bytes; Sigstore's own trusted root has 10 kB
_HINT = "make one with cosign trusted-root create, or get Sigstore's with cosign initialize"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedKey:
    """A trusted key; `name` is for messages, `until` is the end of its trust."""

    key: PublicKey
    name: str
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedIdentity:
    """A trusted signer with certificates; `until` is the end of the trust.

    `glob` matches the name in a certificate, `issuer` is the provider of that identity, and
    `trusted_root` is the JSON of `read_trusted_root`.
    """

    glob: str
    issuer: str
    trusted_root: Mapping[str, object]
    until: dt.datetime | None = None

    @property
    def name(self) -> str:
        return f"{self.glob} ({self.issuer})"

    def is_of(self, subject: str, issuer: str) -> bool:
        """Return whether a certificate's subject and issuer match.

        With `@` in the glob, the parts before and after the first `@` must match separately: the
        branch `x@refs/heads/main` is not the branch `main`.
        """
        if "@" not in self.glob:
            return issuer == self.issuer and fnmatchcase(subject, self.glob)
        matching = map(fnmatchcase, subject.partition("@"), self.glob.partition("@"))
        return issuer == self.issuer and all(matching)


Trusted = TrustedKey | TrustedIdentity


def read_trusted_root(path: Path) -> dict[str, object]:
    """Read a `trusted_root.json`, the authorities and logs that a site trusts; raises `BadInput`.

    https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_trustroot.proto
    Without sigstore, which keyless signatures need, only its outline is checked.
    """
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadInput(f"{str(path)!a}: cannot be read ({error})", hint=_HINT) from error
    try:
        root = json_object(content, "the file", limit=_MAX_ROOT, most=None)
        if not str(root.get("mediaType")).startswith("application/vnd.dev.sigstore.trustedroot"):
            raise BadInput(f"{path}: not a trusted_root.json of Sigstore", hint=_HINT)
        if not root.get("certificateAuthorities"):
            raise BadInput(f"{path}: names no certificate authority", hint=_HINT)
        if not (root.get("tlogs") or root.get("timestampAuthorities")):
            raise BadInput(f"{path}: names neither a log nor a time-stamping authority", hint=_HINT)
        with contextlib.suppress(ImportError):
            from builder.trust.proof.certificates import trusted_root  # noqa: PLC0415 - an extra

            trusted_root(root)
    except Unusable as error:
        raise BadInput(f"{path}: cannot be read: {error}", hint=_HINT) from error
    return root


def verified(
    digest: str, attached: Iterable[ProofManifest], trusted: Sequence[Trusted], *, now: dt.datetime
) -> VerifiedProof:
    """Return the proof of an image, `sha256:…`, that trusted signers vouch for.

    `attached` are the manifests that refer to the image and those at its classic tags, with the
    blobs of `layers_of`. Manifests of other things are skipped.
    """
    verification = _Verification(digest=digest, trusted=trusted, now=now)
    for number, attachment in enumerate(attached):
        if number >= MAX_ATTACHMENTS:
            reason = f"more than {MAX_ATTACHMENTS} attachments; the rest was not read"
            verification.reject(Unusable(reason), digest)
            break
        verification.read(attachment)
    return VerifiedProof(
        signatures=tuple(verification.signatures),
        attestations=tuple(verification.attestations),
        rejected=tuple(verification.rejected),
    )


class _Verification:
    """The verification of one image's proof, manifest by manifest."""

    def __init__(self, *, digest: str, trusted: Sequence[Trusted], now: dt.datetime) -> None:
        self.signatures: list[VerifiedStatement] = []
        self.attestations: list[VerifiedStatement] = []
        self.rejected: list[Rejection] = []
        self._digest, self._now = digest, now
        self._keys = [signer for signer in trusted if isinstance(signer, TrustedKey)]
        self._identities = [signer for signer in trusted if isinstance(signer, TrustedIdentity)]
        self._certified_bundles: set[str] = set()
        self._claims = 0

    def reject(self, error: Unusable, source: str) -> None:
        self.rejected.append(Rejection(reason=str(error), source=source))

    def read(self, attachment: ProofManifest) -> None:
        """Verify the layers of one manifest; each invalid layer is rejected separately."""
        source = attachment.digest
        try:
            layers = self._layers(attachment.manifest)
        except Unusable as error:
            self.reject(error, source)
            layers = ()
        for layer in layers:
            try:
                self._read_layer(content_of(attachment, layer), layer, source)
            except Unusable as error:
                self.reject(error, source)

    def _layers(self, manifest: bytes) -> tuple[Descriptor, ...]:
        layers = layers_of(manifest)
        subject = subject_of(manifest) if layers else ""
        self._claims += len(layers)
        if self._claims > MAX_CLAIMS:
            raise Unusable(f"more than {MAX_CLAIMS} statements; the rest was not read")
        if subject not in {"", self._digest}:
            raise Unusable(f"the manifest refers to {subject}")
        return layers

    def _read_layer(self, content: bytes, layer: Descriptor, source: str) -> None:
        if layer.media_type == SIMPLE_SIGNING:
            self._read_simple_signature(content, layer, source)
            return
        is_bundle, signer = layer.media_type in BUNDLES, ""
        title = "the bundle" if is_bundle else "the envelope"
        value = json_object(content, title, limit=MAX_PAYLOAD)
        envelope = envelope_of(_enveloped(value) if is_bundle else value)
        material = part(value, "verificationMaterial") if is_bundle else None
        if part(material, "certificate") or part(material, "x509CertificateChain"):
            if layer.digest in self._certified_bundles:
                return  # verified before; this takes long
            self._certified_bundles.add(layer.digest)
            signer, keys = self._certified(value, envelope)
        else:
            data = envelope.signed
            keys = self._vouching(
                lambda key: any(key.verifies(one, data) for one in envelope.signatures)
            )
        statement = statement_of(envelope.payload, self._digest)
        is_signature = statement["predicateType"] == SIGN
        (self.signatures if is_signature else self.attestations).append(
            VerifiedStatement(
                statement=statement,
                payload=envelope.payload,
                keys=keys,
                source=source,
                layer=layer.digest,
                format=BUNDLED if is_bundle else CLASSIC,
                signer=signer,
            )
        )

    def _read_simple_signature(self, payload: bytes, layer: Descriptor, source: str) -> None:
        signature = base64_bytes(layer.annotations.get(SIGNATURE_NOTE), "the signature")
        keys = self._vouching(lambda key: key.verifies(signature, payload))
        claim = json_object(payload, "the payload", limit=MAX_PAYLOAD)
        if part(claim, "critical", "type") != CONTAINER_SIGNATURE:
            raise Unusable(f"the payload is not a {CONTAINER_SIGNATURE}")
        about = part(claim, "critical", "image", "docker-manifest-digest")
        if about != self._digest:
            raise Unusable(f"the signature is for {ascii(about)[:80]}")
        if not isinstance(part(claim, "critical", "identity", "docker-reference"), str):
            raise Unusable("the payload names no image")
        self.signatures.append(
            VerifiedStatement(
                statement=claim,
                payload=payload,
                keys=keys,
                source=source,
                layer=layer.digest,
                format=CLASSIC,
            )
        )

    def _vouching(self, signed: Callable[[PublicKey], bool]) -> tuple[str, ...]:
        """Return the names of the trusted keys that signed; raises `Unusable` if none did."""
        signers = [trusted for trusted in self._keys if signed(trusted.key)]
        if not signers:
            raise Unusable("not signed by a trusted key, or changed after signing")
        return self._still_trusted(signers)

    def _certified(
        self, bundle: Mapping[str, object], envelope: Envelope
    ) -> tuple[str, tuple[str, ...]]:
        """Return the signer and the names of trusted identities that match; raises `Unusable`."""
        if not self._identities:
            raise Unusable("signed by a certificate, but only keys are trusted")
        try:
            from builder.trust.proof.certificates import CertifiedBundle  # noqa: PLC0415 - an extra
        except ImportError as error:
            missing = "keyless signatures need the extra [keyless] or cosign"
            raise Unusable(f"signed by a certificate: {missing}") from error
        if len(envelope.signatures) != 1:
            raise Unusable("a bundle with a certificate must have one signature")
        certified = CertifiedBundle(bundle)
        name = f"{certified.subject[:_SHOWN]} ({certified.issuer[:_SHOWN]})"
        meant = [one for one in self._identities if one.is_of(certified.subject, certified.issuer)]
        if not meant:
            raise Unusable(f"signed by {name}, who is not trusted")
        signers, reasons = [], []
        for identity in meant:
            try:
                time = certified.verify(envelope, identity.trusted_root)
            except Unusable as error:
                reasons.append(str(error))
            else:
                if time <= self._now + _SKEW:
                    signers.append(identity)
                reasons.append(f"signed in the future, {time:%Y-%m-%d %H:%M} UTC")
        if not signers:
            raise Unusable("; ".join(dict.fromkeys(reasons)))
        return f"{certified.subject} ({certified.issuer})", self._still_trusted(signers)

    def _still_trusted(self, signers: Sequence[Trusted]) -> tuple[str, ...]:
        """Return the names of signers that are still trusted; raises `Unusable` if none is."""
        valid = [one for one in signers if one.until is None or self._now <= one.until]
        if not valid:
            ended = ", ".join(f"{one.name} until {one.until:%Y-%m-%d}" for one in signers)
            raise Unusable(f"the signer is no longer trusted: {ended}")
        return tuple(one.name for one in valid)


def _enveloped(bundle: Mapping[str, object]) -> dict[str, object]:
    """Return the DSSE envelope of a bundle; raises `Unusable`."""
    if bundle.get("mediaType") not in BUNDLES:
        raise Unusable("not a Sigstore bundle of a version from 0.1 to 0.3")
    envelope = bundle.get("dsseEnvelope")
    if not isinstance(envelope, dict):
        raise Unusable("the bundle has no DSSE envelope")
    return envelope
