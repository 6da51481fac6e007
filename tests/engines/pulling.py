"""Pulling as a site does, for the tests of it: fixtures, and what must be true after a refusal."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from faulty_proxy import Proxy, proxy_before
from harness import Ended, build_images, need
from outside import outside_signals
from real_registry import real_registry
from registry_site import Published, Site

from builder.cli import main


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
    given: list[str | Path] = ["pull", f"{host or site.registry}/{name}", *also]
    given += ["--format", artifact_format, "--policy", policy or site.policy()]
    if "--output" not in more:
        given += ["--output", site.place / "out"]
    if "--host" not in more:
        given += ["--host", site.record()]
    given += more
    environment = {"BUILD_IMAGES_HOME": str(site.place / "home")}
    if apart:
        return build_images(*given, env=environment, timeout_s=300)
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for key, value in environment.items():
            patch.setenv(key, value)
        with outside_signals() as signals:
            status = main([str(one) for one in given])
            signals.check()
    return Ended(status=status, stdout=out.getvalue(), stderr=err.getvalue())


def left_behind(site: Site) -> list[str]:
    """What a pull that failed has left where its image would be: nothing, if all is well."""
    return [one.name for one in site.place.iterdir() if "out" in one.name]


def assert_refused(done: Ended, site: Site, status: int = 5) -> None:
    """Refused in words, without a traceback, and nothing is left."""
    assert done.status == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("build-images: ") == 1
    assert left_behind(site) == []
