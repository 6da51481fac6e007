"""Proof that does not come through: no tag, and what was pushed is not taken for proven."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty_proxy import Fault, proxy_before
from harness import Ended, build_images
from made_releases import correct_evidence
from publishing import (
    PROVENANCE,
    RECIPES,
    TEST_RESULT,
    Pair,
    once,
    own_tags,
    policy_of,
    published,
    repository,
    signed,
    unproven,
)
from real_registry import real_registry

from builder.model.predicates import BUNDLE_NOTE
from builder.trust.proof.statements import SIGN

pytestmark = pytest.mark.engines
CLASSIC = r"/manifests/sha256-.*\.(sig|att)$"
RULES = ("signature", "evidence", "provenance", "sbom")
# The upload that fails for good, and which rules refuse then what is there. Cosign's classic tags
# are written first: of what fails later, there is that copy of the proof.
TAGS = {"the signature": (r"\.sig$", RULES), "the attestations": (r"\.att$", RULES[1:])}
BUNDLES = {"signature": SIGN, "evidence": TEST_RESULT, "provenance": PROVENANCE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What is published: an image of it, and the manifests of its bundles by their kind."""

    project: Path
    pair: Pair
    policy: Path
    image: str
    bundles: dict[str, list[str]]


@pytest.fixture(scope="module", name="it")
def what_is_published(
    made: Path, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    """Published once without a fault: the same key makes the same bundles elsewhere."""
    folder = tmp_path_factory.mktemp("published")
    project = Path(shutil.copytree(made, folder / "project"))
    correct_evidence(project)
    env = {"BUILD_IMAGES_HOME": str(folder / "home")}
    with real_registry(folder / "registry", in_memory=True) as registry:
        done = signed(project, registry.host, pair, env=env)
        assert done.status == 0, done.stderr
        image = published(project, registry, "app", env=env)["x86_64"]["oci"]
        bundles: dict[str, list[str]] = {}
        for one in repository(registry.host, "app").referrers(image):
            bundles.setdefault(one.annotations.get(BUNDLE_NOTE, ""), []).append(one.digest)
    return Published(
        project=project, pair=pair, policy=policy_of(pair), image=image, bundles=bundles
    )


@pytest.fixture(scope="module", name="all_of_them")
def all_at_once(
    it: Published, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """All are looked at at once: attempts are seconds apart."""
    with ThreadPoolExecutor(len(TAGS) + len(BUNDLES)) as pool:
        work = {**dict.fromkeys(TAGS, without_a_tag), **dict.fromkeys(BUNDLES, without_a_bundle)}
        yield {
            name: pool.submit(one, name, it, tmp_path_factory.mktemp("fault"))
            for name, one in work.items()
        }


@pytest.mark.parametrize("name", TAGS)
def test_what_was_pushed_without_proof_is_refused(
    name: str, all_of_them: dict[str, Future[None]]
) -> None:
    all_of_them[name].result()


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_that_does_not_come_through_sets_no_tag(
    name: str, all_of_them: dict[str, Future[None]]
) -> None:
    all_of_them[name].result()


def without_a_tag(name: str, it: Published, folder: Path) -> None:
    path, rules = TAGS[name]
    with real_registry(folder / "registry", in_memory=True) as registry:
        publish_but(f"PUT .*/site/app/manifests/.*{path}", it, registry.host, folder)
        done = pull(registry.host, it, folder)
        assert_refused(done, folder, rules)
        if "signature" not in rules:
            assert "✗ refused    signature" not in done.stderr


def without_a_bundle(name: str, it: Published, folder: Path) -> None:
    """The classic copy of the proof is there before; whoever drops that has none at all.

    A mirror does that if it copies what refers to an image, and no tags of cosign's.
    """
    failing = "|".join(it.bundles[BUNDLES[name]])
    with real_registry(folder / "registry", in_memory=True) as registry:
        publish_but(f"PUT .*/site/app/manifests/({failing})$", it, registry.host, folder)
        kept = pull(registry.host, it, folder, "--dry-run")
        assert kept.status == 0, kept.stderr
        with proxy_before(registry.host) as mirror:
            mirror.faults.append(Fault(path=CLASSIC, status=404))
            assert_refused(pull(mirror.host, it, folder), folder, RULES)
        again = signed(it.project, registry.host, it.pair, env=home(folder))
        assert again.status == 0, again.stderr
        assert unproven(registry.host, key=it.pair.key) == []
        with proxy_before(registry.host) as mirror:
            mirror.faults.append(Fault(path=CLASSIC, status=404))
            done = pull(mirror.host, it, folder)
            assert done.status == 0, done.stderr


def publish_but(pattern: str, it: Published, host: str, folder: Path) -> None:
    """Publish while some uploads fail for good: the image is there, and no tag."""
    with once(host, pattern, Fault(status=500), times=10_000) as proxy:
        done = signed(it.project, proxy.host, it.pair, env=home(folder))
    assert done.status == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert repository(host, "app").resolve(it.image).digest == it.image
    for recipe in RECIPES:
        assert own_tags(repository(host, recipe)) == set()


def pull(host: str, it: Published, folder: Path, *more: str) -> Ended:
    words: list[str | Path] = ["pull", f"{host}/site/app@{it.image}", "--arch", "x86_64"]
    words += ["--format", "oci", "--policy", it.policy, "--output", folder / "out"]
    return build_images(*words, *more, env=home(folder))


def assert_refused(done: Ended, folder: Path, rules: tuple[str, ...]) -> None:
    assert done.status == 5, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for rule in rules:
        assert f"✗ refused    {rule}" in done.stderr
    assert [one.name for one in folder.iterdir() if "out" in one.name] == []


def home(folder: Path) -> dict[str, str]:
    return {"BUILD_IMAGES_HOME": str(folder / "home")}
