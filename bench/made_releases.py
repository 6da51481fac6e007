"""A small project and finished images of it, quickly made: for publishing and pulling.

Nothing is built: layers, SIF and tarball hold random bytes, and the evidence says that all is well.
What is published is the same as of real images: layouts, manifests, evidence of their digests.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from builder import __version__
from builder.artifacts.manifests import read_manifest, size_of, write_manifest
from builder.artifacts.oci import LayerBlob, blob_path, finish_layout, read_layout, start_layout
from builder.build.planning import load_images
from builder.compile.spec import COMPILER
from builder.distribute.pull.layers import tree_of_layout
from builder.model import FORMATS, PASSED, Artifact, Outcome, PlannedImage, Selection
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file
from builder.model.manifest import ImageInputs, Manifest, UsedBase
from builder.system.host_facts import host_facts
from builder.verify.evidence import RunEvidence, write_evidence
from builder.verify.proof import in_folder

PROJECT = Path(__file__).resolve().parents[1]
FILES = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}
CHECKS = ("formats-equal", "environment", "architecture")
OUTCOMES = [Outcome(check=name, outcome=PASSED, reason="all is well") for name in CHECKS]
Pack = Callable[[Path, Path], object]  # from an OCI layout to a SIF
_BASE = """\
base: sample
about: from a registry
distribution: ubuntu
version: "22.04"
hpccm: ubuntu22
architectures: [x86_64, ppc64le]
references:
  x86_64: docker.io/library/sample:22.04
  ppc64le: docker.io/library/sample:22.04
"""
_CHECKS = """\
checks:
  python3:  # of no recipe
    about: Python 3 starts
    sources: [python3-check.py]
    run: python3 $SRC/python3-check.py
    timeout: 120
"""
_RECIPE = """\
recipe: {name}
version: "1.0"
about: made in no time
{parent}development:
  - packages: {{ospackages: [make]}}
"""
_MATRIX = """\
axes: {{arch: [{architectures}], base: [sample], cuda: [none], mpi: [none]}}
default: {{recipe: [{recipes}]}}
tags: {{{tags}}}
inherit: false
"""


def make_project(
    folder: Path, *, recipes: Sequence[str], architectures: Sequence[str] = ("x86_64", "ppc64le")
) -> Path:
    """A project whose recipes are children of the first; each has a tag `latest`."""
    for name in ("recipes", "base-images", "tests/images"):
        (folder / name).mkdir(parents=True)
    shutil.copy(PROJECT / "tests/images/run-checks", folder / "tests/images")
    shutil.copy(PROJECT / "tests/images/python3-check.py", folder / "tests/images")
    (folder / "tests/images/checks.yaml").write_text(_CHECKS)
    (folder / "base-images" / "sample.yaml").write_text(_BASE)
    for name in recipes:
        parent = f"parent: {recipes[0]}\n" if name != recipes[0] else ""
        text = _RECIPE.format(name=name, parent=parent)
        (folder / "recipes" / f"{name}.yaml").write_text(text)
    tags = ", ".join(f"{name}: {{latest: {{base: sample}}}}" for name in recipes)
    text = _MATRIX.format(
        architectures=", ".join(architectures), recipes=", ".join(recipes), tags=tags
    )
    (folder / "matrix.yaml").write_text(text)
    return folder


def images_of(project: Path) -> tuple[PlannedImage, ...]:
    """All images of a project."""
    return load_images(project, Selection(everything=True))


def make_images(
    project: Path,
    *,
    seed: int = 0,
    size: int = 20_000,
    layers: int = 2,
    formats: Sequence[str] = FORMATS,
    pack: Pack | None = None,
) -> list[Path]:
    """Finished images of all cells, below the project's `out`; their folders.

    Those of an architecture share the layers of the first recipe. `size` is that of a layer, of a
    SIF and of a tarball, in bytes. `pack` makes a SIF that is one.
    """
    images = images_of(project)
    return [make_image(project / "out", one, seed, size, layers, formats, pack) for one in images]


def make_image(
    out: Path,
    image: PlannedImage,
    seed: int,
    size: int,
    layers: int,
    formats: Sequence[str],
    pack: Pack | None,
) -> Path:
    """One finished image."""
    folder, arch = out / image.identifier, image.cell.arch
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    layout = folder / FILES["oci"]
    start_layout(layout)
    names = [f"{stage.name}-{n}" for stage in image.stages for n in range(layers)]
    made = [_layer(layout, f"{seed}-{arch}-{name}", size) for name in names]
    config = {
        "architecture": ARCHITECTURES[arch].oci,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in made]},
        "history": [{"created_by": name} for name in names],  # ch-image wants it
    }
    digests = {"oci": finish_layout(layout, config, made)}
    for name in [one for one in formats if one != "oci"]:
        if pack and name == "sif":
            pack(layout, folder / FILES[name])
        else:
            content = random.Random(f"{seed}-{image.identifier}-{name}").randbytes(size)
            (folder / FILES[name]).write_bytes(content)
        digests[name] = digest_of_file(folder / FILES[name])
    artifacts = [
        Artifact(
            format=name,
            path=folder / FILES[name],
            digest=digest,
            size=size_of(folder / FILES[name]),
            tree_digest=f"sha256:{hashlib.sha256(image.identifier.encode()).hexdigest()}",
        )
        for name, digest in digests.items()
    ]
    evidence = [_evidence(folder, image, name, artifacts) for name in digests]
    (folder / "sbom.cdx.json").write_text(json.dumps(_bill(image)))
    write_manifest(folder, _manifest(image, artifacts, evidence), ["sbom.cdx.json", *evidence])
    return folder


def _layer(layout: Path, name: str, size: int) -> LayerBlob:
    """A layer of one file, and its blob."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        member = tarfile.TarInfo(
            f"usr/{name}"
        )  # ch-image takes a single folder that is not usual for a wrapper
        member.size = size
        archive.addfile(member, io.BytesIO(random.Random(name).randbytes(size)))
    packed = gzip.compress(plain.getvalue(), compresslevel=1, mtime=0)
    digest = f"sha256:{hashlib.sha256(packed).hexdigest()}"
    blob_path(layout, digest).write_bytes(packed)
    diff_id = f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"
    return LayerBlob(diff_id=diff_id, digest=digest, size=len(packed))


def _evidence(folder: Path, image: PlannedImage, name: str, artifacts: Sequence[Artifact]) -> str:
    evidence = RunEvidence(
        identifier=image.identifier,
        artifacts=artifacts,
        outcomes=OUTCOMES,
        format=name,
        runner="none",
        runner_version="0",
        host=host_facts(),
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:01+00:00",
        emulator="qemu" if image.cell.arch != host_facts().arch else "",
        no_gpu="no check of the image needs one",
    )
    return write_evidence(folder, name, evidence)


def _bill(image: PlannedImage) -> dict[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image.identifier}},
        "components": [],
    }


def _inputs(image: PlannedImage) -> ImageInputs:
    """What it was made from, as far as something that was not built was made from anything."""
    nothing = f"sha256:{hashlib.sha256(b'').hexdigest()}"
    return ImageInputs(
        base=UsedBase(name=image.base.name, image=image.base_image),
        version=__version__,
        compiler=COMPILER,
        files={"matrix.yaml": nothing},
        program=nothing,
        sources={},
        specs={},
    )


def _manifest(
    image: PlannedImage, artifacts: Sequence[Artifact], evidence: Sequence[str]
) -> Manifest:
    return Manifest(
        image=image.identifier,
        cell=image.cell,
        content_key=image.content_key,
        engine="buildah",
        emulated=image.cell.arch != host_facts().arch,
        inputs=_inputs(image),
        started="2026-01-01T00:00:00+00:00",
        artifacts=in_folder({one.format: one for one in artifacts}),
        checks={one.format: tuple(OUTCOMES) for one in artifacts},
        outcome="verified",
        evidence=tuple(evidence),
        in_image_checks=(),
    )


def correct_evidence(project: Path) -> None:
    """Have the evidence and the manifest of made images name their trees."""
    for folder in (project / "out").iterdir():
        if not (folder / "image.oci").is_dir():
            continue
        tree = tree_of_layout(read_layout(folder / "image.oci"))
        for file in (folder / "evidence").glob("*.json"):
            statement = json.loads(file.read_text())
            for subject in statement["subject"]:
                if subject["name"].endswith("/tree"):
                    subject["digest"] = {"sha256": tree.partition(":")[2]}
            file.write_text(json.dumps(statement))
        manifest = read_manifest(folder)
        assert manifest is not None
        artifacts = {
            name: replace(one, tree_digest=tree) for name, one in manifest.artifacts.items()
        }
        write_manifest(folder, replace(manifest, artifacts=artifacts), manifest.evidence)
