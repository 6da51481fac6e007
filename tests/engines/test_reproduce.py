"""An image that is built again is the same, byte for byte, and no .pyc is stale; or it is said."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from harness import Ended, build_images, manifest_of, passed
from projects import copy_of_project
from small_base import write_tiny

from builder.artifacts.oci import read_layout
from builder.build.engines import Tools

pytestmark = pytest.mark.engines

STEADY = (
    '"apt-get update", "apt-get install -y --no-install-recommends python3", "useradd someone", '
    '"mkdir /opt/m", "echo X=1 >/opt/m/mod.py", "python3 -m compileall -q /opt/m"'
)
UNSTEADY = '"date +%s%N >/opt/when", "touch /opt/when-not"'
IMAGES = {name: f"{name}-1.0-debian13-x86_64" for name in ("steady", "unsteady")}


@pytest.fixture(name="built", scope="module")
def built_site(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del tools
    site = copy_of_project(tmp_path_factory.mktemp("site"))
    write_tiny(site, STEADY, name="steady", base="debian13")
    recipe = site / "recipes/steady.yaml"  # what pip installs is copied into the last stage
    pip = "development:\n  - pip: {packages: [six], venv: /opt/venv}\n"
    recipe.write_text(recipe.read_text().replace("development:\n", pip))
    write_tiny(site, UNSTEADY, name="unsteady", base="debian13")
    passed(build_images("--project", site, "--all", "--format", "oci", "--no-verify"))
    return site


def state(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def reproduced(site: Path, name: str, *options: str) -> Ended:
    """Build an image again; its folder stays as it is."""
    before = state(site / "out")
    done = build_images("reproduce", IMAGES[name], "--project", site, *options)
    assert state(site / "out") == before
    return done


def test_an_image_is_reproduced_or_the_first_file_that_differs_is_named(
    built: Path, tools: Tools
) -> None:
    others = set(tools.home.work.glob("reproduce-*"))  # of those who use the home meanwhile
    steady = reproduced(built, "steady")
    assert steady.status == 0, steady.stdout + steady.stderr
    assert f"✓ {IMAGES['steady']}  built again in" in steady.stdout
    unsteady = reproduced(built, "unsteady", "--json")
    assert unsteady.status == 1, unsteady.stderr
    found = json.loads(unsteady.stdout)
    [difference] = found["differences"]
    assert (difference["where"], difference["path"]) == ("layer 2", "/opt/when")
    assert (difference["what"], difference["more"]) == ("content", 0)
    assert set(tools.home.work.glob("reproduce-*")) <= others


def test_no_pyc_is_stale(built: Path) -> None:
    folder = built / "out" / IMAGES["steady"]
    epoch = manifest_of(folder)["inputs"]["source_date_epoch"]
    times: dict[str, int] = {}
    for layer in read_layout(folder / "image.oci").layers:
        with tarfile.open(layer) as archive:
            for member in archive:
                assert member.mtime <= epoch
                if member.name.endswith(".py"):
                    times[member.name] = int(member.mtime)
                elif member.name.endswith(".pyc"):
                    data = archive.extractfile(member)
                    assert data is not None
                    times[member.name] = int.from_bytes(data.read(16)[8:12], "little")
    compiled = [name for name in times if "/__pycache__/" in name]
    assert "opt/m/__pycache__/mod.cpython-313.pyc" in compiled
    for name in compiled:
        package, _, module = name.partition("__pycache__/")
        source = f"{package}{module.split('.')[0]}.py"
        assert times[name] == times[source], name


def test_what_cannot_be_reproduced_is_said(built: Path) -> None:
    recipe = built / "recipes/steady.yaml"
    recipe.write_text(recipe.read_text().replace("X=1", "X=2"))
    changed = reproduced(built, "steady")
    assert changed.status == 2
    assert "its recipes, base or checks changed since it was built" in changed.stderr
    missing = build_images("reproduce", "unsteadi-1.0-debian13-x86_64", "--project", built)
    assert missing.status == 2
    assert f"did you mean {IMAGES['unsteady']}?" in missing.stderr
