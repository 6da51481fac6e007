"""Proof: signatures and statements about images, in cosign's two formats.

Made with local keys, and checked, without the cosign program. `making` gives manifests to be pushed
beside an image, `verifying` says what trusted keys vouch for among those that were found there.
"""

from builder.trust.proof.attachments import (
    Attachment,
    Attestation,
    Descriptor,
    Rejection,
    Signature,
    Unusable,
    Verdict,
)
from builder.trust.proof.attestations import (
    attestation_tag,
    attestations,
    guesses,
    proofs,
    signature_tag,
)
from builder.trust.proof.cosign import keyless_attestations, signer_of
from builder.trust.proof.existing import ExistingProof
from builder.trust.proof.keys import PrivateKey, PublicKey, Signer, private_key, public_key
from builder.trust.proof.manifests import embedded, layers_of, statements_of
from builder.trust.proof.statements import SIGN, builder_of, provenance
from builder.trust.proof.verification import (
    Trusted,
    TrustedIdentity,
    TrustedKey,
    read_trusted_root,
    verified,
)

__all__ = [
    "SIGN",
    "Attachment",
    "Attestation",
    "Descriptor",
    "ExistingProof",
    "PrivateKey",
    "PublicKey",
    "Rejection",
    "Signature",
    "Signer",
    "Trusted",
    "TrustedIdentity",
    "TrustedKey",
    "Unusable",
    "Verdict",
    "attestation_tag",
    "attestations",
    "builder_of",
    "embedded",
    "guesses",
    "keyless_attestations",
    "layers_of",
    "private_key",
    "proofs",
    "provenance",
    "public_key",
    "read_trusted_root",
    "signature_tag",
    "signer_of",
    "statements_of",
    "verified",
]
