"""Archives of images with their proof: what is in them, and what is refused of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake, fake_registry
from made_releases import correct_evidence, make_images, make_project
from samples import ROOT, compare_with_golden, private_file

from builder.cli import main
from builder.distribute.bundle import archive as archives
from builder.distribute.bundle import contents, layout
from builder.distribute.bundle.contents import releases_of
from builder.distribute.bundle.judgements import with_fix
from builder.model.digests import HashedWriter
from builder.model.errors import BadInput
from builder.registry import WrongContent
from builder.trust.policy.records import refused

Capture = pytest.CaptureFixture[str]

PROOF = ROOT / "tests/data/proof"
HOST = str(ROOT / "tests/data/hosts/dgx.json")  # asking this machine takes longer
TAG = "1.0-sample"
POLICY = {
    "schema": "build-images/policy/v1",
    "keys": ["cosign.pub"],
    "evidence": {"required": [], "emulated": "accepted", "max_age": "99999d"},
    "host_contract": "ignored",
}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COSIGN_PASSWORD", "correct horse")


@pytest.fixture(scope="module", name="made")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = make_project(tmp_path_factory.mktemp("made") / "project", recipes=["tools", "app"])
    make_images(project, size=2000)
    correct_evidence(project)
    return project


@pytest.fixture(scope="module", name="whole")
def one_archive(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two releases, signed."""
    place = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILD_IMAGES_HOME", str(place / "home"))
        patch.setenv("COSIGN_PASSWORD", "correct horse")
        assert bundled(made, place / "site.tar") == 0
    return place / "site.tar"


@pytest.fixture(name="policy")
def a_policy(tmp_path: Path) -> Path:
    shutil.copy(PROOF / "cosign.pub", tmp_path)
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps(POLICY))
    return path


def bundled(project: Path, target: Path, *more: str) -> int:
    words = ["bundle", "--project", str(project), "--output", str(target), "--no-inputs", "-q"]
    return main([*words, "--key", str(private_file("cosign")), *more])


def loaded(archive: Path, policy: Path, fake: Fake, *more: str) -> int:
    words = ["load", str(archive), "--policy", str(policy), "--host", HOST, "-q"]
    return main([*words, "--to", f"{fake.host}/site", *more])


def test_the_same_images_give_the_same_bytes(made: Path, whole: Path, tmp_path: Path) -> None:
    assert bundled(made, tmp_path / "again.tar") == 0
    assert (tmp_path / "again.tar").read_bytes() == whole.read_bytes()
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def test_it_is_a_layout_that_others_read(whole: Path) -> None:
    with tarfile.open(whole) as tar:
        names = tar.getnames()
        assert names[:2] == ["oci-layout", "index.json"]
        index = json.load(tar.extractfile("index.json") or io.BytesIO())
        refs = [
            one.get("annotations", {}).get("org.opencontainers.image.ref.name")
            for one in index["manifests"]
        ]
        assert {f"{name}:{tag}" for name in ("tools", "app") for tag in (TAG, "latest")} <= {*refs}
        contents = {name: (tar.extractfile(name) or io.BytesIO()).read() for name in names[2:]}
    for name, content in contents.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    for entry in index["manifests"]:
        content = contents[f"blobs/sha256/{entry['digest'].partition(':')[2]}"]
        manifest = json.loads(content)
        assert entry["size"] == len(content)
        assert entry["mediaType"] == manifest["mediaType"]
        assert entry.get("artifactType") == manifest.get("artifactType")
    assert any("artifactType" in entry for entry in index["manifests"])


def test_what_is_loaded_is_what_is_published(
    made: Path, whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    assert loaded(whole, policy, fake, "--dry-run") == 0
    assert fake.manifests == {}
    assert loaded(whole, policy, fake) == 0, capsys.readouterr().err
    with fake_registry() as other:
        other.referrers = True
        words = ["publish", "--project", str(made), "--to", f"{other.host}/site", "-q"]
        assert main([*words, "--key", str(private_file("cosign"))]) == 0
        images = {key for key in other.manifests if key[1].startswith("sha256:")}
        tags = {key for key in other.manifests if "latest" in key[1] or TAG in key[1]}
        assert tags <= fake.manifests.keys()
        assert {other.manifests[key] for key in tags} == {fake.manifests[key] for key in tags}
        signed = {key for key in images if b'"subject"' in other.manifests[key][0]}
        assert signed <= fake.manifests.keys()
        capsys.readouterr()
        source, copy = f"{other.host}/site", tmp_path / "copy.tar"
        words = ["bundle", "--project", str(made), "--from", source, "--output", str(copy)]
        assert main([*words, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
    with fake_registry() as third:
        third.referrers = True
        assert loaded(copy, policy, third) == 0, capsys.readouterr().err
        assert third.manifests == other.manifests
    with tarfile.open(copy) as tar:
        assert report["blobs"] == len(tar.getnames()) - 2
    assert report["releases"] == [f"tools:{TAG}", f"app:{TAG}"]
    assert report["bytes"] == copy.stat().st_size
    assert report["digest"] == f"sha256:{hashlib.sha256(copy.read_bytes()).hexdigest()}"


def test_another_key_is_refused_and_nothing_is_sent(
    whole: Path, policy: Path, fake: Fake, capsys: Capture
) -> None:
    shutil.copy(PROOF / "ed25519.pub", policy.parent)
    policy.write_text(json.dumps({**POLICY, "keys": ["ed25519.pub"]}))
    assert loaded(whole, policy, fake) == 5
    error = capsys.readouterr().err
    assert "nothing was loaded" in error
    assert error.count("(x86_64, sif): refused") == 2
    assert fake.manifests == {}
    assert fake.blobs == {}


def test_a_tag_of_another_image_is_refused(
    whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    """Who carries the archive may have renamed what is in it."""

    @on_index
    def renamed(index: dict[str, Any]) -> None:
        for one in index["manifests"]:
            notes = one["annotations"]
            if notes.get("org.opencontainers.image.ref.name") == "tools:latest":
                notes["org.opencontainers.image.ref.name"] = "tools:9.0-sample"

    assert loaded(changed(whole, tmp_path / "x.tar", renamed), policy, fake) == 5
    assert "identity" in capsys.readouterr().err
    assert fake.manifests == {}


def test_a_folder_is_filled_as_pull_does_it(whole: Path, policy: Path, tmp_path: Path) -> None:
    words = ["load", str(whole), "--policy", str(policy), "--output", str(tmp_path / "out")]
    assert main([*words, "--format", "oci", "--arch", "ppc64le", "--host", HOST]) == 0
    names = {one.name for one in (tmp_path / "out").iterdir()}
    assert names == {f"{name}-{TAG}-ppc64le-oci" for name in ("tools", "app")}
    for name in names:
        assert (tmp_path / "out" / name / "image.oci/index.json").is_file()
        assert (tmp_path / "out" / name / "receipt.json").is_file()


def test_images_that_nobody_noted_the_inputs_of_are_refused(
    made: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = ["bundle", "--project", str(made), "--output", str(tmp_path / "site.tar")]
    assert main(words) == 4
    assert "inputs of these images are missing" in capsys.readouterr().err
    assert not (tmp_path / "site.tar").exists()


def test_images_alone_do_not_fill_a_home(whole: Path, policy: Path, capsys: Capture) -> None:
    assert main(["load", str(whole), "--policy", str(policy), "--home", "--host", HOST]) == 4
    assert "the archive has only images" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(contents, "_check_target", lambda *_: None)
    target = tmp_path / "full.tar"
    monkeypatch.setattr(HashedWriter, "write", _full)
    assert bundled(made, target) == 4
    error = capsys.readouterr().err
    assert ": not enough disk space for 0.00 GB; no archive was written\n" in error
    assert "  hint: name another disk with --output, or select fewer images\n" in error
    assert [one.name for one in tmp_path.iterdir() if "full.tar" in one.name] == []


def _full(_self: object, _data: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_that_changed_is_refused(made: Path, tmp_path: Path, capsys: Capture) -> None:
    project = Path(shutil.copytree(made, tmp_path / "project"))
    sif = next((project / "out").glob("tools-*/image.sif"))
    content = bytearray(sif.read_bytes())
    content[5] ^= 1
    sif.write_bytes(content)
    assert bundled(project, tmp_path / "site.tar") == 5
    assert "image.sif: content differs from sha256:" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir() if "site.tar" in one.name] == []


# What somebody may have made of an archive


@dataclass
class Files:
    """The members of an archive, in order."""

    some: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)

    def named(self, name: str) -> bytes:
        return next(content for info, content in self.some if info.name == name)

    def replace(self, name: str, content: bytes) -> None:
        for number, (info, _) in enumerate(self.some):
            if info.name == name:
                info.size = len(content)
                self.some[number] = info, content

    def spoil(self, name: str) -> None:
        content = self.named(name)
        self.replace(name, content[:-1] + bytes([content[-1] ^ 1]))

    def shorten(self, name: str) -> None:
        self.replace(name, self.named(name)[:-1])

    def drop(self, name: str) -> None:
        self.some = [one for one in self.some if one[0].name != name]

    def add(self, name: str, content: bytes = b"", **more: Any) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for key, value in more.items():
            setattr(info, key, value)
        self.some.append((info, content))

    def blob(self) -> str:
        """A layer that is large enough to be no manifest."""
        found = [info for info, content in self.some if not content.startswith(b"{")]
        return max(found[2:], key=lambda one: one.size).name


def changed(whole: Path, target: Path, change: Callable[[Files], object]) -> Path:
    files = Files()
    with tarfile.open(whole) as tar:
        for info in tar:
            files.some.append((info, (tar.extractfile(info) or io.BytesIO()).read()))
    change(files)
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in files.some:
            tar.addfile(info, io.BytesIO(content))
    return target


def on_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Files], object]:
    """What changes `index.json`."""

    def changed_index(files: Files) -> None:
        index = json.loads(files.named("index.json"))
        change(index)
        files.replace("index.json", json.dumps(index).encode())

    return changed_index


@on_index
def _tagged_often(index: dict[str, Any]) -> None:
    """Each tag would be judged, in each format."""
    release = next(one for one in index["manifests"] if "index" in one["mediaType"])
    name = release["annotations"]["build-images.repository"]
    for number in range(101):
        notes = {**release["annotations"], layout.REF_NAME: f"{name}:x{number}"}
        index["manifests"].append({**release, "annotations": notes})


def _as_proof(index: dict[str, Any]) -> dict[str, Any]:
    """An index of the archive, under a tag of proof."""
    release = next(one for one in index["manifests"] if "index" in one["mediaType"])
    name = release["annotations"]["build-images.repository"]
    notes = {**release["annotations"], layout.REF_NAME: f"{name}:sha256-x.sig"}
    return {**release, "annotations": notes}


FAULTS: dict[str, Callable[[Files], object]] = {
    "a wrong byte": lambda files: files.spoil(files.blob()),
    "a blob is missing": lambda files: files.drop(files.blob()),
    "a name twice": lambda files: files.add(files.blob(), b"other"),
    "a manifest twice": on_index(lambda index: index["manifests"].extend(index["manifests"])),
    "a hundred tags": _tagged_often,
    "a shorter blob": lambda files: files.shorten(files.blob()),
    "a path that leads out": lambda files: files.add("../../etc/cron.d/x", b"x"),
    "an absolute path": lambda files: files.add("/etc/passwd", b"x"),
    "a blob below another folder": lambda files: files.add(f"blobs/sha256/../{'0' * 64}", b"x"),
    "a link": lambda files: files.add("blobs/x", type=tarfile.SYMTYPE, linkname="/etc"),
    "a hard link": lambda files: files.add("blobs/x", type=tarfile.LNKTYPE, linkname="index.json"),
    "a device": lambda files: files.add("blobs/x", type=tarfile.CHRTYPE),
    "a folder that no layout has": lambda files: files.add("blobs/sha512", type=tarfile.DIRTYPE),
    "a folder with content": lambda files: files.add("blobs", b"x", type=tarfile.DIRTYPE),
    "a file in place of a folder": lambda files: files.add("blobs"),
    "an extended header": lambda files: files.add(
        "x", b"20 path=oci-layout\n", type=tarfile.XHDTYPE
    ),
    "rubbish for an index": lambda files: files.replace("index.json", b"{"),
    "an image of another size": on_index(lambda index: index["manifests"][0].update(size=1)),
    "an index below the tag of proof": on_index(
        lambda index: index["manifests"].append(_as_proof(index))
    ),
    "no list": on_index(lambda index: index.update(manifests={})),
    "a manifest of no repository": on_index(lambda index: index["manifests"][0].pop("annotations")),
    "a deep index": lambda files: files.replace("index.json", b"[" * 100_000),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_archive_is_refused_in_one_error(
    name: str, whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    archive = changed(whole, tmp_path / "bad.tar", FAULTS[name])
    assert loaded(archive, policy, fake, "--jobs", "1") == 5
    assert capsys.readouterr().err.count("build-images: ") == 1
    assert fake.tags("site/tools") == set()
    assert loaded(archive, policy, fake, "--dry-run") == 5
    words = ["load", str(archive), "--policy", str(policy), "--output", str(tmp_path / "out")]
    assert main([*words, "--format", "oci", "--arch", "x86_64", "--host", HOST]) == 5
    assert not (tmp_path / "out").exists()


def test_all_that_is_told_of_damaged_archives(whole: Path, tmp_path: Path) -> None:
    def read(archive: Path) -> None:
        bundle = layout.opened(archive)
        bundle.archive.check_all()
        releases_of(bundle)

    lines = []
    for name, change in FAULTS.items():
        bad = changed(whole, tmp_path / "bad.tar", change)
        with pytest.raises((BadInput, WrongContent)) as caught:
            read(bad)
        lines.append(f"== {name}: {caught.value.exit_code}\n{caught.value}\n")
    told = re.sub(r"[0-9a-f]{64}", "DIGEST", "".join(lines).replace(str(tmp_path), "HERE"))
    told = re.sub(r"expected \d{2,}|\d{2,} bytes", "NUMBER", told)
    compare_with_golden(told, "refused-archives.txt")


@pytest.mark.parametrize("after", [b"x", bytes(5000) + b"x", bytes(2 << 20)])
def test_what_stands_after_the_end_is_refused(
    after: bytes, whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    longer = tmp_path / "longer.tar"
    longer.write_bytes(whole.read_bytes() + after)
    assert loaded(longer, policy, fake) == 5
    assert "data after the end of the archive" in capsys.readouterr().err
    changed(whole, longer, lambda files: files.add("blobs/sha256", type=tarfile.DIRTYPE))
    longer.write_bytes(longer.read_bytes() + bytes(1_000_000))
    assert loaded(longer, policy, fake, "--dry-run") == 0


def test_a_manifest_that_is_listed_often_is_read_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    small = archives.Archive.small

    def noted(archive: archives.Archive, digest: str) -> bytes:
        read.append(digest)
        return small(archive, digest)

    monkeypatch.setattr(archives.Archive, "small", noted)
    layout.opened(changed(whole, tmp_path / "often.tar", _tagged_often))
    assert len(read) == len(set(read))


@pytest.mark.parametrize("cut", [0.8, 0.1, 0.001, archives.BLOCK])
def test_an_archive_that_breaks_off(
    cut: float, whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    """Also in the two blocks at its end."""
    content, short = whole.read_bytes(), tmp_path / "cut.tar"
    short.write_bytes(content[: -int(cut if cut > 1 else len(content) * cut)])
    assert loaded(short, policy, fake) == 5
    assert "the archive is truncated" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no tar", b"x" * 5000, bytes(5000)])
def test_what_is_no_archive(
    content: bytes, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    assert loaded(tmp_path / "x.tar", policy, fake) == 2
    assert ": not a" in capsys.readouterr().err
    assert loaded(tmp_path / "absent.tar", policy, fake) == 2
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", Path("/dev/zero")):
        assert loaded(other, policy, fake) == 2
    assert loaded(tmp_path, policy, fake) == 2


def test_what_is_in_an_archive_is_not_to_be_named_by_its_digest() -> None:
    older = refused("rollback", "older than at the last pull", "if this is intended, name ...")
    assert with_fix(older).fix == "if this is intended, set rollback: accepted in the policy"
    other = refused("age", "too old", "verify it again")
    assert with_fix(other) == other


def test_another_layout_is_no_bundle(
    whole: Path, policy: Path, fake: Fake, tmp_path: Path, capsys: Capture
) -> None:
    other = on_index(lambda index: index.pop("artifactType"))
    assert loaded(changed(whole, tmp_path / "x.tar", other), policy, fake) == 2
    assert capsys.readouterr().err.endswith(
        ": not a bundle, but another image layout\n"
        "  hint: build-images bundle writes bundles; for other archives, use skopeo\n"
    )
    version = b'{"imageLayoutVersion": "2.0.0"}'
    newer = changed(whole, tmp_path / "y.tar", lambda files: files.replace("oci-layout", version))
    assert loaded(newer, policy, fake) == 2
    assert "unknown image layout version in oci-layout" in capsys.readouterr().err
    without = changed(whole, tmp_path / "z.tar", lambda files: files.drop("index.json"))
    assert loaded(without, policy, fake) == 2
    assert "not an image layout: index.json is missing" in capsys.readouterr().err
    spoilt, at = bytearray(whole.read_bytes()), 2 * archives.BLOCK
    spoilt[at] ^= 1  # in the second header
    (tmp_path / "spoilt.tar").write_bytes(spoilt)
    assert loaded(tmp_path / "spoilt.tar", policy, fake) == 5
    assert (
        f"invalid tar header at byte {at}\n  hint: copy it again from its origin, and"
        in capsys.readouterr().err
    )


def test_options_that_do_not_go_together(policy: Path) -> None:
    for words in (
        ["load", "x.tar"],
        ["load", "x.tar", "--home", "--format", "sif"],
        ["load", "x.tar", "--output", "out"],
        ["load", "x.tar", "--home", "--to", "a/b"],
        ["load", "x.tar", "--to", "a/b", "--checkout", "c"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--policy", str(policy)])
        assert ended.value.code == 2
