"""What nobody has signed in an archive: its names, and files that no evidence is about."""

from __future__ import annotations

import hashlib
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
    on_index,
    one_archive,
)

from builder.cli import main
from builder.distribute.bundle.layout import REF_NAME, REPOSITORY
from builder.registry.manifests import ARTIFACT_TYPES, INDEX

IMAGE = "a" * 64


def renamed(whole: Path, target: Path, repository: str, tag: str) -> Path:
    """An archive whose `tools:latest` has another name."""

    @on_index
    def change(index: dict[str, Any]) -> None:
        for entry in index["manifests"]:
            if entry["annotations"].get(REF_NAME) == "tools:latest":
                assert entry["mediaType"] == INDEX
                entry["annotations"] = {REPOSITORY: repository, REF_NAME: f"{repository}:{tag}"}

    return changed(whole, target, change)


@pytest.mark.parametrize(
    ("repository", "tag", "why"),
    [
        ("tools", "/../../victim/tools", "is not a tag"),
        ("tools", "../../../victim/manifests/tools", "is not a tag"),
        ("tools", "\x1b]0;owned\x07tools", "is not a tag"),
        ("tools", "x\ud800", "is not a tag"),
        ("tools", "", "is not a tag"),
        ("tools", f"sha256-{IMAGE}", "is a tag for proof"),
        ("tools", f"sha256-{IMAGE}.sig", "is a tag for proof"),
        ("tools", f"sha256-{IMAGE}.att", "is a tag for proof"),
        ("../victim", "latest", ": missing or invalid repository name"),
        ("victim/tools", "latest", ": missing or invalid repository name"),
        ("tools\x1b[2J", "latest", ": missing or invalid repository name"),
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


# Files that no evidence is about


def _with_type(manifest: dict[str, Any]) -> None:
    """As it was."""


def _without_type(manifest: dict[str, Any]) -> None:
    """Registries list it by the type of its configuration."""
    manifest["config"]["mediaType"] = manifest.pop("artifactType")


def _with_two_files(manifest: dict[str, Any]) -> None:
    manifest["layers"] *= 2


def with_file(files: Files, content: bytes, kind: str, shape: Callable[..., object]) -> set[str]:
    """Add a file in a format to each image that has one, and something that refers to it."""
    index = json.loads(files.named("index.json"))
    added = {}

    def add(entry: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
        written = json.dumps(manifest).encode()
        digest = hashlib.sha256(written).hexdigest()
        added[f"sha256:{digest}"] = f"blobs/sha256/{digest}", written
        entry = {**entry, "digest": f"sha256:{digest}", "size": len(written)}
        index["manifests"].append(entry)
        return {key: entry[key] for key in ("mediaType", "digest", "size")}

    layer = hashlib.sha256(content).hexdigest()
    for entry in list(index["manifests"]):
        if entry.get("artifactType") == kind:
            manifest = json.loads(files.named(f"blobs/sha256/{entry['digest'][7:]}"))
            manifest["layers"][0] |= {"digest": f"sha256:{layer}", "size": len(content)}
            shape(manifest)
            about = {**manifest, "artifactType": "text/x", "subject": add(entry, manifest)}
            add({**entry, "artifactType": "text/x"}, {**about, "layers": []})
    files.add(f"blobs/sha256/{layer}", content)
    for name, written in added.values():
        files.add(name, written)
    files.replace("index.json", json.dumps(index).encode())
    return {*added, f"sha256:{layer}"}


@pytest.mark.parametrize("name", ARTIFACT_TYPES)
@pytest.mark.parametrize("shape", [_with_type, _without_type, _with_two_files])
def test_files_that_no_evidence_is_about_are_left_out(
    shape: Callable[..., object],
    name: str,
    whole: Path,
    policy: Path,
    fake: Fake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil: set[str] = set()
    kind = ARTIFACT_TYPES[name]
    archive = changed(
        whole,
        tmp_path / "more.tar",
        lambda files: evil.update(with_file(files, b"NOT THE IMAGE", kind, shape)),
    )
    words = ["load", str(archive), "--policy", str(policy), "--host", HOST, "--json"]
    assert main([*words, "--to", f"{fake.host}/site"]) == 0
    shown = capsys.readouterr()
    assert f"is left out: not a proven {name} of sha256:" in shown.err
    assert evil & {digest for _, digest in fake.manifests} == set()
    assert evil & {digest for _, digest in fake.blobs} == set()
    images = [i for one in json.loads(shown.out)["releases"] for i in one["images"].values()]
    assert images
    for image in images:
        assert image[name] not in evil
        assert image["oci"]
