"""What nobody has signed in an archive: its names, and files that no evidence is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake
from test_bundle import (  # noqa: F401 - fixtures
    HOST,
    Files,
    _own_home,
    a_policy,
    changed,
    loaded,
    made_once,
    one_archive,
    registry_in_memory,
)

from builder.bundle.layout import REF_NAME, REPOSITORY
from builder.cli import main
from builder.registry.kinds import INDEX

IMAGE = "a" * 64


def listed(files: Files, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the entries of index.json."""
    index = json.loads(files.named("index.json"))
    for one in index["manifests"]:
        change(one)
    files.replace("index.json", json.dumps(index).encode())


def renamed(whole: Path, target: Path, repository: str, tag: str) -> Path:
    """An archive whose `tools:latest` has another name."""

    def change(entry: dict[str, Any]) -> None:
        if entry["annotations"].get(REF_NAME) == "tools:latest":
            assert entry["mediaType"] == INDEX
            entry["annotations"] = {REPOSITORY: repository, REF_NAME: f"{repository}:{tag}"}

    return changed(whole, target, lambda files: listed(files, change))


@pytest.mark.parametrize(
    ("repository", "tag", "why"),
    [
        ("tools", "/../../victim/tools", "is no tag"),
        ("tools", "../../../victim/manifests/tools", "is no tag"),
        ("tools", "\x1b]0;owned\x07tools", "is no tag"),
        ("tools", "x\ud800", "is no tag"),
        ("tools", "", "is no tag"),
        ("tools", f"sha256-{IMAGE}", "is a tag of proof"),
        ("tools", f"sha256-{IMAGE}.sig", "is a tag of proof"),
        ("tools", f"sha256-{IMAGE}.att", "is a tag of proof"),
        ("../victim", "latest", "is of no repository"),
        ("victim/tools", "latest", "is of no repository"),
        ("tools\x1b[2J", "latest", "is of no repository"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(
    repository: str,
    tag: str,
    why: str,
    whole: Path,
    policy: Path,
    fake: Fake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = renamed(whole, tmp_path / "bad.tar", repository, tag)
    folder = ["load", str(archive), "--policy", str(policy), "--host", HOST, "--output"]
    folder += [str(tmp_path / "out"), "--format", "oci", "--arch", "ppc64le"]
    assert loaded(archive, policy, fake) == 5
    assert loaded(archive, policy, fake, "--dry-run", "--explain") == 5
    assert main(folder) == 5
    shown = capsys.readouterr()
    assert shown.err.count(why) == 3
    assert shown.out == ""
    assert "\x1b" not in shown.err
    assert [request for request, _ in fake.asked if request.startswith("PUT")] == []
    assert {one.name for one in tmp_path.iterdir()} <= {
        "bad.tar",
        "home",
        "cosign.pub",
        "policy.yaml",
    }
