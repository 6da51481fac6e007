"""The host contract in each form that an image has, without starting it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from host_samples import OPENMPI, contract, cuda
from made_formats import SifPart, write_sif
from samples import a_file, a_folder, tar_bytes

from builder.artifacts.oci import finish_layout, start_layout
from builder.artifacts.sif import JSON
from builder.model.contract import as_labels, as_text
from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.process import Completed, Processes
from builder.verify.image_contract import contract_in

CONTRACT = contract("ppc64le", cuda=cuda("10.1"), mpi=OPENMPI)
LABELS = as_labels(CONTRACT)


def layout(root: Path, labels: Mapping[str, object] | None) -> Path:
    """An OCI layout whose image has labels."""
    folder = root / "image.oci"
    start_layout(folder)
    finish_layout(folder, {"config": {"Labels": labels}}, [])
    return folder


def sif(file: Path, objects: Mapping[str, bytes]) -> Path:
    """A SIF with objects and no file system."""
    parts = [SifPart(kind=JSON, name=name, content=data) for name, data in objects.items()]
    return write_sif(file, parts)


def tarball(file: Path, *, prefix: str = "", text: str | None = None, packed: bool = True) -> Path:
    members = [a_folder(f"{prefix}bin"), a_file(f"{prefix}bin/tool", "{}")]
    if text is not None:
        members.append(a_file(f"{prefix}opt/build-images/host-contract.json", text))
    data = tar_bytes(*members)
    file.write_bytes(gzip.compress(data) if packed else data)
    return file


def unpacked(root: Path) -> Path:
    folder = root / "image"
    (folder / "opt/build-images").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "opt/build-images/host-contract.json").write_text(as_text(CONTRACT))
    return folder


def text_file(root: Path, name: str = "contract", begin: str = "") -> Path:
    file = root / name
    file.write_text(begin + as_text(CONTRACT))
    return file


def inspected(labels: Mapping[str, str]) -> bytes:
    return json.dumps({"data": {"attributes": {"labels": labels}}}).encode()


FORMS: Mapping[str, Callable[[Path], Path]] = {
    "an OCI layout": lambda root: layout(root, LABELS),
    "a SIF made of an OCI image": lambda root: sif(
        root / "image.sif", {"oci-config.json": json.dumps({"Labels": LABELS}).encode()}
    ),
    "a SIF made of a definition": lambda root: sif(
        root / "image.sif",
        {"oci-config.json": b"{}", "inspect-metadata.json": inspected(LABELS)},
    ),
    "a tarball": lambda root: tarball(root / "image.tar.gz", text=as_text(CONTRACT)),
    "a tarball with the largest file": lambda root: tarball(
        root / "image.tar.gz", text=as_text(CONTRACT).ljust(1 << 20)
    ),
    "a tarball with ./": lambda root: tarball(
        root / "image.tar.gz", prefix="./", text=as_text(CONTRACT)
    ),
    "a plain tar": lambda root: tarball(root / "image.tar", text=as_text(CONTRACT), packed=False),
    "a folder": unpacked,
    "a file": text_file,
    "a file .json": lambda root: text_file(root, "a.json", "\n"),
    "a file .yaml": lambda root: text_file(root, "a.yaml", "\n"),
    "a file .yml": lambda root: text_file(root, "a.yml", "\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_same_contract(form: str, tmp_path: Path) -> None:
    assert contract_in(FORMS[form](tmp_path), Processes()) == CONTRACT


def unpacked_without(root: Path, has: str = "bin") -> Path:
    folder = unpacked(root)
    (folder / "opt/build-images/host-contract.json").unlink()
    (folder / has).parent.mkdir(exist_ok=True)
    (folder / "bin").rename(folder / has)
    return folder


class Unpacks(Processes):
    """Ends as it is told to, in the place of the program that reads a file of a SIF."""

    def __init__(self, status: int, stdout: str) -> None:
        super().__init__()
        self._status, self._stdout = status, stdout

    def capture(self, argv: Sequence[Any], **options: Any) -> Completed:
        assert options == {"check": False, "timeout_s": 60}
        offset, file = argv[2], argv[4]
        inside = "opt/build-images/host-contract.json"
        assert argv == ["unsquashfs", "-offset", offset, "-cat", file, inside]
        assert Path(file).read_bytes()[int(offset) :].startswith(b"hsqs")
        return Completed(argv=(), returncode=self._status, stdout=self._stdout)


def test_a_sif_without_labels_has_it_in_its_file_system(tmp_path: Path) -> None:
    file = write_sif(tmp_path / "image.sif", [SifPart(content=b"hsqs", arch=b"02")])
    assert contract_in(file, Unpacks(0, as_text(CONTRACT))) == CONTRACT
    with pytest.raises(BadInput, match=r":/opt/build-images/host-contract\.json"):
        contract_in(file, Unpacks(0, "{}"))
    for nothing in (Unpacks(0, ""), Unpacks(1, "no such file")):
        with pytest.raises(MissingPrerequisite, match="has no host contract"):
            contract_in(file, nothing)


WITHOUT: Mapping[str, Callable[[Path], Path]] = {
    "an OCI layout": lambda root: layout(root, {"build-images.arch": "ppc64le"}),
    "an OCI layout with numbers": lambda root: layout(root, dict.fromkeys(LABELS, 1)),
    "an OCI layout without labels": lambda root: layout(root, None),
    "a tarball": lambda root: tarball(root / "image.tar.gz"),
    "a tarball with a folder of its name": lambda root: tarball_of(
        root, gzip.compress(tar_bytes(a_folder("opt/build-images/host-contract.json")))
    ),
    "a folder": unpacked_without,
    "a folder of a merged system": lambda root: unpacked_without(root, "usr/bin"),
    "a folder of Charliecloud": lambda root: unpacked_without(root, "ch"),
}


@pytest.mark.parametrize("form", WITHOUT)
def test_an_image_without_one_cannot_be_told(form: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite, match="cannot tell: this image has no host contract"):
        contract_in(WITHOUT[form](tmp_path), Processes())


def broken_blob(root: Path) -> Path:
    folder = layout(root, LABELS)
    for blob in (folder / "blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b" ")
    return folder


def truncated(file: Path, size: int) -> Path:
    os.truncate(file, size)
    return file


BROKEN: Mapping[str, Callable[[Path], Path]] = {
    "nothing": lambda root: root / "image.sif",
    "an empty folder": lambda root: root,
    "an empty file": lambda root: tarball_of(root, b""),
    "no archive": lambda root: tarball_of(root, b"\x1f\x8b no archive"),
    "a tarball that breaks off": lambda root: truncated(FORMS["a tarball"](root), 60),
    "a SIF that breaks off": lambda root: truncated(FORMS["a SIF made of an OCI image"](root), 500),
    "a SIF without a file system": lambda root: sif(root / "image.sif", {"a.json": b"["}),
    "another blob": broken_blob,
    "an index of something else": lambda root: index_of(root, "[]"),
    "an index that is no JSON": lambda root: index_of(root, "{"),
    "a contract that is none": lambda root: tarball(root / "image.tar.gz", text="{}"),
    "a large contract": lambda root: tarball(
        root / "image.tar.gz", text=as_text(CONTRACT).ljust((1 << 20) + 1)
    ),
}


def tarball_of(root: Path, data: bytes) -> Path:
    (root / "image.tar.gz").write_bytes(data)
    return root / "image.tar.gz"


def index_of(root: Path, text: str) -> Path:
    (root / "index.json").write_text(text)
    return root


@pytest.mark.parametrize("form", BROKEN)
def test_what_is_broken_is_bad_input(form: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        contract_in(BROKEN[form](tmp_path), Processes())
