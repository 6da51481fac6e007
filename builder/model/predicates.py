"""What statements about images are called: in-toto's, of the kinds that this project makes."""

from __future__ import annotations

STATEMENT = "https://in-toto.io/Statement/v1"  # github.com/in-toto/attestation, spec/v1
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SLSA = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"

# Annotations by which a manifest, or a layer of one, says of which predicate type it is: of what
# nobody signed (ours), of a Sigstore bundle, of a layer in cosign's classic format.
UNSIGNED_NOTE = "in-toto.io/predicate-type"
BUNDLE_NOTE = "dev.sigstore.bundle.predicateType"
CLASSIC_NOTE = "predicateType"
