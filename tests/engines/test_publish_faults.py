"""Publishing while things go wrong: no tag is ever set before what is under it is proven."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from faulty_proxy import Fault
from harness import passed, sample
from publishing import (
    TAG,
    Pair,
    assert_no_tags,
    once,
    own_tags,
    publish,
    repository,
    signed,
    unproven,
)
from real_registry import RealRegistry, real_registry

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


def test_two_publishes_at_once(made: Path, registry: RealRegistry, pair: Pair) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(signed, made, registry.host, pair) for _ in range(2)]
    for future in both:
        passed(future.result())
    assert unproven(registry.host, key=pair.key) == []
    assert own_tags(repository(registry.host, "app")) == {TAG, "latest"}


LIST = ".*/manifests/sha256-[0-9a-f]+$"  # of what refers to an image: this registry keeps none
FAULTS = {
    "reset in mid-blob": ("PUT .*/uploads/", Fault(sent=1000)),
    "reset after the upload": ("PUT .*/uploads/", Fault(lost=True)),
    "429": ("HEAD .*/blobs/", Fault(status=429, headers={"Retry-After": "0"})),
    "500 for a blob": ("POST .*/uploads/", Fault(status=500)),
    "502 for a manifest": ("PUT .*/manifests/sha256", Fault(status=502)),
    "a manifest's answer lost": ("PUT .*/manifests/", Fault(lost=True)),
    "a tag's answer lost": (f"PUT .*/manifests/{TAG}", Fault(lost=True)),
    "an attestation's answer lost": (r"PUT .*\.att$", Fault(lost=True)),
    "503 for the list of bundles": (f"PUT {LIST}", Fault(status=503)),
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", sample(FAULTS, 4))
def test_what_passes_by_itself_is_survived(
    name: str, made: Path, registry: RealRegistry, pair: Pair
) -> None:
    pattern, fault = FAULTS[name]
    with once(registry.host, pattern, fault) as proxy:
        passed(signed(made, proxy.host, pair))
    assert unproven(registry.host, key=pair.key) == []
    assert own_tags(repository(registry.host, "tools")) == {TAG, "latest"}


FOR_GOOD = {
    "403 for an upload": ("POST .*/uploads/", Fault(status=403), 4),
    "401 in the middle": ("PUT .*/manifests/", Fault(status=401), 4),
    "500 for the list of bundles": (f"PUT {LIST}", Fault(status=500), 1),
    "no list of referrers": (f"GET {LIST}", Fault(status=500), 1),
    "another list of referrers": (f"GET {LIST}", Fault(status=404), 1),
}


SOME_FOR_GOOD = sample(FOR_GOOD, 3)


@pytest.fixture(scope="module", name="refusals")
def all_refusals(
    made: Path, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """What each of them is to lead to, looked at all at once: attempts are seconds apart."""
    folders = {name: tmp_path_factory.mktemp("refused") for name in SOME_FOR_GOOD}
    with ThreadPoolExecutor(len(folders)) as pool:
        yield {name: pool.submit(refused, name, made, pair, folders[name]) for name in folders}


def refused(name: str, made: Path, pair: Pair, folder: Path) -> None:
    pattern, fault, status = FOR_GOOD[name]
    env = {"BUILD_IMAGES_HOME": str(folder / "home")}
    with real_registry(folder / "registry", in_memory=True) as registry:
        with once(registry.host, pattern, fault, times=10_000) as proxy:
            done = signed(made, proxy.host, pair, env=env)
        assert done.status == status, done.stderr
        assert "Traceback" not in done.stderr
        assert_no_tags(registry.host)
        passed(signed(made, registry.host, pair, env=env))
        assert unproven(registry.host, key=pair.key) == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", SOME_FOR_GOOD)
def test_what_does_not_pass_sets_no_tag(name: str, refusals: dict[str, Future[None]]) -> None:
    refusals[name].result()


def test_a_wrong_byte_on_the_way_to_a_mirror(
    made: Path, registry: RealRegistry, pair: Pair, tmp_path: Path
) -> None:
    passed(signed(made, registry.host, pair))
    with real_registry(tmp_path / "target", in_memory=True) as target:
        for pattern in ("GET .*/blobs/", "GET .*/manifests/sha256:"):
            with once(registry.host, pattern, Fault(changed=True)) as proxy:
                done = publish(made, target.host, "--from", f"{proxy.host}/site")
            assert done.status == 5, done.stderr
            assert "the registry sent sha256:" in done.stderr
            assert own_tags(repository(target.host, "app")) == set()


def test_a_wrong_password_of_the_key_sends_nothing(
    made: Path, registry: RealRegistry, pair: Pair
) -> None:
    done = signed(made, registry.host, pair, env={"COSIGN_PASSWORD": "no"})
    assert done.status == 2, done.stderr
    assert not list(registry.store.rglob("link"))
