"""OCI layouts: written the same each time, read back, and refused when they were changed."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest
from samples import a_file, a_folder, compare_with_golden, tar_bytes

from builder.artifacts import oci
from builder.artifacts.flatten import entries_of_layout
from builder.artifacts.oci import Layout, blob_path, read_layout, write_archive
from builder.model.errors import StepFailed


def write(folder: Path, text: str = "text") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "rootfs.tar").write_bytes(tar_bytes(a_folder("d"), a_file("d/f", text)))
    return write_archive(
        folder / "rootfs.tar",
        folder / "base.oci.tar",
        architecture="ppc64le",
        environment={"PATH": "/bin", "A": "b=c"},
        name="debian13",
    )


def unpacked(folder: Path) -> Path:
    with tarfile.open(folder / "base.oci.tar") as archive:
        archive.extractall(folder / "layout", filter="data")
    return folder / "layout"


@pytest.fixture(name="layout")
def written_layout(tmp_path: Path) -> Path:
    write(tmp_path)
    return unpacked(tmp_path)


def test_the_same_tar_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {write(tmp_path / "one")}
    monkeypatch.setattr("time.time", lambda: 1e9)
    before = os.umask(0o077)
    digests.add(write(tmp_path / "two"))
    os.umask(before)
    assert len(digests) == 1
    one, two = ((tmp_path / name / "base.oci.tar").read_bytes() for name in ("one", "two"))
    assert hashlib.sha256(one).digest() == hashlib.sha256(two).digest()
    with tarfile.open(tmp_path / "one/base.oci.tar") as archive:
        found = {(i.mtime, i.uid, i.gid, i.uname, i.gname, i.isdir(), i.mode) for i in archive}
        nobody = (0, 0, 0, "", "")
        assert found == {(*nobody, False, 0o644), (*nobody, True, 0o755)}
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["base.oci.tar", "rootfs.tar"], "nothing is left beside the archive"
    assert write(tmp_path / "three", "other") not in digests


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    digest = write(tmp_path)
    layout = read_layout(unpacked(tmp_path))
    assert layout.digest == digest
    created = "1970-01-01T00:00:00Z"
    assert layout.config == {
        "architecture": "ppc64le",
        "os": "linux",
        "created": created,
        "config": {"Env": ["PATH=/bin", "A=b=c"], "Cmd": ["/bin/bash"]},
        "rootfs": {"type": "layers", "diff_ids": list(layout.diff_ids)},
        "history": [{"created": created, "created_by": "mmdebstrap debian13"}],
    }
    found = {one.path: one.content for one in entries_of_layout(layout)}
    assert found == {"d": "", "d/f": hashlib.sha256(b"text").hexdigest()}


def test_sizes_and_digests_are_right(layout: Path) -> None:
    assert oci.layout_faults(layout, "ppc64le") == []
    blobs = list((layout / "blobs/sha256").iterdir())
    assert len(blobs) == 3
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    rootfs = (layout.parent / "rootfs.tar").read_bytes()
    assert read_layout(layout).diff_ids == (f"sha256:{hashlib.sha256(rootfs).hexdigest()}",)


@pytest.mark.parametrize("which", ["manifest", "config"])
def test_a_tampered_blob_is_refused(which: str, layout: Path) -> None:
    read = read_layout(layout)
    manifest = json.loads(blob_path(layout, read.digest).read_text())
    digest = read.digest if which == "manifest" else manifest["config"]["digest"]
    blob = blob_path(layout, digest)
    blob.write_bytes(blob.read_bytes().replace(b"sha256", b"sha257", 1))
    with pytest.raises(StepFailed, match=f"blob {digest} has the digest sha256:"):
        read_layout(layout)


@pytest.mark.parametrize("more", [b"", bytes(5 << 20)], ids=["short", "with more behind it"])
def test_a_tampered_layer_is_refused_when_it_is_read(layout: Path, more: bytes) -> None:
    read = read_layout(layout)
    [layer] = read.layers
    layer.write_bytes(tar_bytes(a_file("evil", "x")) + more)
    with pytest.raises(StepFailed, match="this blob has the digest sha256:"):
        list(entries_of_layout(read))


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "{}", '{"manifests": 3}', '{"manifests": [1]}', "no blob"]
)
def test_what_is_no_layout_is_refused(text: str | None, layout: Path) -> None:
    if text == "no blob":
        blob_path(layout, read_layout(layout).digest).unlink()
    elif text is None:
        (layout / "index.json").unlink()
    else:
        (layout / "index.json").write_text(text)
    with pytest.raises(StepFailed, match="not an OCI image layout"):
        read_layout(layout)


@pytest.mark.parametrize("count", [0, 2])
def test_a_layout_holds_one_image(count: int, layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    index["manifests"] *= count
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(StepFailed, match=f"{count} images in the OCI layout, expected 1"):
        read_layout(layout)


def test_a_layout_as_others_read_it(tmp_path: Path) -> None:
    """Its JSON, byte for byte: of the same image, it has the same digest for ever."""
    layout = tmp_path / "layout"
    before = os.umask(0o077)
    oci.start_layout(layout)
    os.umask(before)
    folders = [layout, layout / "blobs", layout / "blobs/sha256"]
    assert {one.stat().st_mode & 0o777 for one in folders} == {0o755}
    layer = oci.LayerBlob(diff_id=f"sha256:{'1' * 64}", digest=f"sha256:{'2' * 64}", size=3)
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]}}
    oci.finish_layout(layout, config, [layer], annotations={"title": "x"})
    files = [path for path in sorted(layout.rglob("*")) if path.is_file()]
    lines = [f"{path.relative_to(layout)}\n{path.read_text()}" for path in files]
    compare_with_golden("\n".join([*lines, ""]), "layout.txt")


def test_an_image_that_sets_nothing() -> None:
    given = {"config": {"Env": None, "Labels": None}}
    layout = Layout(path=Path(), digest="", config=given, layers=())
    assert (layout.environment, layout.architecture, layout.directory) == ({}, "", "/")
