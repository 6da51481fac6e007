"""Read the host contract of an image in any format, without starting the image."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import IO

from builder.artifacts import oci, sif
from builder.artifacts.tree import clean
from builder.host.contracts import contract_from_file, contract_from_labels
from builder.model.contract import IN_IMAGE, HostContract
from builder.model.errors import BadInput, MissingPrerequisite, StepFailed
from builder.model.exact_json import part
from builder.system.compression import DAMAGED
from builder.system.process import Processes

_INSIDE = IN_IMAGE.lstrip("/")
_TEXTS = (".json", ".yaml", ".yml")
_LARGEST = 1 << 20  # bytes of a contract
_LABELS_IN = {
    "oci-config.json": ("Labels",),
    "inspect-metadata.json": ("data", "attributes", "labels"),
}
_BROKEN = (
    *(tarfile.TarError, *DAMAGED, EOFError, OSError),
    *(ValueError, KeyError, TypeError, AttributeError),  # of an OCI layout's JSON
)
_HINT = (
    "name an image's folder, its identifier, an OCI layout, a SIF, a Charliecloud tarball or "
    "folder, or a host-contract.json"
)


def contract_in(image: Path, processes: Processes) -> HostContract:
    """Return the contract of one file or folder.

    Raises `BadInput` if it is not an image or its contract is invalid, and `MissingPrerequisite`
    if it has no contract or this machine lacks the program that reads it.
    """
    try:
        contract = _contract(image, processes)
    except (*_BROKEN, StepFailed) as error:
        raise BadInput(f"{image}: cannot be read as an image ({error})", hint=_HINT) from error
    if contract is None:
        raise MissingPrerequisite(
            f"{image}: cannot tell: this image has no host contract",
            hint="it is older than host contracts: build it again, or pull a newer one",
        )
    return contract


def _contract(image: Path, processes: Processes) -> HostContract | None:
    if image.is_dir():
        return _in_folder(image)
    if not image.is_file():
        fault = "neither a file nor a folder" if image.exists() else "no such file or folder"
        raise BadInput(f"{image}: {fault}", hint=_HINT)
    if sif.is_sif(image):
        return _in_sif(image, processes)
    with image.open("rb") as file:
        if file.read(1) == b"{" or image.suffix in _TEXTS:
            file.seek(0)
            return contract_from_file(_read(file, image), str(image))
    return _in_tarball(image)


def _in_folder(folder: Path) -> HostContract | None:
    """Read an OCI layout, or an image that Charliecloud unpacked."""
    if (folder / "index.json").is_file():
        labels = part(oci.read_layout(folder).config, "config", "Labels")
        return contract_from_labels(_texts(labels), f"{folder} (labels)")
    inside = folder / _INSIDE
    if inside.is_file():
        with inside.open("rb") as file:
            return contract_from_file(_read(file, inside), str(inside))
    if any((folder / name).exists() for name in ("bin", "usr/bin", "ch")):
        return None
    raise BadInput(f"{folder}: no image in this folder", hint=_HINT)


def _in_sif(image: Path, processes: Processes) -> HostContract | None:
    """Read the labels, which Apptainer also stores beside the file system, or else the file."""
    objects = sif.json_objects(image)
    for name, path in _LABELS_IN.items():
        try:
            labels = part(json.loads(objects.get(name, b"")), *path)
        except (ValueError, RecursionError):
            continue
        if contract := contract_from_labels(_texts(labels), f"{image} ({name})"):
            return contract
    offset = sif.root_file_system(image).offset
    argv = ["unsquashfs", "-offset", str(offset), "-cat", str(image), _INSIDE]
    done = processes.capture(argv, check=False, timeout_s=60)
    if done.returncode or not done.stdout:
        return None
    return contract_from_file(done.stdout.encode(), f"{image}:{IN_IMAGE}")


def _in_tarball(image: Path) -> HostContract | None:
    with tarfile.open(image, mode="r|*") as archive:
        for member in archive:
            if clean(member.name) == _INSIDE and member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                return contract_from_file(_read(data, image), f"{image}:{IN_IMAGE}")
    return None


def _texts(value: object) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}  # JSON's keys are texts


def _read(data: IO[bytes], image: Path) -> bytes:
    content = data.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise BadInput(f"{image}: its host contract is larger than {_LARGEST} bytes")
    return content
