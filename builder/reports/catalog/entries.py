"""From an image's output folder to what the catalogue shows of it.

The files were written by this program, and may have come from elsewhere since: what has another
shape than expected is left out, and said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.host.contracts import contract_from_file
from builder.model import FAILED
from builder.model.architectures import ARCHITECTURES
from builder.model.contract import FILE, HostContract
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.model.manifest import Manifest
from builder.reports.report.matrix import BUILT, VERIFIED, human_moment, human_size
from builder.reports.report.view import Card, card_of
from builder.reports.sites import needs_of

SBOM = "sbom.cdx.json"
_MOST = 64 << 20  # bytes of a JSON file; the largest of shipped images is below 1 MB
_KINDS = {
    "deb": "Debian package",
    "rpm": "RPM package",
    "pypi": "Python package",
    "generic": "source build",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One row of an SBOM; what it does not tell is empty."""

    name: str
    version: str
    kind: str
    licence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What one piece of evidence says. `fits` is whether it is of the artifacts in the folder."""

    name: str
    result: str
    fits: bool
    when: str
    runner: str
    machine: str
    gpus: str
    emulated: bool
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One image in the catalogue. `state` is verified, built or failed, as its evidence has it.

    `filters` maps the name of a filter (architecture, base, cuda, mpi, framework) to the image's
    values. `files` are what can be had with the page, below the image's folder.
    """

    image: str
    state: str
    word: str
    mark: str
    card: Card
    cell: Mapping[str, str]
    filters: Mapping[str, tuple[str, ...]]
    digest: str
    size: str
    proofs: tuple[Proof, ...]
    components: tuple[Component, ...]
    sbom: str
    sbom_is_whole: bool
    contract: HostContract | None
    needs: str
    faults: tuple[str, ...]
    files: tuple[str, ...]


def read_entry(folder: Path, manifest: Manifest) -> Entry | None:
    """What the catalogue shows of an image, by its manifest and what lies beside it.

    None for one of no recipe, or of an architecture that is not known.
    """
    if not manifest.cell.recipe or manifest.cell.arch not in ARCHITECTURES:
        return None
    card = card_of(manifest, folder=folder.parent.name)
    digests = {name: one.digest for name, one in manifest.artifacts.items()}
    proofs = tuple(_proofs(folder, digests))
    components, sbom_fault, whole = _sbom(folder / SBOM, digests["oci"])
    contract = _contract(folder / FILE)
    faults = [*_proof_faults(manifest, proofs), *([sbom_fault] if sbom_fault else [])]
    state, mark, word = card.state, card.mark, card.word
    if state == VERIFIED and faults:
        state, mark, word = FAILED, "✗", "not proven"
    return Entry(
        image=manifest.image,
        state=state,
        word=word,
        mark=mark,
        card=card,
        cell=asdict(manifest.cell),
        filters=_filters(manifest),
        digest=digests["oci"],
        size=human_size(manifest.artifacts["oci"].size),
        proofs=proofs,
        components=components,
        sbom=SBOM if components else "",
        sbom_is_whole=whole,
        contract=contract,
        needs=needs_of(contract) if contract else "",
        faults=tuple(faults),
        files=tuple(_files(folder)),
    )


def _filters(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """An image is found by its recipe and by those that it is built on: PyTorch's by `pytorch`."""
    chain = [one.name for one in manifest.inputs.recipes]
    cell, recipes = manifest.cell, dict.fromkeys([*chain, manifest.cell.recipe])
    return {
        "architecture": (cell.arch,),
        "base": (cell.base,),
        "cuda": (cell.cuda,),
        "mpi": (cell.mpi,),
        "framework": tuple(name for name in recipes if name),
    }


def _proof_faults(manifest: Manifest, proofs: Sequence[Proof]) -> Iterator[str]:
    """Why an image that its manifest calls verified is not shown so."""
    if manifest.outcome == BUILT:
        return
    if not proofs:
        yield "there is no evidence beside it"
    for one in proofs:
        if not one.fits:
            yield f"the evidence {one.name} is of other artifacts"
        elif one.result not in {"PASSED", "WARNED"}:
            yield f"the evidence {one.name} says {one.result or 'nothing'}"


def _proofs(folder: Path, digests: Mapping[str, str]) -> Iterator[Proof]:
    for path in sorted((folder / "evidence").glob("*.json")):
        statement = _json(path)
        predicate = statement.get("predicate")
        yield _proof(
            path.stem, statement, predicate if isinstance(predicate, dict) else {}, digests
        )


def _proof(
    name: str,
    statement: Mapping[str, object],
    predicate: Mapping[str, object],
    digests: Mapping[str, str],
) -> Proof:
    run = next(
        (one for one in _dicts(predicate.get("configuration")) if one.get("name") == "run"), {}
    )
    setting = part(run, "annotations")
    host, runner = part(setting, "host"), part(setting, "runner")
    subjects = _dicts(statement.get("subject"))
    told = {f"sha256:{part(one, 'digest', 'sha256')}" for one in subjects}
    return Proof(
        name=name,
        result=str(predicate.get("result", "")),
        fits=set(digests.values()) <= told,
        when=human_moment(str(part(setting, "finished") or "")),
        runner=f"{part(runner, 'name') or ''} {part(runner, 'version') or ''}".strip(),
        machine=" · ".join(str(one) for key in ("arch", "cpu", "os") if (one := part(host, key))),
        gpus=", ".join(map(str, _list(part(host, "gpus")))),
        emulated=bool(part(setting, "emulated")),
        passed=_names(predicate.get("passedTests")),
        skipped=_names(predicate.get("warnedTests")),
        failed=_names(predicate.get("failedTests")),
    )


def _sbom(path: Path, digest: str) -> tuple[tuple[Component, ...], str, bool]:
    """Its components, what is wrong with it, and whether it does not call itself incomplete."""
    document = _json(path)
    if not document:
        return (), "", False
    parts = [one.get("aggregate") for one in _dicts(document.get("compositions"))]
    subject = _dicts(part(document, "metadata", "component", "hashes"))
    hashes = {f"sha256:{one.get('content')}" for one in subject}
    fault = "" if digest in hashes else "the SBOM is of another image"
    found = [_component(one) for one in _dicts(document.get("components"))]
    ordered = sorted(found, key=lambda one: (one.name.lower(), one.version))
    return tuple(ordered), fault, "incomplete" not in parts


def _component(one: Mapping[str, object]) -> Component:
    purl = str(one.get("purl", ""))
    kind = purl.removeprefix("pkg:").partition("/")[0] if purl.startswith("pkg:") else ""
    return Component(
        name=str(one.get("name", "")),
        version=str(one.get("version", "")),
        kind=_KINDS.get(kind, kind or str(one.get("type", ""))),
        licence=", ".join(_licences(one)),
    )


def _licences(one: Mapping[str, object]) -> Iterator[str]:
    """https://cyclonedx.org/docs/1.5/json/#components_items_licenses"""
    for choice in _dicts(one.get("licenses")):
        names = (
            choice.get("expression"),
            *(part(choice, "license", key) for key in ("id", "name")),
        )
        if text := next(filter(None, names), None):
            yield str(text)


def _contract(path: Path) -> HostContract | None:
    try:
        return contract_from_file(_bytes(path), path.name)
    except (BadInput, OSError):
        return None


def _files(folder: Path) -> Iterator[str]:
    """What can be shown with an image: text, and no link to elsewhere."""
    names = ["Dockerfile", "Singularity.def", "manifest.json", SBOM, "evidence"]
    for name in names:
        path = folder / name
        for file in sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else [path]:
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(folder).as_posix()


def _json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, object]]:
    return [one for one in _list(value) if isinstance(one, dict)]


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, _list(value)))
