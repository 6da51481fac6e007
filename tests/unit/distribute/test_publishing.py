"""The order in which releases are published, and the proof that is made of them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fake_registry import Fake, Fault, digest, fake_registry
from made_releases import make_images, make_project
from samples import private_file

from builder.cli import main
from builder.distribute.publish import proof
from builder.distribute.publish.proof import Prove, prove_with, unsigned
from builder.distribute.publish.publisher import Publisher, index_of
from builder.distribute.publish.releases import ReadyRelease, declared_releases, ready_releases
from builder.load.project import load_project
from builder.model import Selection
from builder.model.digests import Descriptor
from builder.model.errors import BadInput, Interrupted, Refused
from builder.registry import RegistryFailed, namespace
from builder.registry.manifests import CYCLONEDX, INDEX, MANIFEST, SIF, STATEMENT, TARBALL
from builder.system.process import Processes
from builder.system.threads import in_threads
from builder.trust.proof.attachments import ProofManifest

KEY = private_file("cosign")
TAG = "1.0-sample"


@pytest.fixture(scope="module", name="made")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = make_project(tmp_path_factory.mktemp("made") / "project", recipes=["tools", "app"])
    make_images(project, size=2000)
    return project


@pytest.fixture(name="fake")
def registry_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COSIGN_PASSWORD", "correct horse")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))
    with fake_registry() as fake:
        yield fake


def releases_of(project: Path) -> list[ReadyRelease]:
    declared = declared_releases(load_project(project), Selection())
    releases, reasons = ready_releases(declared, project / "out", project)
    assert reasons == []
    return releases


def publish(
    fake: Fake, releases: Sequence[ReadyRelease], prove: Prove = unsigned, jobs: int = 4
) -> None:
    to = namespace(f"{fake.host}/site", ())
    Publisher(target=to, prove=prove, jobs=jobs).send(releases)


def test_an_image_in_the_folder_of_another_is_not_published(made: Path, tmp_path: Path) -> None:
    project = Path(shutil.copytree(made, tmp_path / "project"))
    release = next(one for one in releases_of(project) if one.recipe == "tools")
    ours, theirs = sorted(release.images, key=lambda one: one.arch)
    ours.folder.rename(project / "other")
    shutil.copytree(theirs.folder, ours.folder)
    record = ours.folder / "manifest.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "outcome": "built"}))
    declared = declared_releases(load_project(project), Selection())
    _, reasons = ready_releases(declared, project / "out", project)
    begin = f"{release}: {ours.arch}: "
    assert [reason.removeprefix(begin) for reason in reasons] == [
        f"its folder contains {theirs.folder.name}",
        "its inputs changed after the build: build it again",
        f"its manifest is for another cell: {asdict(theirs.planned.cell)}",
        "it is not verified: built",
        "it is incomplete: its config is for amd64",
    ]


@pytest.mark.parametrize("listed", [True, False])
def test_tags_come_after_everything_else(listed: bool, made: Path, fake: Fake) -> None:
    fake.referrers = listed
    publish(fake, releases_of(made))
    written = [request for request, _ in fake.asked if request.startswith(("PUT", "POST"))]
    own = [n for n, one in enumerate(written) if re.search(rf"manifests/({TAG}|latest)$", one)]
    assert own == list(range(len(written) - 4, len(written)))
    digests = [n for n, one in enumerate(written) if re.search("manifests/sha256:", one)]
    blobs = [n for n, one in enumerate(written) if "uploads" in one]
    assert min(digests) > min(blobs)
    parsed = json.loads(fake.manifests["site/app", TAG][0])
    image = parsed["manifests"][0]["digest"]
    to = namespace(f"{fake.host}/site", ())
    kinds = [one.artifact_type for one in to("app").referrers(image)]
    assert sorted(kinds) == sorted([SIF, TARBALL, CYCLONEDX, STATEMENT, STATEMENT, STATEMENT])


def test_a_tag_loses_no_architecture(
    made: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(fake, releases_of(made))
    before = dict(fake.manifests)
    words = ["publish", "--project", str(made), "--to", f"{fake.host}/site", "--recipe", "tools"]
    assert main([*words, "--arch", "x86_64"]) == 5
    assert capsys.readouterr().err.replace(fake.host, "HOST").splitlines() == [
        "build-images: 1 release selected; nothing was published:",
        f"HOST/site/tools:{TAG}: the registry also has it for ppc64le",
        "HOST/site/tools:latest: the registry also has it for ppc64le",
        "  hint: publish these architectures, too, or remove the tag from the registry",
    ]
    assert fake.manifests == before


def test_an_index_has_the_annotations_that_all_its_images_have(made: Path) -> None:
    release = releases_of(made)[0]
    assert "annotations" not in json.loads(index_of(release))
    notes = {"org.opencontainers.image.title": "tools", "build-images.host.kernel": "3.2.0"}
    images = [
        replace(
            one,
            manifest=json.dumps(
                {
                    **json.loads(one.manifest),
                    "annotations": {**notes, "org.opencontainers.image.base.digest": one.arch},
                }
            ).encode(),
        )
        for one in release.images
    ]
    index = json.loads(index_of(replace(release, images=tuple(images))))
    assert index["annotations"] == {"org.opencontainers.image.title": "tools"}


def test_a_registry_that_forgets_what_was_attached_gets_no_tag(made: Path, fake: Fake) -> None:
    fake.referrers = True
    forgetful = b'{"schemaVersion": 2, "manifests": []}'
    kind = {"Content-Type": INDEX}
    fake.faults = [
        Fault(pattern="GET .*/referrers/", status=200, body=forgetful, headers=kind, times=999)
    ]
    with pytest.raises(Refused, match="does not list what was attached: sha256:"):
        publish(fake, releases_of(made))
    assert fake.tags("site/app") == set()


def test_the_same_key_makes_the_same_proof(made: Path, fake: Fake) -> None:
    releases = releases_of(made)
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    first = dict(fake.manifests)
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    assert fake.manifests == first
    for one in releases[0].images:
        name = one.image.digest.replace(":", "-")
        assert {f"{name}.sig", f"{name}.att"} <= fake.tags("site/tools")
    assert fake.requests("PUT .*\\.att")


def planned_and_sent(fake: Fake, releases: Sequence[ReadyRelease]) -> dict[str, int]:
    """Send what a look, which changes nothing, says is to be sent; blobs by the way they came."""
    sender = Publisher(target=namespace(f"{fake.host}/site", ()), prove=unsigned, jobs=4)
    planned = sender.missing(releases).blobs
    assert not fake.requests("^(PUT|POST|PATCH)")
    fake.asked.clear()
    sent = sender.send(releases)[1].blobs
    assert planned == {"missing" if way == "sent" else way: sent[way] for way in sent}
    return sent


def test_what_several_images_share_is_sent_once_and_mounted_unasked(made: Path, fake: Fake) -> None:
    traffic = planned_and_sent(fake, releases_of(made))
    mounts = [re.search("mount=sha256%3A(\\w+)", one) for one, _ in fake.asked]
    shared = {found[1] for found in mounts if found}
    assert traffic == {"sent": 21, "mounted": 5}
    for name in shared:
        assert len(fake.requests(f"HEAD .*{name}")) == 1
        assert len(fake.requests(f"PUT .*digest=sha256:{name}")) == 1


def test_blobs_of_a_parent_are_mounted_from_its_repository(made: Path, fake: Fake) -> None:
    releases = releases_of(made)
    publish(fake, releases)
    of_parent = {
        digest
        for (place, digest), data in fake.blobs.items()
        if place == "site/tools" and len(data) > len("{}")
    }
    for held in (fake.blobs, fake.manifests):
        for key in [key for key in held if key[0] == "site/app"]:
            del held[key]
    fake.asked.clear()
    traffic = planned_and_sent(fake, [one for one in releases if one.recipe == "app"])
    shared = of_parent & {digest for place, digest in fake.blobs if place == "site/app"}
    assert traffic == {"mounted": len(shared), "sent": 11}
    assert not [digest for digest in shared if fake.requests(f"PUT .*digest={digest}")]


def test_where_nothing_is_mounted_only_what_is_missing_is_sent(made: Path, fake: Fake) -> None:
    fake.mounts = False
    publish(fake, releases_of(made))
    held = [digest for _, digest in fake.blobs]
    [shared, *_] = [one for one in held if held.count(one) > 1]
    [first, *_] = [place for place, digest in fake.blobs if digest == shared]
    del fake.blobs[first, shared]
    fake.asked.clear()
    publish(fake, releases_of(made))
    assert len(fake.requests(f"PUT .*digest={shared}")) == 1


def test_the_first_proof_of_an_image_is_not_asked_for(made: Path, fake: Fake) -> None:
    releases = releases_of(made)
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    bundles = {digest for (_, digest), data in fake.blobs.items() if b"dsseEnvelope" in data}
    assert bundles
    assert not any(fake.requests(f"HEAD .*{one}") for one in bundles)
    fake.asked.clear()
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    assert not fake.requests("PUT .*uploads")


def test_what_is_at_the_tags_of_proof_already_stays(made: Path, fake: Fake) -> None:
    releases = releases_of(made)
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    tag = f"{releases[0].images[0].image.digest.replace(':', '-')}.sig"
    content, kind = fake.manifests["site/tools", tag]
    parsed = json.loads(content)
    parsed["layers"][0]["annotations"]["dev.cosignproject.cosign/signature"] = "another's"
    fake.manifests["site/tools", tag] = (json.dumps(parsed).encode(), kind)
    publish(fake, releases, prove_with(str(KEY), releases, Processes()))
    layers = json.loads(fake.manifests["site/tools", tag][0])["layers"]
    assert len(layers) == 2


def of_another(name: str) -> dict[str, object]:
    """A layer of somebody else's proof."""
    notes = {"dev.cosignproject.cosign/signature": base64.b64encode(name.encode()).decode()}
    kind = "application/vnd.dev.cosign.simplesigning.v1+json"
    return {"mediaType": kind, "digest": digest(name.encode()), "size": 1, "annotations": notes}


def classic(*layers: dict[str, object]) -> tuple[bytes, str]:
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode(), MANIFEST


def layers_at(fake: Fake, place: tuple[str, str]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(fake.manifests[place][0])["layers"]
    return found


@pytest.mark.parametrize(
    ("when", "after"),
    [
        (r"(PUT|HEAD) /v2/site/tools/(blobs|manifests)/.*", "GET"),  # between reading and writing
        (
            r"GET /v2/site/tools/manifests/sha256-\w+\.\w+",
            "PUT",
        ),  # when we look whether ours is there
        (r"PUT /v2/site/app/manifests/sha256:\w+", "PUT"),  # when all of the image is attached
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_proof_of_two_machines_at_once_is_merged(
    when: str, after: str, listed: bool, made: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client writes its own in the place of ours, at some moments, as if it was there
    alone; in the end both are there."""
    monkeypatch.setattr("builder.registry.failures._FIRST_S", 0.01)
    fake.referrers = listed
    releases = releases_of(made)
    places = {
        ("site/tools", f"{one.image.digest.replace(':', '-')}{end}")
        for one in releases[0].images
        for end in (".sig", ".att")
    }
    others = {place: of_another(place[1]) for place in places}
    left = dict.fromkeys(places, 3)

    def write_over(request: str) -> None:
        with fake.lock:
            for place in places if re.fullmatch(when, request) else ():
                if left[place] and fake.requests(f"{after} .*{place[1]}"):
                    left[place] -= 1
                    fake.manifests[place] = classic(others[place])
                    if not listed:
                        fake.manifests.pop((place[0], place[1].partition(".")[0]), None)

    fake.before = write_over
    # One after the other, or the last of these writes may come between our reading and writing,
    # where the other client would look again, and merge.
    jobs = 1 if "/app/" in when else 4
    publish(fake, releases, prove_with(str(KEY), releases, Processes()), jobs)
    assert {TAG, "latest"} <= fake.tags("site/tools")
    assert all(number < 3 for number in left.values())
    to = namespace(f"{fake.host}/site", ())
    for place in places:
        layers = layers_at(fake, place)
        assert others[place] in layers
        assert len(layers) == (2 if place[1].endswith(".sig") else 6)
    for one in releases[0].images:
        assert len(to("tools").referrers(one.image.digest)) == 8


def test_proof_that_another_writes_over_again_and_again_sets_no_tag(
    made: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.registry.failures._FIRST_S", 0.01)
    releases = releases_of(made)
    prove = prove_with(str(KEY), releases, Processes())

    def write_over(request: str) -> None:
        if found := re.fullmatch(r"GET /v2/(.+)/manifests/(sha256-\w+\.sig)", request):
            there = (found[1], found[2])
            if there in fake.manifests:
                fake.manifests[there] = classic(of_another("x"))

    fake.before = write_over
    with pytest.raises(RegistryFailed, match="another client overwrote this proof"):
        publish(fake, releases, prove)
    assert not {TAG, "latest"} & fake.tags("site/app")


def test_without_the_keys_password_nothing_is_sent(
    made: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COSIGN_PASSWORD")
    with pytest.raises(BadInput, match="COSIGN_PASSWORD is not set"):
        prove_with(str(KEY), releases_of(made), Processes())
    assert fake.asked == []


@pytest.mark.usefixtures("fake")
def test_evidence_that_changed_meanwhile_is_not_signed(made: Path) -> None:
    releases = releases_of(made)
    file = releases[0].images[0].folder / "evidence" / "oci.json"
    content = file.read_bytes()
    try:
        file.write_bytes(content + b"\n")
        with pytest.raises(BadInput, match=r"oci\.json: its digest differs from manifest\.json"):
            prove_with(str(KEY), releases, Processes())
    finally:
        file.write_bytes(content)


def test_without_a_key_cosign_signs_for_the_job(
    made: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def keyless(
        image: Descriptor, statements: Sequence[bytes], *_: object, **__: object
    ) -> tuple[ProofManifest, ...]:
        asked.append((image.digest, len(statements)))
        return ()

    monkeypatch.setattr(proof, "keyless_attestations", keyless)
    releases = releases_of(made)
    publish(fake, releases, prove_with("keyless", releases, Processes()))
    images = {one.image.digest for release in releases for one in release.images}
    assert {digest for digest, statements in asked if statements == 6} == images
    assert len(asked) == 6, "the indexes are signed, too"


def test_the_first_failure_ends_the_rest() -> None:
    stopped = threading.Event()
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise RegistryFailed("the first")
        if stopped.wait(5):
            raise Interrupted("a later one")
        return number

    start = time.monotonic()
    with pytest.raises(RegistryFailed, match="the first"):
        in_threads(work, range(50), jobs=3, stop=stopped.set)
    assert time.monotonic() - start < 4
    assert len(begun) < 50
    assert in_threads(str, [3, 1, 2], jobs=2, stop=stopped.set) == ["3", "1", "2"]
