"""Publishing as a user does it, and what is found in the registry afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from faulty_proxy import Fault, proxy_before
from harness import PROJECT, Ended, build_images
from real_registry import RealRegistry

from builder.home import Home
from builder.registry import Credentials, Reference, Registry, connect
from builder.registry.kinds import CYCLONEDX, SIF, STATEMENT, TARBALL

RECIPES = ("tools", "app")
TAG = "1.0-sample"
TOOLS = Home.of_environment().search_path()  # also for tests with a home of their own


def publish(project: Path, host: str, *more: str, env: dict[str, str] | None = None) -> Ended:
    words = ["publish", "--project", str(project), "--to", f"{host}/site", *more]
    return build_images(*words, env=env)


def repository(host: str, recipe: str, namespace: str = "site") -> Registry:
    return connect(Reference.parse(f"{host}/{namespace}/{recipe}"), Credentials(files=()))


def own_tags(registry: Registry) -> set[str]:
    """The tags that people pull by."""
    return {tag for tag in registry.tags() if not tag.startswith("sha256-")}


def unproven(host: str, namespace: str = "site") -> list[str]:
    """What is under a tag and should not be: not there, or without its proof."""
    found: list[str] = []
    for recipe in RECIPES:
        registry = repository(host, recipe, namespace)
        for tag in sorted(own_tags(registry)):
            manifests = registry.document(tag)[1]["manifests"]
            found += [] if len(manifests) == 2 else [f"{tag}: {len(manifests)} architectures"]
            for one in manifests:
                found += [f"{tag}: {text}" for text in lacking(registry, one["digest"])]
    return found


def lacking(registry: Registry, digest: str) -> list[str]:
    """The blobs and the proof that an image lacks."""
    found = [f"no {blob}" for blob in blobs_of(registry, digest) if not registry.has_blob(blob)]
    referring = registry.referrers(digest)
    kinds = sorted(one.artifact_type for one in referring)
    if kinds != sorted([SIF, TARBALL, CYCLONEDX, STATEMENT, STATEMENT, STATEMENT]):
        found.append(f"proof: {kinds}")
    for one in referring:
        assert json.loads(registry.manifest(one))["subject"]["digest"] == digest
        found += [
            f"no {blob} of proof"
            for blob in blobs_of(registry, one.digest)
            if not registry.has_blob(blob)
        ]
    return found


def blobs_of(registry: Registry, digest: str) -> list[str]:
    parsed: dict[str, Any] = json.loads(registry.manifest(digest))
    return [one["digest"] for one in (parsed["config"], *parsed["layers"])]


def start(project: Path, host: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "builder", "publish", "--project", project, "--to", f"{host}/site"],
        cwd=PROJECT,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def once(upstream: str, pattern: str, fault: Fault, times: int = 1) -> Any:
    """A proxy that lets the first requests that match fail."""
    left = [times]

    def decide(request: str, _number: int) -> Fault | None:
        if left[0] and re.search(pattern, request):
            left[0] -= 1
            return fault
        return None

    return proxy_before(upstream, decide)


TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"


def tool(name: str) -> str:
    return str(shutil.which(name, path=TOOLS))


def cosign(command: str, key: str, *more: str) -> None:
    trust = ["--insecure-ignore-tlog=true", "--allow-http-registry"]
    words = [tool("cosign"), command, "--key", key, *trust, *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def discovered(image: str) -> str:
    done = subprocess.run(
        [tool("oras"), "discover", "--plain-http", image],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def published(project: Path, registry: RealRegistry, recipe: str) -> dict[str, dict[str, str]]:
    """The digests of a release, by architecture."""
    report = json.loads(publish(project, registry.host, "--dry-run", "--json").stdout)
    [found] = [one for one in report["releases"] if one["repository"].endswith(f"/{recipe}")]
    images: dict[str, dict[str, str]] = found["images"]
    return images
