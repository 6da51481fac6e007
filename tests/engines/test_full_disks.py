"""A disk that is full while releases come from elsewhere: one error, nothing half-made, go on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ended, build_images, passed, sample, small_disk
from made_releases import correct_evidence, make_images, make_project
from publishing import RECIPES, SIGNING, Pair, assert_no_tags, policy_of, signed, unproven
from real_registry import RealRegistry, real_registry

from builder.distribute.bundle import INPUTS, ArchiveContents, write_archive
from builder.distribute.bundle.inputs import Inputs, add_build, input_file
from builder.model.digests import Descriptor
from builder.registry.manifests import BASE, PROJECT, SOURCES
from builder.sources.journals import Journals, ServedFile
from builder.trust.proof.attestations import proofs
from builder.trust.proof.keys import private_key

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]
BIG = 3 << 20  # bytes; more than the disk has


@pytest.fixture(scope="module", name="large")
def large_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with finished images that are larger than the disk."""
    project = make_project(tmp_path_factory.mktemp("large") / "project", recipes=RECIPES)
    make_images(project, size=BIG, layers=1)
    correct_evidence(project)
    return project


@pytest.fixture(scope="module", name="archive")
def archive_of_images(large: Path, pair: Pair) -> Path:
    archive = large.with_name("images.tar")
    words = ("--project", large, "--output", archive, "--no-inputs", "--key", pair.private)
    env = {**SIGNING, "BUILD_IMAGES_HOME": str(large.with_name("home"))}
    passed(build_images("bundle", *words, env=env))
    return archive


@pytest.fixture(name="disk")
def two_megabytes(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as place:
        yield place


def goes_on(disk: Path, *words: str | Path, home: Path | None = None) -> None:
    """A command finds the disk full, says so once, and goes through when there is room."""
    env = {"BUILD_IMAGES_HOME": str(home)} if home else {}
    assert_full(build_images(*words, env=env), disk)
    subprocess.run(["mount", "-o", "remount,size=99m", str(disk)], check=True)
    passed(build_images(*words, env=env))


def assert_full(done: Ended, disk: Path) -> None:
    assert done.status == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("build-images: ") == 1
    assert done.stderr.count("No space left on device") == 1
    assert "free disk space" in done.stderr
    files = [path for path in disk.rglob("*") if path.is_file()]
    assert [path for path in disk.rglob("*") if ".partial" in path.name] == []
    assert [path for path in files if path.stat().st_size > BIG // 10] == []


def test_publish_from_another_registry(
    large: Path, registry: RealRegistry, pair: Pair, disk: Path, tmp_path: Path
) -> None:
    """Blobs come through the home."""
    assert signed(large, registry.host, pair).status == 0
    with real_registry(tmp_path / "target", in_memory=True) as target:
        words = ("publish", "--project", large, "--from", f"{registry.host}/site")
        to = ("--to", f"{target.host}/site")
        assert_full(build_images(*words, *to, env={"BUILD_IMAGES_HOME": str(disk)}), disk)
        assert_no_tags(target.host)
        goes_on(disk, *words, *to, home=disk)
        assert unproven(target.host, key=pair.key) == []


def test_load_into_a_registry(
    archive: Path, registry: RealRegistry, pair: Pair, disk: Path
) -> None:
    words = ("load", archive, "--policy", policy_of(pair), "--to", f"{registry.host}/site")
    assert_full(build_images(*words, env={"BUILD_IMAGES_HOME": str(disk)}), disk)
    assert_no_tags(registry.host)
    goes_on(disk, *words, home=disk)
    assert unproven(registry.host, key=pair.key) == []


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("form", "what"),
    sample([("oci", "home"), ("directory", "home"), ("directory", "output"), ("oci", "output")], 2),
)
def test_load_into_a_folder(
    archive: Path, pair: Pair, disk: Path, form: str, what: str, tmp_path: Path
) -> None:
    out = (disk if what == "output" else tmp_path) / "out"
    words = ("load", archive, "--policy", policy_of(pair), "--output", out, "--format", form)
    arch = ("--arch", "x86_64")
    goes_on(disk, *words, *arch, home=disk if what == "home" else None)
    assert sorted(path.name.partition("-")[0] for path in out.iterdir()) == sorted(RECIPES)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", sample(["package", "base", "project", "source"], 2))
def test_load_into_a_home(kind: str, pair: Pair, disk: Path, tmp_path: Path) -> None:
    archive = archive_of(kind, tmp_path, pair)
    words = ("load", archive, "--policy", policy_of(pair), "--home")
    if kind == "project":
        goes_on(disk, *words, "--checkout", disk / "checkout")
    else:
        goes_on(disk, *words, home=disk)
    files = [path for path in disk.rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in files].count(BIG) == 1


def archive_of(kind: str, folder: Path, pair: Pair) -> Path:
    """A signed archive of one input that is larger than the disk."""
    big, data = folder / "ab/big.deb", os.urandom(BIG)
    big.parent.mkdir()
    big.write_bytes(data)
    inputs = inputs_of(kind, big)
    index = inputs.add_index()
    named = Descriptor(media_type=index.media_type, digest=index.digest, size=index.size)
    key = private_key(str(pair.private), SIGNING)
    made = proofs(named, (), key, reference="inputs", created="2026-11-01T00:00:00Z")
    inputs.contents.add_attached(INPUTS, made)
    write_archive(folder / "inputs.tar", inputs.contents)
    return folder / "inputs.tar"


def inputs_of(kind: str, big: Path) -> Inputs:
    """One input of a kind, with that file."""
    inputs, file = Inputs(contents=ArchiveContents()), input_file(big)
    sha256 = file[0].digest.partition(":")[2]
    record = {"name": "debian13", "arch": "x86_64", "digest": f"sha256:{'5' * 64}"}
    if kind == "source":
        inputs.add(SOURCES, "", {"sources": [sha256]}, {sha256: file})
    elif kind == "base":
        inputs.add(BASE, "", record, {big.name: file})
    elif kind == "project":
        inputs.add(PROJECT, "", {"files": ["matrix.yaml"]}, {"matrix.yaml": file})
    else:
        served = [ServedFile(url="http://mirror/big.deb", file="ab/big.deb")]
        add_build(inputs, "1" * 32, served, Journals(cache=big.parents[1]))
    return inputs
