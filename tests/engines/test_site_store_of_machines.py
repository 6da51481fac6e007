"""A site's store in a real registry and in a folder: what one machine built, another takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import build_images, home_of_its_own, manifest_of, need, passed
from real_registry import RealRegistry
from small_base import LEAN, store_small_base

from builder.build.engines import Tools

pytestmark = pytest.mark.engines
STAGE = "lean-development from the site's store"


@pytest.fixture(name="second_home")
def home_of_another_machine(tools: Tools) -> Iterator[Path]:
    with home_of_its_own(tools) as folder:
        yield folder


def words(site: Path, out: str, *more: str) -> tuple[str, ...]:
    return ("--project", str(site), "--image", LEAN, "--output", str(site / out), *more)


@pytest.mark.parametrize("kind", ["registry", "folder"])
def test_a_second_machine_takes_what_the_first_built(
    kind: str, registry: RealRegistry, small_site: Path, small_home: Path, second_home: Path
) -> None:
    """In all formats by the registry, which asks for most; in one by the folder."""
    (small_site / "store").mkdir()
    store = f"{registry.host}/site/cache" if kind == "registry" else str(small_site / "store")
    formats = [] if kind == "registry" else ["--format=oci"]
    (small_site / "site.yaml").write_text(f"store: {store}\n")
    first = {"BUILD_IMAGES_HOME": str(small_home)}
    done = passed(build_images(*words(small_site, "out", *formats), env=first))
    assert "adding it to the site's store" in done.stderr
    second = {"BUILD_IMAGES_HOME": str(second_home)}
    done = passed(build_images(*words(small_site, "out2", *formats), env=second))
    assert f"{LEAN}: from the site's store" in done.stderr
    assert "building" not in done.stderr
    built, taken = (manifest_of(small_site / out / LEAN) for out in ("out", "out2"))
    assert built == taken
    assert taken["outcome"] == "verified"
    passed(build_images("verify", small_site / "out2" / LEAN, "--project", small_site, env=second))
    words_of_gc = ("gc", "--store", "--unused-for=1", "--project", small_site)
    done = passed(build_images(*words_of_gc, env=second))
    assert "nothing to free" in done.stdout


@pytest.mark.parametrize("engine", ["buildah", "docker"])
def test_a_stage_from_the_store_gives_the_same_image(
    engine: str,
    request: pytest.FixtureRequest,
    small_site: Path,
    small_home: Path,
    second_home: Path,
) -> None:
    need("skopeo")
    (small_site / "store").mkdir()
    env = {"BUILD_IMAGES_STORE": str(small_site / "store"), "SOURCE_DATE_EPOCH": "0"}
    more = ["--engine", engine, "--format", "oci"]
    if engine == "docker":
        env["DOCKER_HOST"] = request.getfixturevalue("docker_host")
    passed(
        build_images(
            *words(small_site, "out", *more), env={**env, "BUILD_IMAGES_HOME": str(small_home)}
        )
    )
    for tag in (small_site / "store/tags").glob("image-*"):
        tag.unlink()
    store_small_base(small_site, second_home)
    env["BUILD_IMAGES_HOME"] = str(second_home)
    done = passed(build_images(*words(small_site, "out2", *more), env=env))
    assert STAGE in done.stderr
    built, taken = (manifest_of(small_site / out / LEAN) for out in ("out", "out2"))
    assert built["tree_digest"] == taken["tree_digest"]
    assert built["artifacts"]["oci"]["digest"] == taken["artifacts"]["oci"]["digest"]
    assert built["inputs"]["stages"] == taken["inputs"]["stages"]


def test_a_store_that_nobody_serves_costs_a_line(small_site: Path, small_home: Path) -> None:
    env = {"BUILD_IMAGES_HOME": str(small_home), "BUILD_IMAGES_STORE": "127.0.0.1:9/site/cache"}
    done = passed(build_images(*words(small_site, "out", "--format", "oci"), env=env))
    [line] = [line for line in done.stderr.splitlines() if "goes on without it" in line]
    assert "the site's store: 127.0.0.1:9/site/cache: " in line
    assert manifest_of(small_site / "out" / LEAN)["outcome"] == "verified"
