"""From a spec to artifacts: build the root file system once, then pack it in each format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import flatten, oci, sbom
from builder.artifacts.manifests import programs_in
from builder.artifacts.repack import PlainLayout, repack, unpack
from builder.build.base_store import StoredBase
from builder.build.engines import apptainer, charliecloud
from builder.build.engines.protocol import tag
from builder.build.run import Run, Timer, build_dockerfile
from builder.build.workspace import ImageWorkspace, remove
from builder.compile.spec.driver import sections_of
from builder.model import Artifact, LockedSource, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file
from builder.model.errors import StepFailed

BASE_DIGEST = "org.opencontainers.image.base.digest"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePacker:
    """Builds and packs one image in its workspace; every complete artifact is kept.

    `file` is the Dockerfile to build there, `log` takes the output of the programs, `sources` are
    the locked files that its steps use.
    """

    run: Run
    image: PlannedImage
    work: ImageWorkspace
    timer: Timer
    log: Path
    file: str = "Dockerfile"
    sources: tuple[LockedSource, ...] = ()

    def layout(self, bases: Sequence[StoredBase]) -> tuple[Artifact, PlainLayout | None]:
        """Return the OCI layout, and its plain form if both were made now.

        `bases` are the stored bases to load into the engine.
        """
        plain: PlainLayout | None = None

        def make(target: Path) -> str:
            nonlocal plain
            plain = self._built(bases, target)
            return oci.read_layout(target).digest

        artifact = self.work.artifact("oci", make)
        # A base of several architectures can silently resolve to the builder's own.
        built = oci.read_layout(artifact.path).architecture
        if built != (arch := ARCHITECTURES[self.image.cell.arch].oci):
            name = self.image.identifier
            raise StepFailed(f"{name}: the image that was built is for {built}, not {arch}")
        return artifact, plain

    def artifacts(self, packed: Artifact, plain: PlainLayout | None) -> dict[str, Artifact]:
        """Return the artifacts by format, in the run's order, packed from the OCI layout.

        Apptainer unpacks on one core, so the tarball is written at the same time as the SIF.
        """
        artifacts = {"oci": packed}
        layout = oci.read_layout(packed.path)
        plain = plain or unpack(layout, self.work.plain)
        with ThreadPoolExecutor(max_workers=1) as beside:
            sif = beside.submit(self._sif, plain) if "sif" in self.run.settings.formats else None
            nodes = flatten.flattened(plain.layout)
            self.work.remember("sbom", lambda: self._bill(layout, nodes))
            self.work.remember("programs", lambda: programs_in(nodes))
            if "charliecloud" in self.run.settings.formats:
                self._tell("packing the Charliecloud tarball")
                with self.timer.step("charliecloud"):
                    artifacts["charliecloud"] = self.work.artifact(
                        "charliecloud",
                        lambda target: charliecloud.pack(plain, nodes, layout, target),
                    )
            if sif:
                artifacts["sif"] = sif.result()
        return {name: artifacts[name] for name in self.run.settings.formats}

    def _tell(self, text: str) -> None:
        self.run.progress.step(self.image.identifier, text)

    def _built(self, bases: Sequence[StoredBase], target: Path) -> PlainLayout:
        """Build the image and write its layout; return the plain form."""
        engine, log, run = self.run.engine, self.log, self.run
        exported = self.work.path / "exported"
        self.work.forget()
        self._tell(f"building with {engine.name}")
        with self.timer.step("build"):
            build_dockerfile(
                run, self.image, self.work.context, log=log, file=self.file, bases=bases
            )
        self._tell("packing the OCI layout")
        with self.timer.step("oci"):
            remove(exported)
            engine.export(tag(self.image), exported, log=log)
            return repack(
                exported,
                target,
                plain=self.work.plain,
                epoch=run.settings.epoch,
                shared=run.layers,
                notes=_base_digest(self.image, bases),
            )

    def _bill(self, layout: oci.Layout, nodes: Mapping[str, flatten.TreeNode]) -> object:
        return sbom.bill_of_materials(
            nodes,
            identifier=self.image.identifier,
            version=self.image.cell.recipe_version,
            distribution=self.image.base.distribution,
            digest=layout.digest,
            built_from=self.sources,
        )

    def _sif(self, plain: PlainLayout) -> Artifact:
        def make(target: Path) -> str:
            apptainer.pack(
                plain.layout.path,
                target,
                sections_of(self.image),
                arch=self.image.cell.arch,
                tools=self.run.tools,
                log=self.log,
            )
            return ""  # Apptainer wrote it: the first reader computes its digest

        self._tell("packing the SIF")
        with self.timer.step("sif"):
            artifact = self.work.artifact("sif", make)
        if self.run.settings.verify:  # the verification reads all of it and computes its digest
            return artifact
        return dataclasses.replace(artifact, digest=digest_of_file(artifact.path))


def _base_digest(image: PlannedImage, bases: Sequence[StoredBase]) -> dict[str, str]:
    """Return the annotation with the digest of an image's base, if it is known.

    https://github.com/opencontainers/image-spec/blob/v1.1.0/annotations.md
    """
    digest = image.final_reference.partition("@")[2]
    if image.is_bootstrapped:
        digest = next((one.digest for one in bases if one.name == image.base_image), "")
    return {BASE_DIGEST: digest} if digest else {}
