"""`build-images diff`: two images, or an image and the build before it."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document
from samples import a_file, a_folder, blob, tar_bytes

from builder.artifacts.compare import CONTENTS, keep_contents, keep_previous
from builder.artifacts.flatten import entries_of_layout
from builder.artifacts.oci import (
    blob_path,
    finish_layout,
    plain_layers,
    read_layout,
    start_layout,
)
from builder.artifacts.tree import comparable
from builder.cli import main

IMAGE, OTHER = "a-1.0-debian13-x86_64", "b-1.0-debian13-x86_64"
FILES = (a_folder("etc"), a_file("etc/a", "one"), a_file("etc/gone"))
NEW_FILES = (a_folder("etc", 0o700), a_file("etc/a", "three"), a_file("etc/new: 1"))
PACKAGES = {"libc6": "2.41", "zlib1g": "1.3"}
NEW_PACKAGES = {"libc6": "2.42", "mpi": "5"}
CHECKS = {"oci": [{"check": "mpi", "outcome": "passed"}]}
NEW_CHECKS = {"oci": [{"check": "mpi", "outcome": "failed"}]}
TEXT = """\
packages: 3 differences
  libc6: 2.41 → 2.42
  mpi: none → 5
  zlib1g: 1.3 → none
files: 4 differences
  /etc: mode 0700, not 0755
  /etc/a: different content (5 bytes, not 3)
  /etc/gone: gone
  /etc/new: 1: new
sizes: 1 difference
  oci: 5.00 MB → 6.00 MB (+1000000 bytes)
labels: 1 difference
  title: old → none
checks: 1 difference
  oci/mpi: passed → failed
"""


def write(
    out: Path,
    name: str = IMAGE,
    files: Sequence[tuple[tarfile.TarInfo, bytes]] = FILES,
    packages: dict[str, str] = PACKAGES,
    checks: dict[str, Any] = CHECKS,
    labels: Sequence[str] = ("old",),
    size: int = 5_000_000,
) -> Path:
    """An image in its folder, where an older one may be."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    keep_previous(folder)
    start_layout(folder / "image.oci")
    data = tar_bytes(*files)
    layer = blob(blob_path(folder / "image.oci", "sha256:x").parent, data)
    config: dict[str, Any] = {"config": {"Labels": dict(zip(["title"], labels, strict=False))}}
    config |= {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.name}"]}}
    config |= {"architecture": "amd64", "os": "linux"}
    finish_layout(
        folder / "image.oci", config, plain_layers(folder / "image.oci", [f"sha256:{layer.name}"])
    )
    layout = read_layout(folder / "image.oci")
    keep_contents(folder, layout.path, comparable(entries_of_layout(layout, {})))
    components = [{"name": key, "version": text} for key, text in packages.items()]
    (folder / "sbom.cdx.json").write_text(json.dumps({"components": components}))
    about = {"image": name, "checks": checks}
    about["artifacts"] = {"oci": {"size": size, "digest": layout.digest}}
    (folder / "manifest.json").write_text(json.dumps(document(about)))
    return folder


def write_new(out: Path, name: str = IMAGE) -> Path:
    return write(out, name, NEW_FILES, NEW_PACKAGES, NEW_CHECKS, (), 6_000_000)


def diff(out: Path, *words: str) -> int:
    return main(["diff", *words, "--output", str(out)])


def test_equal_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    write(tmp_path, OTHER)
    assert diff(tmp_path, IMAGE, OTHER) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"- {IMAGE}  ", f"+ {OTHER}  "]
    assert lines[2:] == [f"{one}s: equal" for one in ("package", "file", "size", "label", "check")]


def test_two_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    (write_new(tmp_path, OTHER) / CONTENTS).unlink()  # its layout is read instead
    assert diff(tmp_path, IMAGE, str(tmp_path / OTHER)) == 1
    assert capsys.readouterr().out == f"- {IMAGE}  \n+ {OTHER}  \n{TEXT}"


def test_an_image_and_the_build_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path)
    assert diff(tmp_path, IMAGE) == 2
    assert "no earlier build is kept" in capsys.readouterr().err
    write_new(tmp_path)
    assert sorted(one.name for one in (folder / "previous").iterdir()) == [
        *(CONTENTS, "manifest.json", "sbom.cdx.json")
    ]
    assert diff(tmp_path, IMAGE) == 1
    assert capsys.readouterr().out.endswith(TEXT)
    assert diff(tmp_path, IMAGE, "--json") == 1
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert len(changes) == 10
    assert changes[0] == {"what": "package", "name": "libc6", "before": "2.41", "after": "2.42"}
    kept = folder / "previous" / CONTENTS
    for damaged in (b"damaged", kept.read_bytes()[:10] + b"\xff" * 20):
        kept.write_bytes(damaged)
        assert diff(tmp_path, IMAGE) == 1
        assert "files: not compared" in capsys.readouterr().out


def test_what_is_not_compared_is_not_equal(tmp_path: Path) -> None:
    write(tmp_path)
    folder = write(tmp_path, OTHER)
    (folder / CONTENTS).unlink()
    shutil.rmtree(folder / "image.oci")
    assert diff(tmp_path, IMAGE, OTHER) == 1


def test_files_of_another_build_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path)
    write_new(tmp_path)
    shutil.copyfile(folder / "previous" / CONTENTS, folder / CONTENTS)
    assert diff(tmp_path, IMAGE) == 1
    assert capsys.readouterr().out.endswith(TEXT)  # its layout is read instead


def test_packages_of_one_name_without_version_or_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = write(tmp_path), write(tmp_path, OTHER)
    keys = [{"name": "key", "version": "2"}, {"name": "key", "version": "1"}]
    for folder, parts in zip(folders, (keys, [keys[1], {"name": "bare"}]), strict=True):
        (folder / "sbom.cdx.json").write_text(json.dumps({"components": parts}))
    assert diff(tmp_path, IMAGE, OTHER) == 1
    shown = "packages: 2 differences\n  bare: none → unknown\n  key: 1, 2 → 1\n"
    assert shown in capsys.readouterr().out
    (folders[0] / "sbom.cdx.json").unlink()
    assert diff(tmp_path, IMAGE, OTHER) == 1
    assert "packages: not compared: a bill of materials is" in capsys.readouterr().out


def test_an_image_whose_build_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / IMAGE).mkdir()
    (tmp_path / IMAGE / "build.log").touch()
    assert diff(tmp_path, IMAGE) == 2
    shown = f"{IMAGE}: no finished image\n  hint: see build-images logs {IMAGE}\n"
    assert capsys.readouterr().err == f"build-images: {shown}"


def test_many_differences_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    write(tmp_path, OTHER, packages={f"p{number:02}": "1" for number in range(30)})
    assert diff(tmp_path, IMAGE, OTHER) == 1
    assert "  and 12 more; --json lists all\n" in capsys.readouterr().out
