"""How much of what others write is read: named once more, so that no bound changes unseen."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from builder.artifacts import flatten, layers, sif, tars
from builder.artifacts import manifests as image_manifests
from builder.artifacts.sbom import packages
from builder.compile import lint
from builder.compile.lint import linters
from builder.distribute.pull import folders, images, members, proof, receipts, remote_image
from builder.distribute.pull.streams import LIMITS
from builder.model import digests, exact_json
from builder.model.errors import Refused
from builder.model.package_indices import MOST_BYTES
from builder.registry import (
    blobs,
    connections,
    credentials,
    failures,
    manifests,
    repository,
    transport,
)
from builder.reports.catalog import entries
from builder.sources import debian, download, package_proxy, suites, upstream
from builder.trust.policy import records, rules
from builder.trust.policy.records import PULLED
from builder.trust.proof import (
    attachments,
    attestations,
    certificates,
    cosign,
    keys,
    statements,
    verification,
)
from builder.verify import (
    checks,
    container_output,
    formats,
    image_contract,
    launched,
    preparation,
    targets,
)
from builder.verify.cluster import connection, executor, run, task
from builder.verify.measure import programs, rounds, sampling
from builder.verify.ranks import outcomes
from builder.verify.rehearse import imports, repositories, resolution, servers, workspace

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
    assert (statements._MAX_SIGNATURES, cosign._TIMEOUT_S) == (16, 300)
    assert {"N": 64 * KIB, "r": 8, "p": 1} == keys._SCRYPT
    assert records._LONGEST == 1000  # characters of a reason of a rule
    assert rules.SKEW.seconds == verification._SKEW.seconds == 5 * 60


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
    assert images._LOOK_S == 30 * 60
    assert (members._DIGITS, folders._LATEST) == (20, 2 * GIB - 1)
    LIMITS.check_entries(2_000_000)
    with pytest.raises(Refused, match="more than 2,000,000 entries"):
        LIMITS.check_entries(2_000_001)


def test_what_is_read_and_kept_of_checks_and_how_long_they_are_waited_for() -> None:
    assert (container_output.LONGEST, container_output._OUTPUT_LINES) == (500, 40)
    assert (container_output._OUTPUT_LETTERS, container_output._DATA_LETTERS) == (16_000, 64_000)
    assert (checks.SKIP_STATUS, checks._SHOWN_LINES, checks._SIGNALLED) == (77, 12, 128)
    assert (checks._TIMEOUT_S, targets._TIMEOUT_S, preparation._TIMEOUT_S) == (120, 900, 60)
    assert (launched._SLACK_S, launched._KILL_AFTER_S) == (15, 5)
    assert (outcomes.GRACE_S, outcomes._TIMED_OUT) == (10, 124)
    assert (rounds._TIMEOUT_S, rounds._LOOK_S, image_contract._LARGEST) == (900, 60, MIB)
    assert (sampling._INTERVAL_S, sampling._BEGIN_S) == (0.5, 30)
    assert (sampling._SILENCE_S, sampling._END_S) == (10, 3)
    assert (workspace._EDIT_TIMEOUT_S, workspace._GIT_TIMEOUT_S) == (60, 300)
    assert (resolution._TIMEOUT_S, servers._READ_TIMEOUT_S) == (600, 120)
    assert servers._ASK_TIMEOUT_S == (5, 20)


def test_how_much_a_measurement_does() -> None:
    """The order of HPL's matrix; MiB of an array; bytes; repetitions; MiB of a file; seconds."""
    assert [*asdict(programs.Sizes()).values()] == [2048, 256, 4 * MIB, 1000, 128, 2]
    assert [*asdict(programs.EMULATED).values()] == [192, 32, MIB, 100, 64, 2]


def test_how_long_orders_are_waited_for() -> None:
    assert (task._LOG, task._ENDING_S, executor._ENDING_S) == (64 * KIB, 8, 10)
    assert (task._LIMIT_S, task._FRESH_S) == (24 * 60 * 60, 600)
    assert (connection._ANSWER_S, connection._AT_ONCE, formats._AT_ONCE) == (20, 8, 2)
    assert (run._SUBMIT_S, run._LONELY_S) == (60, 60)


def test_what_is_read_of_mirrors_and_indexes() -> None:
    """Ubuntu's universe has 65 MB unpacked, a channel of conda some 250 MB."""
    assert (servers.LARGEST, imports.LARGEST_WHEEL) == (512 * MIB, 64 * MIB)
    assert (repositories.LARGEST, repositories._LARGEST_DICTIONARY) == (GIB, 256 * MIB)
    assert (repositories._DEEPEST, repositories._LONGEST) == (16, MIB)


def test_what_is_read_of_a_release_file() -> None:
    assert MOST_BYTES == 10 * MIB


def test_what_is_read_of_an_images_folder_and_kept_of_lint() -> None:
    assert (exact_json.MOST_VALUES, entries._MOST) == (200_000, 64 * MIB)
    assert (linters.BATCH, linters.TIMEOUT_S, lint.MOST) == (64, 300, 20_000)


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


def test_what_is_read_of_registries_and_how_long_it_is_waited_for() -> None:
    assert (manifests.LARGEST_MANIFEST, connections.SMALL_BODY.size) == (4 * MIB, 4 * MIB)
    assert (connections._LARGEST_HEAD, connections._FRAMING) == (MIB, 16 * MIB)
    assert (
        *(KIB, 16 * KIB),
        300,
    ) == (connections.LEAST_RATE, connections.MEAN_RATE, connections.ANY_S)
    assert (connections._POLL_S, connections._RATED_S, connections._REPORT_S) == (0.2, 60, 5)
    assert (connections._MOST_IDLE, transport.TIMEOUT_S, transport._REDIRECTS) == (16, (10, 60), 5)
    assert (transport._SMALL, transport._LARGEST_TOKEN) == (64 * KIB, MIB)
    assert (repository._MOST_PAGES, repository._MOST_REFERRERS) == (1000, 1000)
    assert digests.LARGEST == MIB * GIB
    assert (blobs._READ, blobs._PART, blobs._PIECE) == (64 * KIB, 32 * MIB, MIB)
    assert (failures._LONGEST_ERROR, failures._LONGEST_CODE) == (64 * KIB, 80)
    assert (failures.ATTEMPTS, failures.LEAST_GAIN, failures._MOST) == (5, 64 * KIB, 40)
    assert (failures._FIRST_S, failures._LONGEST_S) == (0.5, 120)
    assert credentials._HELPER_TIMEOUT_S == 30


def test_what_is_read_of_mirrors_and_how_long_it_is_waited_for() -> None:
    assert (download.ATTEMPTS, download.TIMEOUT_S, download._REDIRECTS) == (4, (10, 60), 10)
    assert (download._LONGEST_WAIT_S, download._CHUNK) == (30, 128 * KIB)
    assert (debian._RELEASE_LIMIT, debian._GPGV_TIMEOUT_S) == (16 * MIB, 60)
    assert (package_proxy._LONG_S, package_proxy._CHUNK) == (24 * 60 * 60, 64 * KIB)
    assert (
        *(60, 10),
        64 * MIB,
    ) == (upstream._TIMEOUT_S, upstream._MOST_REDIRECTS, upstream._MOST_PAGE)
    assert (suites._COMPARED, suites._TIMEOUT_S, suites.MOST_BEHIND.days) == (MIB, 10, 14)


def test_how_files_are_packed_and_read() -> None:
    """What decides the bytes of a gzip file stays: the same image has the same digest for ever."""
    assert (tars.APART, tars.PART, tars.LEVEL, tars._WAITING) == (64 * KIB, MIB, 5, 4)
    assert (tars._HEADER.hex(), tars._LAST_BLOCK.hex()) == ("1f8b08000000000000ff", "0300")
    assert (layers._DAY_S, image_manifests._LATEST_EPOCH) == (24 * 60 * 60, 1 << 32)
    assert (flatten._LARGEST, flatten._CHUNK) == (MIB, 64 * KIB)
    assert (sif._MOST, sif._LARGEST) == (10_000, 4 * MIB)
    assert (packages._MOST_ENTRIES, packages._LEAST_ITEM) == (64 * KIB, 17)
    assert (packages._LEAST_PAGE, packages._LARGEST_PAGE) == (512, 64 * KIB)
    assert (packages._LONGEST, packages._SHORT) == (1000, 60)
    assert (
        *("security.selinux", "trusted.overlay.", "user.overlay.", "user.fuseoverlayfs."),
        *("user.containers.", "user.rootlesscontainers"),
    ) == tars._OF_HOST


def test_media_types_are_those_that_the_documentation_names() -> None:
    oci, own = "application/vnd.oci", "application/vnd.build-images"
    docker = "application/vnd.docker.distribution.manifest"
    assert (
        *(f"{oci}.image.manifest.v1+json", f"{oci}.image.index.v1+json"),
        f"{oci}.empty.v1+json",
    ) == (manifests.MANIFEST, manifests.INDEX, manifests.EMPTY)
    assert (
        "application/vnd.sylabs.sif.layer.v1.sif",
        f"{own}.charliecloud.v1.tar+gzip",
    ) == (manifests.SIF, manifests.TARBALL)
    assert manifests.ARTIFACT_TYPES == {"sif": manifests.SIF, "charliecloud": manifests.TARBALL}
    assert manifests.STATEMENT == "application/vnd.in-toto+json"
    assert manifests.CYCLONEDX == "application/vnd.cyclonedx+json"
    names = ("PROJECT", "BASE", "REGISTRY_BASE", "SOURCES", "NATIVE", "PACKAGES")
    assert {name: getattr(manifests, name) for name in names} == {
        name: f"{own}.{name.lower().replace('_', '-')}.v1" for name in names
    }
    assert (manifests.INDEX, f"{docker}.list.v2+json") == repository.INDEXES
    assert (manifests.MANIFEST, f"{docker}.v2+json") == repository.MANIFESTS
    assert manifests.TITLE == "org.opencontainers.image.title"
