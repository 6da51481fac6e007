"""How much of what others write is read: named once more, so that no bound changes unseen."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from builder.compile.lint import linters, run
from builder.distribute.pull import proof, receipts, remote_image
from builder.distribute.pull.streams import LIMITS
from builder.model import exact_json
from builder.model.errors import Refused
from builder.model.package_indices import MOST_BYTES
from builder.reports.catalog import entries
from builder.trust.policy.records import PULLED
from builder.trust.proof import attachments, attestations, certificates, keys, verification
from builder.verify.rehearse import imports, repositories, servers

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_what_is_read_of_proof() -> None:
    """cosign's own limit is 128 MiB of one payload, a registry's at least 4 MiB of a manifest."""
    assert attachments.MAX_MANIFEST == 4 * MIB
    assert attachments.MAX_PAYLOAD == 32 * MIB
    assert (attachments.MAX_LAYERS, attachments.MAX_ATTACHMENTS, attachments.MAX_CLAIMS) == (
        200,
        1000,
        2000,
    )
    assert (proof._BYTES, proof._LARGEST, proof._MOST) == (128 * MIB, 32 * MIB, 1000)
    assert (keys._MAX_MEMORY, keys._MAX_ROUNDS) == (512 * MIB, 16)
    assert (attachments._MOST_VALUES, attachments.MOST_VALUES) == (20_000, 10_000)
    assert (keys._MAX_KEY, verification._MAX_ROOT) == (64 * KIB, 4 * MIB)
    assert (certificates.MAX_CERTIFICATE, certificates._MAX_STAMP) == (16 * KIB, 16 * KIB)
    assert (certificates._MAX_ENTRIES, certificates._MAX_STAMPS) == (8, 4)
    assert attestations._SHORT == 64 * KIB  # bytes of a bundle within its manifest


def test_what_is_read_of_an_image() -> None:
    assert asdict(LIMITS) == {
        "entries": 2_000_000,
        "plain": 1024 * GIB,
        "ratio": 200,
        "small": GIB,
        "header": MIB,
        "path": 4096,
        "name": 255,
        "depth": 200,
        "layers": 1000,
    }
    assert (remote_image._CONFIG_LIMIT, remote_image._MOST) == (4 * MIB, 1000)
    assert (receipts._MOST_OF_LAST, receipts._MOST_OF_RECEIPT) == (64 * KIB, 64 * MIB)
    LIMITS.check_entries(2_000_000)
    with pytest.raises(Refused, match="more than 2,000,000 entries"):
        LIMITS.check_entries(2_000_001)


def test_what_is_read_of_mirrors_and_indexes() -> None:
    """Ubuntu's universe has 65 MB unpacked, a channel of conda some 250 MB."""
    assert (servers.LARGEST, imports.LARGEST_WHEEL) == (512 * MIB, 64 * MIB)
    assert (repositories.LARGEST, repositories._LARGEST_DICTIONARY) == (GIB, 256 * MIB)
    assert (repositories._DEEPEST, repositories._LONGEST) == (16, MIB)


def test_what_is_read_of_a_release_file() -> None:
    assert MOST_BYTES == 10 * MIB


def test_what_is_read_of_an_images_folder_and_kept_of_lint() -> None:
    assert (exact_json.MOST_VALUES, entries._MOST) == (200_000, 64 * MIB)
    assert (linters.BATCH, linters.TIMEOUT_S, run.MOST) == (64, 300, 20_000)


def test_whose_checks_speak_for_what_is_pulled() -> None:
    """A folder is started by ch-run, as what comes out of a tarball is."""
    assert PULLED == {
        "oci": ("oci",),
        "sif": ("sif",),
        "charliecloud": ("charliecloud",),
        "directory": ("charliecloud", "oci"),
    }


def test_media_types_are_those_of_cosign() -> None:
    of_bundles = "application/vnd.dev.sigstore.bundle"
    assert (
        attachments.BUNDLE,
        *(f"{of_bundles}+json;version=0.{number}" for number in (3, 2, 1)),
    ) == attachments.BUNDLES
    assert f"{of_bundles}.v0.3+json" == attachments.BUNDLE
    assert attachments.DSSE == "application/vnd.dsse.envelope.v1+json"
    assert attachments.SIMPLE_SIGNING == "application/vnd.dev.cosign.simplesigning.v1+json"
    assert attachments.MANIFEST == "application/vnd.oci.image.manifest.v1+json"
    assert attachments.CONFIG == "application/vnd.oci.image.config.v1+json"
    assert attestations.EMPTY == "application/vnd.oci.empty.v1+json"
    assert attachments.SIGNATURE_NOTE == "dev.cosignproject.cosign/signature"
    assert attachments.CONTAINER_SIGNATURE == "cosign container image signature"
