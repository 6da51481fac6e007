"""Pulling as a site does, for the tests of it: fixtures, and what must be true after a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from command_line import build_images_here
from faulty_proxy import Proxy, proxy_before
from harness import Ended, build_images, need
from real_registry import real_registry
from registry_site import Published, Site


@pytest.fixture(scope="module", name="registry")
def one_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need("docker-registry")
    with real_registry(tmp_path_factory.mktemp("registry")) as found:
        yield found.host


@pytest.fixture(scope="module", name="known")
def known_images() -> dict[str, Published]:
    return {}


@pytest.fixture
def site(registry: str, known: dict[str, Published], tmp_path: Path) -> Site:
    place = tmp_path / "site"
    place.mkdir()
    return Site(registry=registry, place=place, known=known)


@pytest.fixture
def proxy(registry: str) -> Iterator[Proxy]:
    with proxy_before(registry) as made:
        yield made


def pull(
    site: Site,
    artifact_format: str,
    *more: str | Path,
    host: str = "",
    name: str = "site/tool:1.0",
    policy: Path | None = None,
    apart: bool = False,
    also: Sequence[str] = (),
) -> Ended:
    """Pull as a site does; the builder's home is the site's own.

    It is for the host of a record: asking this machine's programs takes longer than all the rest.
    `also` are more references. It runs in this process, which has all modules already, unless it
    is to be `apart`.
    """
    words: list[str | Path] = [f"{host or site.registry}/{name}", *also]
    words += ["--format", artifact_format, "--policy", policy or site.policy()]
    if "--output" not in more:
        words += ["--output", site.place / "out"]
    if "--host" not in more:
        words += ["--host", site.record()]
    env = {"BUILD_IMAGES_HOME": str(site.place / "home")}
    if apart:
        return build_images("pull", *words, *more, env=env, timeout_s=300)
    return build_images_here("pull", *words, *more, env=env)


def left_behind(site: Site) -> list[str]:
    """What a pull that failed has left where its image would be: nothing, if all is well."""
    return [path.name for path in site.place.iterdir() if "out" in path.name]


def assert_refused(done: Ended, site: Site, status: int = 5) -> None:
    """Refused in words, without a traceback, and nothing is left."""
    assert done.status == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("build-images: ") == 1
    assert left_behind(site) == []
