"""Verifying what `pull` left: what is read of receipts, and which checks an image carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.artifacts.tree import TreeEntry
from builder.cli import main
from builder.distribute.pull.verification import checks_in, receipt_in, variables_of
from builder.model.errors import BadInput
from builder.model.records import write
from builder.verify.formats import FormatTree

RECEIPT: dict[str, Any] = {
    "schema": "build-images/receipt/v1",
    "name": "tool-1.0-x86_64",
    "format": "sif",
    "digest": f"sha256:{'5' * 64}",
    "image": {"architecture": "x86_64"},
    "run": {"environment": ["A=b=c", "EMPTY="], "directory": "/work"},
}


def put(folder: Path, **changed: object) -> Path:
    (folder / "receipt.json").write_text(json.dumps({**RECEIPT, **changed}))
    return folder


def test_a_receipt_says_what_is_run(tmp_path: Path) -> None:
    found = receipt_in(put(tmp_path))
    assert found is not None
    unknown = dict.fromkeys(("build-images", "reference", "pulled", "path", "tree", "on_disk"), "")
    nothing: dict[str, Any] = {"evidence": [], "rules": [], "changes": {}, "case": {}}
    image = {"digest": "", "index": "", "architecture": "x86_64"}
    assert write(found) == {**RECEIPT, **unknown, **nothing, "image": image}
    assert variables_of(found) == {"A": "b=c", "EMPTY": ""}
    assert receipt_in(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"format": "directory"},
            (
                "pulled as a directory cannot be verified\n"
                "  hint: pull it as one of oci, sif, charliecloud; or ch-run --set-env "
            ),
        ),
        ({"format": ["sif"]}, "cannot be verified"),
        (
            {"run": None},
            (
                "(ValueError('name, digest, architecture or run is missing'))\n"
                "  hint: move the folder away, and pull the image again with this version\n"
            ),
        ),
        ({"run": {"environment": ["A"], "directory": "/"}}, "the receipt is incomplete ("),
        ({"run": {"environment": [3], "directory": "/"}}, "the receipt is incomplete ("),
        ({"image": []}, "the receipt is incomplete ("),
        *(
            (changed, "the receipt is incomplete (ValueError('name, digest, architecture or run ")
            for changed in ({"name": ""}, {"digest": ""}, {"image": {"architecture": ""}})
        ),
    ],
)
def test_a_receipt_that_will_not_do(
    changed: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(put(tmp_path, **changed))]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--bench", "--launcher=mpirun"])
def test_one_format_is_not_measured_and_starts_no_ranks(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = put(tmp_path), option.partition("=")[0]
    assert main(["verify", str(folder), option]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"build-images: {name}: {folder} has one pulled format, but this option needs all formats",
        "  hint: name the folder in which it was built, or run the checks without this option",
    ]


def test_an_artifact_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(put(tmp_path))]) == 2
    assert "image.sif" in capsys.readouterr().err


def tree_of(*paths: str) -> FormatTree:
    files = {path: TreeEntry(path=path, kind="file", mode=0o755) for path in paths}
    return FormatTree(entries=files)


def test_the_checks_of_an_image_are_its_scripts_in_order() -> None:
    here = "opt/build-images/checks"
    others = (f"{here}/notes.txt", f"{here}/old/10-mpi", "opt/build-images/run-checks")
    found = checks_in(
        tree_of(f"{here}/20-mpi", f"{here}/30-pytorch-gpu", f"{here}/10-libraries", *others), "it"
    )
    assert [(one.name, one.needs, one.script, one.timeout_s) for one in found] == [
        ("libraries", (), f"/{here}/10-libraries", 900),
        ("mpi", (), f"/{here}/20-mpi", 900),
        ("pytorch-gpu", ("gpu",), f"/{here}/30-pytorch-gpu", 900),
    ]
    with pytest.raises(BadInput) as caught:
        checks_in(tree_of(*others), "it")
    assert str(caught.value).splitlines() == [
        "it: the image has no checks (/opt/build-images/checks)",
        "  hint: only images of this project can be verified: they contain their checks",
    ]
