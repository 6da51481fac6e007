"""The host contract of an image, read from whatever form it has, without starting it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
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
_BROKEN = (
    *(tarfile.TarError, *DAMAGED, EOFError, OSError),
    *(ValueError, KeyError, TypeError, AttributeError),  # of an OCI layout's JSON
)
_KINDS = (
    "an image's folder, its identifier, an OCI layout, a SIF, a Charliecloud tarball or folder, or "
    "a host-contract.json"
)


def contract_in(image: Path, processes: Processes) -> HostContract:
    """The contract of one file or folder.

    Raises `BadInput` if it is no image, or its contract is not right, and `MissingPrerequisite` if
    it has none, or what reads it is not on this machine.
    """
    try:
        return _contract(image, processes)
    except _BROKEN as error:
        raise BadInput(f"{image}: cannot be read as an image ({error})", hint=_hint()) from error
    except StepFailed as error:
        raise BadInput(str(error), hint=_hint()) from error


def _contract(image: Path, processes: Processes) -> HostContract:
    if image.is_dir():
        return _in_folder(image)
    if not image.is_file():
        what = "this is neither a file nor a folder" if image.exists() else "no such file or folder"
        raise BadInput(f"{image}: {what}", hint=_hint())
    if sif.is_sif(image):
        return _in_sif(image, processes)
    with image.open("rb") as file:
        is_text = file.read(1) == b"{"
    if is_text or image.suffix in _TEXTS:
        return contract_from_file(_limited(image), str(image))
    return _in_tarball(image)


def _in_folder(folder: Path) -> HostContract:
    """An OCI layout, or an image that Charliecloud unpacked."""
    if (folder / "index.json").is_file():
        labels = part(oci.read_layout(folder).config, "config", "Labels")
        return _told(_texts(labels), folder)
    inside = folder / _INSIDE
    if inside.is_file():
        return contract_from_file(_limited(inside), str(inside))
    if any((folder / name).exists() for name in ("bin", "usr/bin", "ch")):
        raise _without(folder)
    raise BadInput(f"{folder}: no image in this folder", hint=_hint())


def _in_sif(image: Path, processes: Processes) -> HostContract:
    """From the labels, which Apptainer keeps beside the file system too, else from the file."""
    found = sif.json_objects(image)
    for name, path in (
        ("oci-config.json", ("Labels",)),
        ("inspect-metadata.json", ("data", "attributes", "labels")),
    ):
        labels = _texts(_at(found.get(name, b""), path))
        contract = contract_from_labels(labels, f"{image} ({name})")
        if contract is not None:
            return contract
    return _in_squashfs(image, processes)


def _in_squashfs(image: Path, processes: Processes) -> HostContract:
    try:
        part = sif.root_file_system(image)
    except StepFailed as error:
        raise BadInput(error.message, hint=_hint()) from error
    argv = ["unsquashfs", "-offset", str(part.offset), "-cat", str(image), _INSIDE]
    done = processes.capture(argv, check=False, timeout_s=60)
    if done.returncode or not done.stdout:
        raise _without(image)
    return contract_from_file(done.stdout.encode(), f"{image}:{IN_IMAGE}")


def _in_tarball(image: Path) -> HostContract:
    with tarfile.open(image, mode="r|*") as archive:
        for member in archive:
            if clean(member.name) == _INSIDE and member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                return contract_from_file(_read(data, image), f"{image}:{IN_IMAGE}")
    raise _without(image)


def _told(labels: Mapping[str, str], image: Path) -> HostContract:
    contract = contract_from_labels(labels, f"{image} (labels)")
    if contract is None:
        raise _without(image)
    return contract


def _texts(value: object) -> dict[str, str]:
    """The texts of a mapping; labels are nothing else."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str)}


def _at(data: bytes, path: tuple[str, ...]) -> object:
    """What lies at a path in a JSON text; None if nothing does, or it is no JSON."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _limited(file: Path) -> bytes:
    with file.open("rb") as data:
        return _read(data, file)


def _read(data: IO[bytes], image: Path) -> bytes:
    found = data.read(_LARGEST + 1)
    if len(found) > _LARGEST:
        raise BadInput(f"{image}: its host contract is larger than {_LARGEST} bytes")
    return found


def _without(image: Path) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"{image}: cannot tell: this image has no host contract",
        hint="it was built before images had one: build it again, or fetch a newer one",
    )


def _hint() -> str:
    return f"name {_KINDS}"
