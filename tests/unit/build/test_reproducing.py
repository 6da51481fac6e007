"""`build-images reproduce` refuses what it cannot build again, and says what to do."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document
from samples import ROOT, a_file, tar_bytes
from test_again import MANIFEST
from test_proving import TREE, Unpacks, write_formats

from builder.build.engines import Tools
from builder.cli import main, reproduce
from builder.system.home import Home
from builder.verify import reproduction
from builder.verify.reproduction import Comparison

Capture = pytest.CaptureFixture[str]
LIBC = {"name": "libc", "version": "2.35"}
IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
CELL = {
    "recipe": "hpc-base",
    "recipe_version": "1.0",
    "base": "debian13",
    "cuda": "none",
    "mpi": "openmpi5.0",
    "arch": "x86_64",
    "flavour": "runtime",
    "cpu": "generic",
}


def refusal(out: Path, capsys: Capture, name: str = IMAGE, **changes: Any) -> str:
    """What is said of an image whose manifest was changed so."""
    inputs = {"source_date_epoch": 1, "base": {"digest": "sha256:0", "key": "", "made": ""}}
    manifest = document({**MANIFEST, "image": IMAGE, "cell": CELL, "inputs": inputs, **changes})
    (out / IMAGE).mkdir()
    (out / IMAGE / "manifest.json").write_text(json.dumps(manifest))
    assert main(["reproduce", name, "--project", str(ROOT), "--output", str(out)]) == 2
    return capsys.readouterr().err


def content_key(capsys: Capture) -> str:
    main(["plan", "--image", IMAGE, "--json", "--project", str(ROOT)])
    [image] = json.loads(capsys.readouterr().out)["images"]
    return str(image["content_key"])


@pytest.mark.parametrize(
    ("name", "changes", "texts"),
    [
        (IMAGE.replace("hpc", "hcp"), {}, ["no such image at this path", f"did you mean {IMAGE}?"]),
        (IMAGE, {"inputs": {}}, ["images cannot be reproduced"]),
        (IMAGE, {"image": "gone-1.0-x86_64"}, ["has no such image any more"]),
        (IMAGE, {}, ["changed since it was built", "use the project as it was then"]),
    ],
)
def test_what_cannot_be_built_again_is_refused(
    name: str, changes: dict[str, Any], texts: list[str], tmp_path: Path, capsys: Capture
) -> None:
    error = refusal(tmp_path, capsys, name, **changes)
    assert [text for text in texts if text not in error] == []


def test_an_image_without_its_base(tmp_path: Path, capsys: Capture) -> None:
    error = refusal(tmp_path, capsys, content_key=content_key(capsys))
    assert "debian13-x86_64.oci.tar: not the base of the image" in error


def test_tarballs_are_compared_where_the_layers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tools, "which", lambda _tools, name: name)
    tools = Tools(processes=Unpacks(b""), home=Home(path=tmp_path))
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        write_formats(folder)
    tarball = after / "image.tar.gz"
    tarball.write_bytes(gzip.compress(tar_bytes(*TREE, a_file("bin/more", "x"))))
    paths = {"oci": after / "image.oci", "charliecloud": tarball}
    [difference] = reproduction._differences(before, paths, tools)
    assert (difference.where, difference.path) == ("tarball", "/bin/more")
    (before / "sbom.cdx.json").write_text(json.dumps({"components": [LIBC]}))
    bill = {"components": [{**LIBC, "version": "2.36"}, {"name": "more", "version": "1"}]}
    packages = ["libc 2.36, not 2.35", "more 1, not none"]
    assert reproduction._changed_packages(before, bill) == packages
    assert reproduction._changed_packages(after, bill) == []


def test_the_result_as_text_and_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def said(result: Comparison, *more: str) -> tuple[int, str]:
        monkeypatch.setattr(reproduce, "build_again", lambda *_: result)
        code = main(["reproduce", IMAGE, "--project", str(ROOT), "--output", str(tmp_path), *more])
        return code, capsys.readouterr().out

    refusal(tmp_path, capsys)  # leaves the image's folder
    monkeypatch.setattr(reproduce, "unchanged_spec", lambda *_: None)
    before = {"oci": "sha256:1", "charliecloud": "sha256:2"}
    comparison = Comparison(
        image=IMAGE,
        before=before,
        after={**before, "oci": "sha256:3"},
        differences=[],
        packages=[f"package{n} 2, not 1" for n in range(7)],
        duration_s=12.3,
    )
    packages = "; ".join(comparison.packages[:5])
    code, text = said(comparison)
    assert code == 1
    assert text.splitlines() == [
        f"✗ {IMAGE}  built again in 12 s: it differs",
        "    oci          sha256:3, not sha256:1",
        "    charliecloud sha256:2",
        f"  7 packages of another version: {packages}; and 2 more",
    ]
    same = replace(comparison, after=before, packages=[])
    code, text = said(same)
    assert code == 0
    assert text.startswith(f"✓ {IMAGE}  built again in 12 s: the same\n")
    assert json.loads(said(same, "--json")[1])["reproduced"] is True
    assert json.loads(said(comparison, "--json")[1]) == {
        "image": IMAGE,
        "reproduced": False,
        "artifacts": {
            "oci": {"before": "sha256:1", "after": "sha256:3"},
            "charliecloud": {"before": "sha256:2", "after": "sha256:2"},
        },
        "differences": [],
        "packages": list(comparison.packages),
        "duration_s": 12.3,
    }
