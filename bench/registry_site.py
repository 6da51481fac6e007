"""Small images with their proof in a registry on loopback, and a site that pulls them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import platform
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.artifacts import flatten
from builder.artifacts.oci import Layout
from builder.artifacts.tree import comparable, tree_digest
from builder.model.architectures import ARCHITECTURES
from builder.model.contract import HostContract, NeededCpu, as_labels
from builder.model.errors import StepFailed
from builder.registry import INDEX, MANIFEST, Descriptor, Reference, Registry, connect
from builder.registry.manifests import ARTIFACT_TYPES, EMPTY_CONTENT, referrer
from builder.trust.proof.attestations import proofs
from builder.trust.proof.keys import PrivateKey, generate_key
from builder.trust.proof.statements import statement

HERE = platform.machine()
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SLSA = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"

# What is published


def layer_of(members: Sequence[tuple[tarfile.TarInfo, bytes]], level: int = 1) -> bytes:
    """A gzipped layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), level, mtime=0)


def file(name: str, data: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer."""
    made = tarfile.TarInfo(name)
    made.size, made.mode, made.mtime = len(data), 0o644, 1_000_000_000
    for key, value in more.items():
        setattr(made, key, value)
    return made, data


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, type=tarfile.DIRTYPE, mode=0o755)


GOOD = (
    layer_of(
        [
            *(folder(name) for name in ("bin", "etc", "opt")),
            file("bin/tool", b"#!/bin/sh\necho hello\n", mode=0o755),
            file("bin/link", type=tarfile.SYMTYPE, linkname="/bin/tool"),
            file("etc/gone", b"old"),
            file("opt/data", bytes(range(256)) * 2000),
        ]
    ),
    layer_of([file("etc/.wh.gone"), file("etc/new", b"new"), file("bin/su", b"x", mode=0o4755)]),
)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@functools.lru_cache(maxsize=8)
def diff_id(layer: bytes) -> str:
    """The digest of a layer's plain bytes, which may be a gigabyte."""
    found = hashlib.sha256()
    with gzip.open(io.BytesIO(layer)) as plain:
        while piece := plain.read(1 << 20):
            found.update(piece)
    return f"sha256:{found.hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is published as an image of one architecture, and what is said of it."""

    layers: tuple[bytes, ...] = field(default=GOOD, repr=False)
    sif: bytes = field(default=b"", repr=False)  # something that begins as one, if it is empty
    tarball: bytes = field(default=b"", repr=False)  # made of the layers, if it is empty
    arch: str = HERE
    finished: str = ""
    built: str = "2026-11-01T00:00:00Z"
    outcomes: Mapping[str, str] = field(
        default_factory=lambda: {"formats-equal": "passed", "environment": "passed"}
    )
    emulated: bool = False
    tree: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """Another one for whatever differs."""
        return f"{self!r} {[digest(one) for one in (*self.layers, self.sif, self.tarball)]}"


@dataclass(frozen=True, kw_only=True)
class Published:
    """The digests of what was published; `artifacts` are those of the files."""

    index: str
    image: str
    config: str
    layers: tuple[str, ...]
    artifacts: Mapping[str, str]
    evidence: tuple[str, ...]
    tree: str
    content: bytes


def tree_of(layers: Sequence[bytes], place: Path) -> str:
    """The tree digest, by the code that verification has."""
    blobs = []
    for one in layers:
        blob = place / digest(one).partition(":")[2]
        blob.write_bytes(one)
        blobs.append(blob)
    config = {"rootfs": {"diff_ids": [diff_id(one) for one in layers]}}
    layout = Layout(path=place, digest="", config=config, layers=tuple(blobs))
    return tree_digest(comparable(flatten.entries_of_layout(layout)))


_KEY = generate_key()


@dataclass(kw_only=True)
class Site:
    """A registry, who publishes there, and a site's policy.

    What was published once under the same name is not sent again; only its tag is written.
    """

    registry: str
    place: Path
    known: dict[str, Published]
    key: PrivateKey = _KEY

    def repository(self, name: str = "site/tool") -> Registry:
        return connect(Reference.parse(f"{self.registry}/{name}:x"))

    def policy(self, name: str = "policy.yaml", **more: Any) -> Path:
        """A policy of the site, with the publisher's key."""
        (self.place / "site.pub").write_bytes(self.key.public.pem)
        document = {"schema": "build-images/policy/v1", "keys": ["site.pub"], **more}
        path = self.place / name
        path.write_text(json.dumps(document))
        return path

    def record(self, arch: str = HERE) -> Path:
        """A host of an architecture on which the images run."""
        path = self.place / f"{arch}.json"
        document = {
            "schema": "build-images/host/v1",
            "name": "node",
            "architecture": arch,
            "kernel": "6.1.0",
            "cpu": {"model": "POWER9" if arch == "ppc64le" else "a processor"},
            "gpu": {"driver": "none", "devices": []},
        }
        path.write_text(json.dumps(document))
        return path

    def publish(
        self,
        content: Content | None = None,
        *,
        tag: str = "1.0",
        name: str = "site/tool",
        proof: bool = True,
        key: PrivateKey | None = None,
    ) -> Published:
        """Publish an image as `build-images publish` does: by digest, proof, index, tag."""
        content = content or Content()
        signer = key or self.key
        known = (
            f"{self.registry}/{name} {content.name} {signer.public.fingerprint if proof else ''}"
        )
        if known in self.known:
            self.repository(name).write_manifest(self.known[known].content, INDEX, tag)
        else:
            self.known[known] = self._publish(content, tag, name, signer if proof else None)
        return self.known[known]

    def _publish(self, content: Content, tag: str, name: str, key: PrivateKey | None) -> Published:
        registry = self.repository(name)
        manifest, config = self._image(registry, content)
        tree = content.tree or tree_of(content.layers, self.place)
        tarball = content.tarball or self._tarball(content)
        files = {"charliecloud": tarball, "sif": content.sif or _sif(content)}
        for form, data in files.items():
            layer = registry.write_blob(data, media_type=ARTIFACT_TYPES[form])
            registry.write_blob(EMPTY_CONTENT)
            registry.attach(
                referrer(layer, manifest, artifact_type=ARTIFACT_TYPES[form], annotations={})
            )
        statements = self._statements(content, manifest.digest, files, tree)
        evidence = self._attach(registry, manifest, statements, key) if key else []
        platform_of = {"os": "linux", "architecture": ARCHITECTURES[content.arch].oci}
        entry = {**manifest.as_json(), "platform": platform_of}
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()
        written = registry.write_manifest(index, INDEX, tag)
        if key:
            self._attach(registry, written, [], key)
        return Published(
            index=written.digest,
            image=manifest.digest,
            config=config,
            layers=tuple(map(digest, content.layers)),
            artifacts={form: digest(data) for form, data in files.items()},
            evidence=tuple(evidence),
            tree=tree,
            content=index,
        )

    def _attach(
        self, registry: Registry, image: Descriptor, statements: Sequence[bytes], key: PrivateKey
    ) -> list[str]:
        described = Descriptor(media_type=image.media_type, digest=image.digest, size=image.size)
        made = proofs(
            described, statements, key, reference=registry.name, created="2026-11-01T00:00:00Z"
        )
        for one in made:
            for data in one.blobs.values():
                registry.write_blob(data)
            if one.tag:
                registry.write_manifest(one.manifest, MANIFEST, one.tag)
            else:
                registry.attach(one.manifest)
        return [name for one in made for name in (digest(one.manifest), *one.blobs)]

    def _image(self, registry: Registry, content: Content) -> tuple[Descriptor, str]:
        described = [registry.write_blob(one, media_type=LAYER) for one in content.layers]
        contract = HostContract(
            image="tool", architecture=content.arch, cpu=NeededCpu(target="generic"), kernel="3.2.0"
        )
        config = json.dumps(
            {
                "architecture": ARCHITECTURES[content.arch].oci,
                "os": "linux",
                "created": "2000-01-01T00:00:00Z",
                "config": {"Env": ["PATH=/bin", "A=b c"], "Labels": as_labels(contract)},
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [diff_id(one) for one in content.layers],
                },
                "history": [
                    {"created_by": "a layer"} for _ in content.layers
                ],  # Charliecloud's wish
                "author": digest(content.name.encode()),  # each content is an image of its own
            }
        ).encode()
        made = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": registry.write_blob(config, media_type=CONFIG).as_json(),
                "layers": [one.as_json() for one in described],
            }
        ).encode()
        return registry.write_manifest(made, MANIFEST), digest(config)

    def _tarball(self, content: Content) -> bytes:
        """The tree as one tarball, as Charliecloud's is; an empty one of a hostile image."""
        blobs = []
        for one in content.layers:
            plain = self.place / f"{digest(one)[7:]}.tar"
            plain.write_bytes(gzip.decompress(one))
            blobs.append(plain)
        layout = Layout(path=self.place, digest="", config={}, layers=tuple(blobs))
        members = []
        try:
            nodes = flatten.flattened(layout)
        except StepFailed:
            nodes = {}
        for path, node in nodes.items():
            member = node.member.replace(name=path, deep=False)
            members.append((member, node.read() if node.member.isreg() else b""))
        return layer_of(members)

    def _statements(
        self, content: Content, image: str, files: Mapping[str, bytes], tree: str
    ) -> list[bytes]:
        subjects = {"oci": image, "tree": tree} | {k: digest(v) for k, v in files.items()}
        named = [
            {"name": f"tool/{form}", "digest": {"sha256": one.partition(":")[2]}}
            for form, one in subjects.items()
        ]
        found = [self._evidence(content, form, named) for form in ("oci", "sif", "charliecloud")]
        provenance = {
            "buildDefinition": {
                "buildType": "x",
                "externalParameters": {
                    "image": "tool",
                    "cell": {"recipe": "tool", "recipe_version": "1.0", "base": "sample"},
                },
            },
            "runDetails": {
                "builder": {"id": "https://ci.example/build"},
                "metadata": {"startedOn": content.built},
            },
        }
        bill = {"bomFormat": "CycloneDX", "components": [{"name": "tool", "version": "1"}]}
        for kind, predicate in ((SLSA, provenance), (BILL, bill)):
            found.append(
                statement(name="tool", digest=image, predicate_type=kind, predicate=predicate)
            )
        return found

    def _evidence(self, content: Content, form: str, named: list[dict[str, Any]]) -> bytes:
        finished = content.finished or time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        lists = {"passed": "passedTests", "skipped": "warnedTests", "failed": "failedTests"}
        predicate = {
            "result": "FAILED" if "failed" in content.outcomes.values() else "PASSED",
            "configuration": [
                {
                    "name": "run",
                    "annotations": {
                        "format": form,
                        "runner": {"name": "runner", "version": "1"},
                        "launcher": {"name": "the image's own"},
                        "emulated": content.emulated,
                        "gpu": {"handed_over": False, "reason": ""},
                        "started": finished,
                        "finished": finished,
                        "host": {"arch": content.arch, "driver": "", "gpus": []},
                    },
                }
            ],
            **{
                key: [name for name, one in content.outcomes.items() if one == outcome]
                for outcome, key in lists.items()
            },
        }
        made = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": named,
            "predicateType": TEST_RESULT,
            "predicate": predicate,
        }
        return json.dumps(made).encode()


def _sif(content: Content) -> bytes:
    """What begins as a SIF does; nothing here starts it."""
    return bytes(32) + b"SIF_MAGIC\0" + digest(content.layers[0]).encode()
