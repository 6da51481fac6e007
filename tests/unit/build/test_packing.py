"""Packing: who takes the digest of what Apptainer writes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from samples import image
from test_stages import Site

from builder.artifacts.oci import blob_path, read_layout
from builder.artifacts.repack import PlainLayout
from builder.build.base_store import StoredBase
from builder.build.packing import BASE_DIGEST, ImagePacker, _base_digest
from builder.build.run import BuildSettings, Timer
from builder.build.workspace import ImageWorkspace
from builder.compile.spec.driver import sections_of
from builder.model.digests import sha256_of_file
from builder.model.errors import StepFailed
from builder.model.manifest import FILES
from builder.verify.formats import FormatTree
from builder.verify.proof import _proven

CONTENT = b"a SIF"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def packer(work: Path, *, verify: bool, monkeypatch: pytest.MonkeyPatch) -> ImagePacker:
    """A packer whose Apptainer writes CONTENT."""

    def pack(_layout: Path, target: Path, *_: object, **__: object) -> None:
        target.write_bytes(CONTENT)

    monkeypatch.setattr("builder.build.packing.apptainer.pack", pack)
    quiet = SimpleNamespace(step=lambda *_: None)
    settings = SimpleNamespace(verify=verify)
    stage = SimpleNamespace(about="")
    image = SimpleNamespace(
        identifier="x",
        stages=[stage],
        checks=(),
        command=(),
        entrypoint=(),
        cell=SimpleNamespace(arch="x86_64"),
    )
    return ImagePacker(
        run=cast("Any", SimpleNamespace(settings=settings, progress=quiet, tools=None)),
        image=cast("Any", image),
        work=ImageWorkspace(path=work),
        timer=Timer(),
        log=work / "build.log",
    )


PLAIN = cast("PlainLayout", SimpleNamespace(layout=SimpleNamespace(path=Path())))


def test_a_sif_that_is_to_be_proven_is_read_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packer(tmp_path, verify=True, monkeypatch=monkeypatch)._sif(PLAIN)
    assert (made.digest, made.size) == ("", len(CONTENT))
    tree = dataclasses.replace(FormatTree(entries={}), artifact=DIGEST)
    assert _proven(made, tree).digest == DIGEST
    assert _proven(made, None).digest == DIGEST, "its tree could not be read"


def test_a_sif_that_is_not_proven_has_its_digest_also_after_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer(tmp_path, verify=True, monkeypatch=monkeypatch)._sif(PLAIN)
    kept = packer(tmp_path, verify=False, monkeypatch=monkeypatch)._sif(PLAIN)
    assert kept.digest == DIGEST


def test_an_image_is_built_once_and_packed_in_the_formats_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[object, ...]] = []

    def pack(layout: Path, target: Path, sections: list[str], **named: object) -> None:
        given.append((layout, sections, named))
        target.write_bytes(CONTENT)

    monkeypatch.setattr("builder.build.packing.apptainer.pack", pack)
    site, planned = Site(tmp_path), image(tmp_path / "project")
    settings = BuildSettings(
        project=tmp_path, out=tmp_path, formats=("sif", "oci", "charliecloud"), native_tools=False
    )
    run, work = site.run(settings), ImageWorkspace(path=tmp_path / "work")
    work.context.mkdir(parents=True)
    (work.context / "Dockerfile").write_text("FROM x AS runtime\n")
    stored = StoredBase(
        name=planned.base_image, arch="x86_64", key="", archive=tmp_path, digest=DIGEST, made=""
    )
    one = ImagePacker(
        run=run,
        image=planned,
        work=work,
        timer=Timer(),
        log=work.log,
    )
    (work.path / "exported").mkdir()  # by a run that was killed
    work.remember("sbom", lambda: "of another image")
    packed, plain = one.layout([stored])
    assert plain
    assert plain.layout.path == work.plain
    lines = work.log.read_text().splitlines()
    assert lines == [f"base {planned.base_image}", "FROM x AS runtime"]
    made = one.artifacts(packed, plain)
    digests = {name: artifact.digest for name, artifact in made.items()}
    assert list(digests) == ["sif", "oci", "charliecloud"]
    layout = read_layout(work.path / "image.oci")
    tarball = sha256_of_file(work.path / "image.tar.gz")
    assert [*digests.values()] == ["", layout.digest, f"sha256:{tarball}"]
    assert {artifact.path.name for artifact in made.values()} == set(FILES.values())
    manifest = json.loads(blob_path(layout.path, layout.digest).read_text())
    assert manifest["annotations"] == {BASE_DIGEST: DIGEST}
    named = {"arch": "x86_64", "tools": run.tools, "log": work.log}
    assert given == [(work.plain, sections_of(planned), named)]
    said = [line.rpartition(": ")[2] for line in site.said.getvalue().splitlines()]
    assert said[:2] == ["building with fake", "packing the OCI layout"]
    assert sorted(said[2:]) == ["packing the Charliecloud tarball", "packing the SIF"]
    assert {*one.timer.seconds} == {"build", "oci", "charliecloud", "sif"}
    steps = json.loads((work.path / "steps.json").read_text())
    assert {"sbom", "programs", *made} == {*steps}
    subject = steps["sbom"]["metadata"]["component"]
    assert (subject["name"], subject["version"]) == (planned.identifier, "1.0")
    assert one.layout([stored]) == (packed, None)
    less = dataclasses.replace(settings, formats=("oci",))
    assert [*dataclasses.replace(one, run=site.run(less)).artifacts(packed, None)] == ["oci"]
    assert site.built() == ["runtime of core"]
    foreign = dataclasses.replace(planned, cell=dataclasses.replace(planned.cell, arch="ppc64le"))
    error = "core-1.0-debian13-ppc64le: the image that was built is for amd64, not ppc64le"
    with pytest.raises(StepFailed, match=error):
        dataclasses.replace(one, image=foreign).layout([stored])


@pytest.mark.parametrize(
    ("flavour", "lock", "expected"),
    [
        ("runtime", {}, {}),
        ("runtime", {"base": "1", "runtime": "2"}, {BASE_DIGEST: f"sha256:{'2' * 64}"}),
        ("development", {"base": "1", "runtime": "2"}, {BASE_DIGEST: f"sha256:{'1' * 64}"}),
    ],
)
def test_the_base_is_the_one_that_the_last_stage_starts_from(
    flavour: str, lock: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    """Of NVIDIA's images the development stage has another one than the run-time stage."""
    names = {
        name: f"docker.io/x/{name}:1" + (f"@sha256:{lock[name] * 64}" if name in lock else "")
        for name in ("base", "runtime")
    }
    planned = image(tmp_path)
    planned = dataclasses.replace(
        planned,
        cell=dataclasses.replace(planned.cell, flavour=flavour),
        base=dataclasses.replace(planned.base, bootstrap=None),
        base_reference=names["base"],
        runtime_reference=names["runtime"],
    )
    assert _base_digest(planned, []) == expected
    wanted = "runtime" if flavour == "runtime" else "base"
    assert planned.final_reference == names[wanted]


def test_a_base_that_was_made_here_is_known_by_its_digest(tmp_path: Path) -> None:
    planned = image(tmp_path)
    stored = StoredBase(
        name=planned.base_image,
        arch="x86_64",
        key="",
        archive=tmp_path,
        digest=DIGEST,
        made="",
    )
    assert _base_digest(planned, [stored]) == {BASE_DIGEST: DIGEST}
    assert _base_digest(planned, []) == {}
