"""SIGKILL before a request or a change of the file system, and the same command again.

`python bench/kills.py` does it at every step; here, at some of each command.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import FORMATS, commands, kill_publishes, kill_pulls
from made_releases import make_images, make_project
from published import RECIPES
from pulling import known_images, one_registry, site
from registry_site import Site

pytestmark = pytest.mark.engines
__all__ = ["known_images", "one_registry", "site"]  # fixtures


@pytest.mark.parametrize("artifact_format", FORMATS)
def test_a_pull_leaves_nothing_half_made(site: Site, artifact_format: str) -> None:
    with commands(site.place) as run:
        kills, wrong = kill_pulls(run, site, site.publish(), artifact_format, every=13)
    assert wrong == []
    assert kills > 3


def test_a_publish_sets_no_tag_before_its_proof(registry: str, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", recipes=RECIPES)
    make_images(project)
    with commands(tmp_path) as run:
        kills, wrong = kill_publishes(run, project, registry, every=40)
    assert wrong == []
    assert kills > 3
