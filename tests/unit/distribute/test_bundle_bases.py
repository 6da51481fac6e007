"""Bases of registries: from the registry into an archive, from there into another home."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake
from made_releases import correct_evidence, make_images, make_project
from samples import private_file
from test_bundle import (  # noqa: F401 - fixtures
    HOST,
    POLICY,
    PROOF,
    Files,
    _own_home,
    a_policy,
    changed,
)

from builder.build.base_store import stored_base
from builder.build.engines.storage import read_storage
from builder.cli import main
from builder.distribute.bundle import ArchiveContents, opened, write_archive
from builder.distribute.bundle.home import index_of_inputs, inputs_of
from builder.distribute.bundle.inputs import Inputs, read_base
from builder.model.cells import image_tag
from builder.model.digests import digest_of
from builder.registry import Reference, WrongContent, connect
from builder.registry.manifests import INDEX, MANIFEST, REGISTRY_BASE, SOURCES
from builder.registry.repository import DOCKER_MANIFEST
from builder.sources.journals import Journals, build_id
from builder.sources.store import SourceStore
from builder.system.home import Home

REFERENCE = "docker.io/library/sample:22.04"
REPOSITORY = "library/sample"
SOURCE = b"what was downloaded"
LAYERS = (b"the lowest layer " * 50, b"another one " * 70, b"the lowest layer " * 50)


def push(fake: Fake, arch: str = "amd64", *, kind: str = MANIFEST, says: bool = True) -> str:
    """A base, two of whose layers are the same; its digest. A manifest need not say its type."""

    def blob(content: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        fake.blobs[REPOSITORY, digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    config = json.dumps({"architecture": arch, "os": "linux"}).encode()
    manifest = {
        "schemaVersion": 2,
        **({"mediaType": kind} if says else {}),
        "config": blob(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [blob(one, "application/vnd.oci.image.layer.v1.tar+gzip") for one in LAYERS],
    }
    content = json.dumps(manifest, indent=3).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    fake.manifests[REPOSITORY, digest] = (content, kind)
    return digest


def project_on(folder: Path, fake: Fake, digest: str) -> Path:
    """A project with a finished image on the base of that digest; not locked, if it is empty."""
    project = make_project(folder / "project", recipes=["tools"], architectures=("x86_64",))
    (project / "site.yaml").write_text(f'registries: {{docker.io: "{fake.host}"}}\n')
    pinned = [{"reference": REFERENCE, "arch": "x86_64", "digest": digest}] if digest else []
    lock = {"schema": "build-images/lock/v1", "sources": [], "references": pinned}
    (project / "lock.yaml").write_text(json.dumps(lock))
    [image] = make_images(project, size=500)
    correct_evidence(project)
    manifest = json.loads((image / "manifest.json").read_text())
    manifest["inputs"]["stages"] = {manifest["cell"]["flavour"]: "0" * 64}
    manifest["inputs"]["sources"] = {"https://x.example/a.tar": digest_of(SOURCE)}
    (image / "manifest.json").write_text(json.dumps(manifest))
    source = Home.of_environment().sources / digest_of(SOURCE).replace(":", "/")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(SOURCE)
    who = build_id(image_tag(manifest["image"], manifest["content_key"]))
    Journals(cache=Home.of_environment().packages).end(who, built=(), taken=(), well=True)
    return project


def bundled(project: Path, target: Path, *more: str) -> int:
    words = ["bundle", "--project", str(project), "--output", str(target), *more]
    return main([*words, "--key", str(private_file("cosign"))])


def into_home(archive: Path, policy: Path, *more: str) -> int:
    return main(["load", str(archive), "--policy", str(policy), "--host", HOST, "--home", *more])


@pytest.fixture(name="other")
def another_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Home]:
    def other() -> Home:
        monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "other"))
        return Home.of_environment()

    return other


LAYER = f"blobs/sha256/{hashlib.sha256(LAYERS[1]).hexdigest()}"
Other = Callable[[], Home]
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("kind", "says"), [(MANIFEST, True), (MANIFEST, False), (DOCKER_MANIFEST, True)]
)
def test_it_is_where_an_offline_build_looks(
    kind: str, says: bool, fake: Fake, policy: Path, tmp_path: Path, other: Other, capsys: Capture
) -> None:
    digest = push(fake, kind=kind, says=says)
    project, archive = project_on(tmp_path, fake, digest), tmp_path / "site.tar"
    assert bundled(project, archive) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "built from 1 base, 1 source, 0 packages" in shown
    assert f"  docker.io/{REPOSITORY}@{digest}  x86_64  0.0 MB" in shown
    assert fake.host not in archive.read_bytes().decode("latin-1")
    [sources] = [one for one in inputs_of(*index_of_inputs(opened(archive))) if one.kind == SOURCES]
    assert sources.about == {"sources": [digest_of(SOURCE)[7:]]}

    home = other()
    assert into_home(archive, policy, "--checkout", str(tmp_path / "there")) == 0
    assert "1 base, 1 source" in capsys.readouterr().out
    assert SourceStore(path=home.sources).place(digest_of(SOURCE)[7:]).read_bytes() == SOURCE
    stored = stored_base(f"mirror.example/of/{REPOSITORY}@{digest}", store=home.bases)
    assert stored is not None
    assert (stored.arch, stored.digest, stored.names) == ("x86_64", digest, (stored.tag,))
    with tarfile.open(stored.archive) as tar:
        blobs = {one.name[-64:] for one in tar if one.name.startswith("blobs/")}
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
    assert blobs == {name[7:] for _, name in fake.blobs} | {digest[7:]}
    assert [one["digest"] for one in index["manifests"]] == [digest]
    assert index["manifests"][0]["mediaType"] == kind
    assert "artifactType" not in index

    # From there it is carried on, without the registry: the same images give the same archive.
    before = len(fake.asked)
    shutil.copytree(project / "out", tmp_path / "there/out")
    assert bundled(tmp_path / "there", tmp_path / "again.tar") == 0, capsys.readouterr().err
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()
    assert len(fake.asked) == before
    layer, spoilt = LAYERS[1], b"!" * len(LAYERS[1])
    stored.archive.write_bytes(stored.archive.read_bytes().replace(layer, spoilt))
    assert into_home(archive, policy) == 0  # what is not whole is replaced
    assert layer in stored.archive.read_bytes()
    before = stored.archive.stat().st_ino
    assert into_home(archive, policy) == 0  # what is, counts
    assert stored.archive.stat().st_ino == before


def test_a_dry_run_asks_for_no_layer(fake: Fake, tmp_path: Path, capsys: Capture) -> None:
    digest = push(fake)
    project = project_on(tmp_path, fake, digest)
    assert bundled(project, tmp_path / "site.tar", "--dry-run", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    manifest, _ = fake.manifests[REPOSITORY, digest]
    size = len(manifest) + sum(len(one) for one in fake.blobs.values())
    [base] = report["registry_bases"]
    assert base == {"name": f"docker.io/{REPOSITORY}@{digest}", "arch": "x86_64", "bytes": size}
    assert report["inputs"]["bases"] == 1
    assert len(fake.requests("blobs/")) == 1  # its configuration
    assert not (tmp_path / "site.tar").exists()


def test_one_that_is_not_locked_is_to_be_locked(
    fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    assert bundled(project_on(tmp_path, fake, ""), tmp_path / "site.tar") == 4
    error = capsys.readouterr().err
    assert f"its base {REFERENCE} is not locked: run build-images lock, and build it again" in error
    assert not (tmp_path / "site.tar").exists()


def test_a_registry_that_has_it_no_more(
    fake: Fake, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.registry.failures._FIRST_S", 0.01)
    digest = push(fake)
    project = project_on(tmp_path, fake, digest)
    fake.manifests.clear()
    assert bundled(project, tmp_path / "site.tar") == 4
    error = capsys.readouterr().err
    assert f"its base docker.io/{REPOSITORY}@{digest} is not in the store: {fake.host}" in error
    (project / "site.yaml").write_text('registries: {docker.io: "127.0.0.1:9"}\n')
    assert bundled(project, tmp_path / "site.tar") == 4
    assert "is not in the store: 127.0.0.1:9" in capsys.readouterr().err


def test_what_the_registry_gives_is_refused(fake: Fake, tmp_path: Path, capsys: Capture) -> None:
    """Another architecture, an index, another layer: nothing is left of the archive."""
    target = tmp_path / "site.tar"
    assert bundled(project_on(tmp_path / "a", fake, push(fake, "ppc64le")), target) == 5
    assert "this base is for 'ppc64le', not for x86_64" in capsys.readouterr().err

    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    fake.manifests[REPOSITORY, digest] = (index, INDEX)
    assert bundled(project_on(tmp_path / "b", fake, digest), target) == 5
    assert "not the manifest of a single-architecture image" in capsys.readouterr().err

    project = project_on(tmp_path / "c", fake, push(fake))
    layer = f"sha256:{hashlib.sha256(LAYERS[1]).hexdigest()}"
    fake.blobs[REPOSITORY, layer] = LAYERS[1][:-1] + b"!"
    assert bundled(project, target) == 5
    error = capsys.readouterr().err
    assert layer in error
    assert error.count("build-images: ") == 1
    assert [one.name for one in tmp_path.iterdir() if "site.tar" in one.name] == []


FAULTS: dict[str, tuple[Callable[[Files], None], str]] = {
    "a wrong byte": (lambda files: files.spoil(LAYER), "has the digest sha256:"),
    "a missing blob": (
        lambda files: files.drop(LAYER),
        f"blob sha256:{Path(LAYER).name} is missing",
    ),
    "a shorter blob": (lambda files: files.shorten(LAYER), "bytes, expected"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_base_is_refused_in_one_error(
    name: str, fake: Fake, policy: Path, tmp_path: Path, other: Other, capsys: Capture
) -> None:
    change, expected = FAULTS[name]
    archive = tmp_path / "site.tar"
    assert bundled(project_on(tmp_path, fake, push(fake)), archive) == 0
    bad = changed(archive, tmp_path / "bad.tar", change)
    home = other()
    for more in ((), ("--dry-run",)):
        capsys.readouterr()
        assert into_home(bad, policy, *more) == 5
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("build-images: ") == 1
        assert list(home.bases.glob("[!.]*")) == []
    assert read_storage(home.storage, "overlay").images == {}
    assert into_home(archive, policy) == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"arch": "ppc64le"}, "this base is for 'amd64', not for ppc64le"),
        ({"arch": "m68k"}, "not a base image from a registry"),
        ({"name": REFERENCE}, "not a base image from a registry"),
        ({"name": "../x@sha256:y"}, "not a base image from a registry"),
        ({"name": f"{REPOSITORY}@sha256:{'0' * 64}"}, "not a base image from a registry"),
    ],
)
def test_what_is_said_of_a_base_has_to_be_so(
    changes: dict[str, Any], expected: str, fake: Fake, tmp_path: Path
) -> None:
    digest = push(fake)
    name = f"{fake.host}/{REPOSITORY}@{digest}"
    base = read_base(connect(Reference.parse(name)), name, "x86_64", digest)
    inputs = Inputs(contents=ArchiveContents())
    inputs.add(REGISTRY_BASE, digest, {**base.about, **changes}, base.files)
    inputs.add_index()
    write_archive(tmp_path / "site.tar", inputs.contents)
    repository, index = index_of_inputs(opened(tmp_path / "site.tar"))
    with pytest.raises(WrongContent, match=re.escape(expected)):
        inputs_of(repository, index)


def test_gc_keeps_what_an_image_is_made_of(
    fake: Fake, policy: Path, tmp_path: Path, other: Other, capsys: Capture
) -> None:
    archive = tmp_path / "site.tar"
    project = project_on(tmp_path, fake, push(fake))
    assert bundled(project, archive) == 0
    home = other()
    assert into_home(archive, policy) == 0
    [folder] = home.bases.glob("[!.]*")
    assert folder.name.startswith("sample-x86_64-")
    words = ["gc", "--project", str(project), "--unused-for", "0"]
    capsys.readouterr()
    assert main(words) == 0
    assert "base " not in capsys.readouterr().out
    lock = {"schema": "build-images/lock/v1", "sources": [], "references": []}
    (project / "lock.yaml").write_text(json.dumps(lock))
    assert main([*words, "--free"]) == 0
    assert f"base    {folder.name}" in capsys.readouterr().out
    assert not folder.exists()
