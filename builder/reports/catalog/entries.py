"""The entries of the catalogue, read from the images' output folders.

This program wrote the files, but they may have been replaced since: a file with unexpected content
is left out, and the entry says so.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from builder.facts.software import RUNTIMES
from builder.model import FAILED
from builder.model.agreement import Statement, faults_of
from builder.model.architectures import ARCHITECTURES
from builder.model.contract import FILE, HostContract, SiteAnswer
from builder.model.errors import BadInput, Fault
from builder.model.exact_json import part
from builder.model.manifest import MANIFEST, SBOM, SCHEMA, Manifest, compared_values
from builder.model.predicates import RunFacts, RunHost, TestLists, TestResult, result_of
from builder.model.records import read
from builder.reports.report.view import BUILT, VERIFIED, Card, card_of
from builder.reports.sites import needs_of

_MOST = 64 << 20  # bytes of a JSON file; the largest of shipped images is below 1 MB
_KINDS = {
    "deb": "Debian package",
    "rpm": "RPM package",
    "pypi": "Python package",
    "generic": "source build",
}
_UNREADABLE = TestResult(
    subjects={},
    lists=TestLists(result="", passed=(), skipped=(), failed=()),
    run=RunFacts(started="", finished="", emulated=False, host=RunHost(arch="")),
    checks=(),
)
# Where a site finds the image after a pull: folders of `build-images pull`
_PULLED = {"sif": ("sif", "image.sif"), "charliecloud": ("directory", "rootfs")}


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogReaders:
    """The readers of an image's folder that other rooms have, and the answers for its contract.

    `contract` reads bytes, and takes their name for messages.
    """

    manifest: Callable[[Path], Manifest | None]
    contract: Callable[[bytes, str], HostContract]
    labels: Callable[[Path, Manifest], Mapping[str, str] | None]
    answers: Callable[[HostContract], Sequence[SiteAnswer]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A component of an SBOM: https://cyclonedx.org/docs/1.5/json/#components"""

    name: str
    version: str = ""
    purl: str = ""
    type: str = ""
    licenses: tuple[Mapping[str, object], ...] = ()

    @property
    def kind(self) -> str:
        scheme, _, rest = self.purl.partition(":")
        kind = rest.partition("/")[0] if scheme == "pkg" else ""
        return _KINDS.get(kind, kind or self.type)

    @property
    def licence(self) -> str:
        names = (
            choice.get("expression")
            or part(choice, "license", "id")
            or part(choice, "license", "name")
            for choice in self.licenses
        )
        return ", ".join(str(name) for name in names if name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sbom:
    """The shown parts of a bill of materials: https://cyclonedx.org/docs/1.5/json/"""

    metadata: Mapping[str, object] = field(default_factory=dict)
    components: tuple[Component, ...] = ()
    compositions: tuple[Mapping[str, object], ...] = ()

    def is_of(self, digest: str) -> bool:
        """Return whether it is for the image with a digest (`sha256:…`)."""
        hashes = part(self.metadata, "component", "hashes")
        return isinstance(hashes, list) and digest in {
            f"sha256:{part(each, 'content')}" for each in hashes
        }

    @property
    def is_complete(self) -> bool:
        """True unless it states that it is incomplete."""
        return all(each.get("aggregate") != "incomplete" for each in self.compositions)


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryProof:
    """A piece of evidence; `fits` is True if it is for the artifacts in the folder."""

    name: str
    result: TestResult
    fits: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """One image in the catalogue; its card shows the state that its evidence proves.

    `folder` is the name of the folder with all images. `needs` are the requirements on a host, in
    one line, and `sites` the answers for the known hosts. `files` are the files that the page links
    to, below the image's folder. `values` are those that are compared between images.
    """

    manifest: Manifest
    folder: str
    card: Card
    proofs: tuple[EntryProof, ...]
    sbom: Sbom | None
    needs: str
    sites: tuple[SiteAnswer, ...]
    faults: tuple[str, ...]
    files: tuple[str, ...]
    values: Mapping[str, Mapping[str, str]]

    @property
    def image(self) -> str:
        return self.manifest.image

    @property
    def filters(self) -> dict[str, tuple[str, ...]]:
        """The image's values of each filter."""
        cell = self.manifest.cell
        chain = [*(recipe.name for recipe in self.manifest.inputs.recipes), cell.recipe]
        return {
            "architecture": (cell.arch,),
            "base": (cell.base,),
            "cuda": (cell.cuda,),
            "mpi": (cell.mpi,),
            "framework": tuple(filter(None, dict.fromkeys(chain))),
            "flavour": (cell.flavour,),
            "cpu": (cell.cpu,),
            "proof": (self.card.state,),
        }

    def brought(self, runtime: str, registry: str) -> tuple[str, str]:
        """Return the command that brings the image to a site, and its name for a runtime there.

        Both are quoted for the shell. Without a registry, its folder is there already.
        """
        form, cell, image = RUNTIMES[runtime].format, self.manifest.cell, self.image
        if registry and form == "oci":
            digest = self.manifest.artifacts["oci"].digest
            name = quote(f"{registry}/{cell.recipe}@{digest}")
            return f"{runtime} pull {name}", name
        if registry:
            pulled, file = _PULLED[form]
            tag = quote(f"{registry}/{cell.recipe}:{cell.tag}")
            command = f"build-images pull {tag} --arch {cell.arch} --format {pulled}"
            return command, quote(f"{image}-{pulled}/{file}")
        if form not in self.manifest.artifacts:
            return "", "IMAGE"
        path = quote(f"{self.folder}/{image}/{self.manifest.artifacts[form].path}")
        if form == "charliecloud":
            folder = quote(f"/var/tmp/{image}")  # noqa: S108 - of the reader's machine
            return f"ch-convert -i tar -o dir {path} {folder}", folder
        if runtime == "docker":
            name = quote(image.lower())
            return f"skopeo copy oci:{path} docker-daemon:{name}", name
        return "", f"oci:{path}" if form == "oci" else path

    @property
    def components(self) -> list[Component]:
        return sorted(_components(self.sbom), key=lambda each: (each.name.lower(), each.version))


def read_entries(source: Path, readers: CatalogReaders) -> list[CatalogEntry]:
    """Return the entries of finished images; each image is in a folder with its name.

    Raises `BadInput` with every manifest that cannot be read.
    """
    entries, faults = [], []
    for path in sorted(source.glob(f"*/{MANIFEST}")):
        folder = path.parent
        manifest = readers.manifest(folder)
        if manifest and manifest.image != folder.name:
            continue
        if manifest and (entry := read_entry(folder, manifest, readers)):
            entries.append(entry)
        elif manifest or (path.is_file() and SCHEMA in path.read_text(errors="replace")):
            text = "its format differs from the one that this version writes"
            faults.append(Fault(file=f"{folder.name}/{MANIFEST}", line=1, key="", problem=text))
    if faults:
        raise BadInput.of(faults, "no catalog was written")
    return entries


def read_entry(folder: Path, manifest: Manifest, readers: CatalogReaders) -> CatalogEntry | None:
    """Return the entry of an image, from its manifest and the files beside it.

    None for an image without a recipe, or of an unknown architecture.
    """
    if not manifest.cell.recipe or manifest.cell.arch not in ARCHITECTURES:
        return None
    card = card_of(manifest)
    proofs, sbom = _proofs(folder, manifest), _sbom(folder / SBOM)
    faults = [*_proof_faults(manifest, proofs)] or _contradictions(folder, manifest)
    if sbom and not sbom.is_of(manifest.artifacts["oci"].digest):
        faults.append("the SBOM is for another image")
    contract = _contract(folder / FILE, readers)
    packages = [{"name": each.name, "version": each.version} for each in _components(sbom)]
    bill = {"components": packages} if packages else {}
    if card.state == VERIFIED and faults:
        card = dataclasses.replace(card, state=FAILED, mark="✗", word="not proven")
    return CatalogEntry(
        manifest=manifest,
        folder=folder.parent.name,
        card=card,
        proofs=proofs,
        sbom=sbom,
        needs=needs_of(contract) if contract else "",
        sites=tuple(readers.answers(contract)) if contract else (),
        faults=tuple(faults),
        files=tuple(_files(folder)),
        values=compared_values(manifest, bill, readers.labels(folder, manifest)),
    )


def _proofs(folder: Path, manifest: Manifest) -> tuple[EntryProof, ...]:
    digests = {artifact.digest for artifact in manifest.artifacts.values()}
    proofs = []
    for path in sorted((folder / "evidence").glob("*.json")):
        try:
            result = result_of(json.loads(_bytes(path)))
        except (OSError, LookupError, TypeError, ValueError, RecursionError):
            result = _UNREADABLE
        fits = digests <= {*result.subjects.values()}
        proofs.append(EntryProof(name=path.stem, result=result, fits=fits))
    return tuple(proofs)


def _proof_faults(manifest: Manifest, proofs: Sequence[EntryProof]) -> Iterator[str]:
    """Yield the reasons why a verified image (by its manifest) is not shown as verified."""
    if manifest.outcome == BUILT:
        return
    if not proofs:
        yield "it has no evidence"
    for proof in proofs:
        result = proof.result.lists.result
        if not proof.fits:
            yield f"the evidence {proof.name} is for other artifacts"
        elif result not in {"PASSED", "WARNED"}:
            yield f"the evidence {proof.name} says {result or 'nothing'}"


def _contradictions(folder: Path, manifest: Manifest) -> list[str]:
    """Return what report and `publish` find against an image: a run without evidence, for one."""
    statements: dict[str, Statement | None] = {}
    for name in manifest.evidence:
        try:
            statements[name] = json.loads(_bytes(folder / name))
        except (OSError, ValueError, RecursionError):
            statements[name] = None
    return faults_of(manifest, statements)


def _sbom(path: Path) -> Sbom | None:
    """Read an SBOM; a malformed one is for no image."""
    try:
        return read(Sbom, json.loads(_bytes(path)))
    except OSError:
        return None
    except (ValueError, RecursionError):
        return Sbom()


def _components(sbom: Sbom | None) -> tuple[Component, ...]:
    return sbom.components if sbom else ()


def _contract(path: Path, readers: CatalogReaders) -> HostContract | None:
    try:
        return readers.contract(_bytes(path), path.name)
    except (BadInput, OSError):
        return None


def _files(folder: Path) -> Iterator[str]:
    """Yield the files to publish with an image: text files, no symbolic links."""
    for name in ("Dockerfile", "Singularity.def", "manifest.json", SBOM, "evidence"):
        path = folder / name
        for file in sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else [path]:
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(folder).as_posix()


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST)
