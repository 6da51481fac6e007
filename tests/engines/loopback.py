"""A real registry on loopback: Debian's docker-registry, which is Docker's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from harness import missing
from real_registry import real_registry

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry that runs; `stop` ends it."""

    host: str
    process: subprocess.Popen[bytes]

    def push(self, repository: str, content: bytes) -> str:
        """A blob; its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        start = requests.post(f"http://{self.host}/v2/{repository}/blobs/uploads/", timeout=10)
        target = start.headers["Location"]
        done = requests.put(target, params={"digest": digest}, data=content, timeout=10)
        done.raise_for_status()
        return digest

    def put(self, repository: str, tag: str, manifest: dict[str, Any]) -> tuple[str, int]:
        """A manifest; its digest and size."""
        content = json.dumps(manifest).encode()
        return self.put_bytes(repository, tag, content, manifest["mediaType"]), len(content)

    def put_bytes(self, repository: str, tag: str, content: bytes, media_type: str) -> str:
        """A manifest as it is; its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        done = requests.put(
            f"http://{self.host}/v2/{repository}/manifests/{tag or digest}",
            data=content,
            headers={"Content-Type": media_type},
            timeout=10,
        )
        done.raise_for_status()
        return digest

    def image(self, repository: str, arch: str) -> dict[str, Any]:
        """An image without layers, as an index names it."""
        config = json.dumps(
            {"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}
        ).encode()
        digest, size = self.put(
            repository,
            "",
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": self.push(repository, config),
                    "size": len(config),
                },
                "layers": [],
            },
        )
        platform = {"os": "linux", "architecture": arch}
        return {"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[Registry]:
    """A registry that keeps what it has in a folder; skips where docker-registry is missing."""
    if absent := missing(["docker-registry"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    with real_registry(folder, in_memory=True) as found:
        yield Registry(host=found.host, process=found.process)
