"""An image on its way from its folder to a registry, and from there to a site's disk.

All of it is our own code but for the registry, which is in memory. The engine tests do the same
with images that run and a real registry.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import made_releases
import pytest
from fake_registry import Fake, client, fake_registry
from made_releases import correct_evidence, make_images, make_project
from proof_samples import PASSWORD
from samples import PROOF, ROOT, private_file
from test_pull_placing import NOW, pulled
from transcripts import Transcript

from builder.artifacts.oci import LayerBlob, blob_path, read_layout
from builder.cli import main
from builder.distribute.pull import images, request
from builder.distribute.pull.receipts import last_pulls
from builder.distribute.pull.remote_image import find
from builder.model.digests import sha256_of_file
from builder.model.measurement import HostFacts
from builder.registry.manifests import SIF, referrer
from builder.trust.policy import rules
from builder.trust.policy.site_policy import Policy
from builder.trust.proof import existing

HOST = HostFacts(arch="x86_64", kernel="6.1.0", cpu="a processor", cores=2, os="Debian 12")
ARCH = ("--arch", "x86_64")
DGX = ROOT / "tests/data/hosts/dgx.json"
FORMATS = ("oci", "sif", "charliecloud", "directory")


class Fixed(dt.datetime):
    """A clock that stands still, some days after the evidence."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Fixed:
        return cls(2026, 1, 11, 12, tzinfo=tz)


CLOCK = SimpleNamespace(datetime=Fixed, timezone=dt.timezone, timedelta=dt.timedelta)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A registry with a published image, and the folder of a site that pulls."""

    registry: Fake
    folder: Path
    project: Path
    transcript: Transcript

    @property
    def image(self) -> str:
        return f"{self.registry.host}/site/tools:1.0-sample"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    def write_policy(self, **rules: object) -> None:
        rules = {"schema": "build-images/policy/v1", "keys": ["cosign.pub"], **rules}
        self.policy.write_text(json.dumps({"host_contract": "ignored", **rules}))


@pytest.fixture(name="site")
def site_with_a_published_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COSIGN_PASSWORD", PASSWORD)
    monkeypatch.setattr(made_releases, "host_facts", lambda: HOST)
    for module in (request, existing):
        monkeypatch.setattr(module, "dt", CLOCK)
    monkeypatch.chdir(tmp_path)
    project = make_project(tmp_path / "project", recipes=["tools"], architectures=["x86_64"])
    [folder] = make_images(project)
    _make_real(folder)
    correct_evidence(project)
    key = private_file("cosign")
    shutil.copy(PROOF / "cosign.pub", tmp_path)
    with fake_registry() as fake:
        replaced = {
            fake.host: "REGISTRY",
            str(key): "KEY",
            str(tmp_path): "HERE",
            str(ROOT): "ROOT",
        }
        site = Site(
            registry=fake,
            folder=tmp_path,
            project=project,
            transcript=Transcript(capsys, replaced),
        )
        site.write_policy()
        site.transcript.run(
            *("publish", "--project", project, "--to", f"{fake.host}/site", "--key", key)
        )
        yield site


def _make_real(folder: Path) -> None:
    """Put a SIF and a tarball that are some into an image's folder."""
    changed = {
        "sif": bytes(32) + b"SIF_MAGIC\0" + bytes(100),
        "charliecloud": _tarball(folder / "image.oci"),
    }
    for name, content in changed.items():
        path = folder / made_releases.FILES[name]
        before = sha256_of_file(path)
        path.write_bytes(content)
        for file in (folder / "manifest.json", *folder.glob("evidence/*.json")):
            file.write_text(file.read_text().replace(before, sha256_of_file(path)))
    manifest = json.loads((folder / "manifest.json").read_text())
    for artifact in manifest["artifacts"].values():
        if artifact["format"] in changed:
            artifact["size"] = len(changed[artifact["format"]])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _tarball(layout: Path) -> bytes:
    """All files of a layout's layers in one tar."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as target:
        for layer in read_layout(layout).layers:
            with tarfile.open(layer) as source:
                for member in source:
                    target.addfile(member, source.extractfile(member))
    return gzip.compress(made.getvalue(), mtime=0)


def test_what_is_published_and_pulled(site: Site) -> None:
    """All of it, byte for byte but for digests: what is in the registry, and what a site gets."""
    site.transcript.registry(site.registry)
    site.transcript.compare("published")


def test_all_formats(site: Site) -> None:
    for name in FORMATS:
        words = ("pull", site.image, *ARCH, "--format", name, "--policy", site.policy)
        site.transcript.run(*words, "--explain")
        folder = site.folder / f"tools-1.0-sample-x86_64-{name}"
        site.transcript.files(folder, without=() if name == "oci" else ("rules", "case"))
        site.transcript.run(*words, "--explain")
    as_sif = (*ARCH, "--format", "sif", "--policy", site.policy)
    site.transcript.run("pull", site.image, *as_sif, "--dry-run")
    digest = json.loads((folder / "receipt.json").read_text())["image"]["digest"]
    for named in ("", f"@{digest}"):
        name = site.image.replace(":1.0-sample", named)
        site.transcript.run("pull", name, *as_sif, "--dry-run")
    latest = site.image.replace("1.0-sample", "latest")
    several = ("pull", site.image, latest, *as_sif, "--output", "images")
    site.transcript.run(*several, "--dry-run")
    site.transcript.run(*several)
    site.write_policy(evidence={"max_age": "1d"})
    for more in ([], ["--json"], ["--explain", "--quiet"]):
        site.transcript.run(*several, *more)
    site.transcript.compare("pull")


_layer = made_releases._layer


def _layer_with_another_diff_id(layout: Path, name: str, size: int) -> LayerBlob:
    """A layer of seed 1 with the diff_id of that of seed 0."""
    layer = _layer(layout, name, size)
    first = _layer(layout, f"0{name[1:]}", 20_000)
    blob_path(layout, first.digest).unlink()
    return replace(layer, diff_id=first.diff_id)


def _attach_a_foreign_sif(site: Site) -> None:
    registry = client(site.registry).sibling("site/tools")
    image = find(registry, "1.0-sample", "x86_64").manifest
    file = registry.write_blob(b"of a stranger", media_type=SIF)
    registry.attach(referrer(file, image, artifact_type=SIF, annotations={}))


def test_two_published_images_are_compared(
    site: Site,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what signers say of them; of the layers only whether they are the same.

    The other image's configuration declares the layers of the first, and a file that nobody signed
    is attached to the first as a SIF.
    """
    options = (*ARCH, "--policy", str(site.policy))
    latest = site.image.replace("1.0-sample", "latest")
    assert main(["diff", site.image, latest, *options]) == 0
    equal = ["packages: equal", "files: equal", "sizes: equal", "labels: equal", "checks: equal"]
    assert capsys.readouterr().out.splitlines()[2:] == equal
    project = make_project(tmp_path / "other", recipes=["tools"], architectures=["x86_64"])
    monkeypatch.setattr(made_releases, "_layer", _layer_with_another_diff_id)
    [folder] = make_images(project, seed=1, size=30_000)
    _make_real(folder)
    correct_evidence(project)
    to = f"{site.registry.host}/other"
    key = str(private_file("cosign"))
    assert main(["publish", "--project", str(project), "--to", to, "--key", key]) == 0
    capsys.readouterr()
    _attach_a_foreign_sif(site)
    other = f"{to}/tools:1.0-sample"
    assert main(["diff", site.image, other, *options, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["before"]["image"], document["after"]["image"]) == (site.image, other)
    assert (document["files_compared"], document["packages_compared"]) == (False, True)
    sizes = {each["name"]: each for each in document["changes"] if each["what"] == "size"}
    assert {*sizes} == {"oci", "charliecloud"}
    assert int(sizes["oci"]["after"]) > int(sizes["oci"]["before"])
    site.write_policy(host_contract="enforced")  # made images have no contract
    last_pulls().write(site.image, pulled("sha256:9", NOW), Policy(keys=()))  # newer
    assert main(["diff", site.image, latest, *options]) == 0
    site.write_policy(keys=["ed25519.pub"])
    shutil.copy(PROOF / "ed25519.pub", tmp_path)
    capsys.readouterr()
    assert main(["diff", site.image, latest, *options]) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{site.image}: refused\n" in printed.err
    assert "✗ refused    signature" in printed.err
    assert main(["diff", site.image, "out", *options]) == 2
    assert "is compared with another published one" in capsys.readouterr().err


def test_only_layers_that_are_needed_are_fetched(site: Site) -> None:
    """None for a SIF, a dry run, a refused image or an existing output."""
    words = ("pull", site.image, *ARCH, "--format", "sif", "--policy", site.policy)
    site.transcript.run(*words, "--output", "sif")
    blobs = site.folder / "home/pulls/blobs"
    assert [path.name for path in blobs.iterdir() if path.suffix != ".lock"] == []
    words = ("pull", site.image, *ARCH, "--format", "oci", "--policy", site.policy)
    for more, is_fetched in ((["--dry-run"], False), ([], True), ([], True)):
        site.transcript.run(*words, *more)
        assert bool(list(blobs.glob("?" * 64))) is is_fetched
    shutil.rmtree(blobs)
    site.transcript.run(*words)
    site.write_policy(evidence={"max_age": "1d"})
    site.transcript.run(*words, "--output", "other")
    assert not blobs.exists()


def test_a_tree_that_the_evidence_is_not_about_is_not_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, other = rules.tree, f"sha256:{'0' * 64}"
    monkeypatch.setattr(images, "tree", lambda _, digest: judge(other, digest))
    words = ("--format", "oci", "--policy", str(site.policy), "--output", "here")
    assert main(["pull", site.image, *ARCH, *words]) == 5
    assert not Path("here").exists()


def test_what_goes_to_another_registry_or_into_an_archive(site: Site) -> None:
    """What `publish`, `bundle` and `load` print, as text and JSON, and what they refuse."""
    run, host = site.transcript.run, site.registry.host
    of_project = ("--project", site.project)
    for more in (["--dry-run"], ["--json"], ["--from", f"{host}/none"]):
        run("publish", *of_project, "--to", f"{host}/site", "--key", private_file("cosign"), *more)
    for more in (["--dry-run", "--json"], []):
        run("publish", *of_project, "--to", f"{host}/other", "--from", f"{host}/site", *more)
    run("publish", *of_project, "--to", f"{host}/other", "--from", f"{host}/none")
    archive = site.folder / "site.tar"
    bundle = ("bundle", *of_project, "--output", archive)
    for more in (["--dry-run", "--no-inputs"], ["--no-inputs"], ["--no-inputs", "--json"], []):
        run(*bundle, *more, "--key", private_file("cosign"))
    run(*bundle, "--from", f"{host}/none", "--key", "x")
    run(*bundle, "--from", f"{host}/none")
    run(*bundle, "--from", f"{host}/site", "--json", "--dry-run")
    run(*bundle, "--from", f"{host}/site")
    load = ("load", archive, "--policy", site.policy, "--host", DGX)
    to_folder = (*load, "--output", "here", "--format", "sif", *ARCH)
    to_registry = (*load, "--to", f"{host}/third")
    for more in (["--dry-run", "--explain"], ["--json", "--explain"], []):
        run(*to_registry, *more)
    for more in (["--dry-run"], [], ["--json"]):
        run(*to_folder, *more)
    run(*load, "--home")
    site.write_policy(evidence={"max_age": "1d"})
    run(*to_registry)
    run(*to_folder)
    site.transcript.compare("carried")
