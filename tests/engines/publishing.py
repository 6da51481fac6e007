"""Publishing and pulling as a user does it, and what is in the registry afterwards."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from command_line import build_images_here
from faulty_proxy import Fault, proxy_before
from harness import TOOLS, Ended, passed, run_program
from published import RECIPES, SIGNING, TAG, Pair, lacking, own_tags, repository, unproven
from real_registry import RealRegistry

from builder.registry import MANIFEST, Registry

__all__ = ["RECIPES", "SIGNING", "TAG", "Pair", "lacking", "own_tags", "repository", "unproven"]


def publish(project: Path, host: str, *more: str, env: dict[str, str] | None = None) -> Ended:
    return build_images_here(
        "publish", "--project", project, "--to", f"{host}/site", *more, env=env
    )


def signed(
    project: Path, host: str, pair: Pair, *more: str, env: dict[str, str] | None = None
) -> Ended:
    """Publish with a key of `made_key`."""
    words = ("--key", str(pair.private), *more)
    return publish(project, host, *words, env={**SIGNING, **(env or {})})


def write_policy(folder: Path, *keys: object) -> Path:
    """Write a policy that trusts these keys, for images of `make_images` with correct evidence.

    They hold random bytes, and have no host contract.
    """
    path = folder / "policy.yaml"
    document = {
        "schema": "build-images/policy/v1",
        "keys": keys,
        "evidence": {"required": [], "emulated": "accepted", "max_age": "99999d"},
        "host_contract": "ignored",
    }
    path.write_text(json.dumps(document))
    return path


def policy_of(pair: Pair) -> Path:
    """A policy that trusts a key, beside it."""
    return write_policy(pair.public.parent, pair.public.name)


def pull(
    reference: str,
    policy: Path,
    artifact_format: str,
    output: Path,
    *more: str | Path,
    env: dict[str, str] | None = None,
) -> Ended:
    words = ("--format", artifact_format, "--policy", policy, "--output", output, *more)
    return build_images_here("pull", reference, *words, env=env)


def once(upstream: str, pattern: str, fault: Fault, times: int = 1) -> Any:
    """A proxy that lets the first requests that match fail."""
    faults = [fault] * times

    def decide(request: str, _number: int) -> Fault | None:
        return faults.pop() if faults and re.search(pattern, request) else None

    return proxy_before(upstream, decide)


TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"


def assert_no_tags(host: str) -> None:
    """Nothing that people pull by is in the registry."""
    for recipe in RECIPES:
        assert own_tags(repository(host, recipe)) == set()


def tool(name: str) -> str:
    return str(shutil.which(name, path=TOOLS))


def cosign(command: str, key: str | Path, *more: str) -> None:
    trust = ["--insecure-ignore-tlog=true", "--allow-http-registry"]
    passed(run_program(tool("cosign"), command, "--key", key, *trust, *more))


def published(
    project: Path, registry: RealRegistry, recipe: str, env: dict[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """The digests of a release, by architecture."""
    report = json.loads(publish(project, registry.host, "--dry-run", "--json", env=env).stdout)
    [release] = [row for row in report["releases"] if row["repository"].endswith(f"/{recipe}")]
    images: dict[str, dict[str, str]] = release["images"]
    return images


def write_image(registry: Registry, arch: str) -> dict[str, Any]:
    """An image without layers in a repository, as an index names it."""
    rootfs = {"type": "layers", "diff_ids": []}
    config = {"architecture": arch, "os": "linux", "rootfs": rootfs}
    blob = registry.write_blob(
        json.dumps(config).encode(), media_type="application/vnd.oci.image.config.v1+json"
    )
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blob.as_json(), "layers": []}
    written = registry.write_manifest(json.dumps(manifest).encode(), MANIFEST)
    return {**written.as_json(), "platform": {"os": "linux", "architecture": arch}}
