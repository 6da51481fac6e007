"""Build, pack and verify one image: from its spec to artifacts in the output folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from builder import __version__
from builder.artifacts import oci
from builder.artifacts.compare import keep_contents, keep_previous
from builder.artifacts.manifests import BUILD_AGAIN, ImageState, write_manifest
from builder.artifacts.repack import PlainLayout
from builder.build.engines.protocol import tag
from builder.build.inputs import files_of, program_digest
from builder.build.packing import ImagePacker
from builder.build.run import BuildSettings, Run, Timer, now
from builder.build.stages import RunStages
from builder.build.workspace import ImageLog, ImageWorkspace, remove, workspace, write_spec
from builder.compile.spec import COMPILER, base_archive
from builder.model import Artifact, Spec
from builder.model.digests import digest_of
from builder.model.errors import StepFailed
from builder.model.manifest import (
    FILES,
    SBOM,
    ImageInputs,
    Manifest,
    ProvenImage,
    RecipeVersion,
    UsedBase,
)
from builder.model.predicates import builder_of
from builder.system.files import write_atomically
from builder.verify.finished_images import prove_again, proven_state
from builder.verify.preparation import not_tried
from builder.verify.proof import in_folder, prove
from builder.verify.shared_images import share_image
from builder.verify.targets import ProofTarget, digests_of, target_of

_ALONE = "Dockerfile.alone"  # only the last stage; it starts from the images of the others


class ImageJob:
    """The steps that build, pack and verify one image. Each step may run in its own thread.

    The work folder is locked against other builders from the first step to the last. The steps
    raise `StepFailed` if the build or the packing fails; failed checks are in the manifest. The
    manifest is written last: a folder without it is not finished.
    """

    def __init__(self, run: Run, spec: Spec, stages: RunStages) -> None:
        self.manifest: Manifest | None = None
        self.was_made = True  # False if another builder made it in the meantime
        self.timer = Timer()
        self._run, self._spec, self._image, self._stages = run, spec, spec.image, stages
        self._folder = run.settings.out / spec.image.identifier
        self._held = contextlib.ExitStack()
        self._log = ImageLog(self._folder)
        self._started = now()
        self._began: float | None = None
        self._work: ImageWorkspace | None = None
        self._layout: Artifact | None = None
        self._plain: PlainLayout | None = None
        self._artifacts: dict[str, Artifact] = {}

    def begin(self) -> None:
        """Record the start of the work on the image, unless that was done before."""
        if self._began is None:
            self._began, self._started = time.monotonic(), now()

    def seconds(self) -> float:
        """Return the seconds since the work on the image began."""
        return time.monotonic() - (self._began or time.monotonic())

    def close(self) -> None:
        """Release the work folder; what is complete in it stays for the next run."""
        self._held.close()
        self._log.end()

    def make_base(self) -> bool:
        """Make the base, which other images may need, too; its time counts for this image."""
        self.begin()
        self._log.begin()
        with self.timer.step("base"):
            return self._stages.make_base(self._image, self._log.path)

    def make_stage(self, number: int) -> bool:
        """Make a stage that other images may need, too."""
        self.begin()
        self._log.begin()
        logs = self._stage_logs()
        self._log.add_stages(logs[:number])
        with self.timer.step("stages"):
            if is_built := self._stages.make(self._spec, number, self._log):
                self._log.built_stage()
        return is_built

    def _stage_logs(self) -> list[Path]:
        """Return the logs of all stages but the last, which no other image has."""
        return [self._stages.records.log(stage) for stage in self._stages.of(self._image)[:-1]]

    def build(self) -> None:
        """Build the last stage, on the stages that the engine has, and write the OCI layout."""
        self.begin()
        run, image = self._run, self._image
        work = self._work = self._held.enter_context(
            workspace(
                run.tools.home,
                image,
                engine=run.engine.name,
                owner=run.tools.ordinary_user,
                fresh=not run.settings.cache,
                waiting=lambda holder: run.progress.step(
                    image.identifier, f"waiting for {holder}, which builds this image"
                ),
                stopped=lambda: run.tools.processes.stopping,
            )
        )
        state = state_of_image(run.settings, self._spec)
        if state.manifest and state.work == "none":  # another builder made it meanwhile
            self.manifest, self.was_made = state.manifest, False
            return
        self._log.begin()
        keep_previous(self._folder)
        base = self._stages.base(image)
        origin = base.digest if base else image.base_image
        work.start_from(f"{origin} {run.settings.epoch} {self._stages.native_of(image)}")
        for place in (work.context, self._folder):
            archive = base.archive if base else None
            write_spec(self._spec, archive, place, base_archive(image), run.sources)
        if base:
            base.check()
        self._log.add_stages(self._stage_logs())
        try:
            with self._log.also_in(work.log):
                layout = self._packer(work).layout(self._stages.bases_of(image))
        except StepFailed as error:
            [*_, stage] = self._stages.of(image)
            raise self._stages.with_place(error, self._spec, stage) from error
        self._layout, self._plain = layout
        if "build" in self.timer.seconds:
            self._stages.done(self._spec, tag(image), self.timer.seconds["build"])
        else:  # reused from an earlier run, with its log
            self._log.add(work.log)

    def pack(self) -> None:
        """Pack the other formats from the OCI layout."""
        if self.manifest is None:
            assert self._work is not None
            assert self._layout is not None
            packer = self._packer(self._work)
            self._artifacts = packer.artifacts(self._layout, self._plain)
            remove(self._work.plain)  # disk space for the verification
            for name, artifact in self._artifacts.items():  # reused from an earlier run
                self.timer.seconds.setdefault(name, artifact.duration_s)

    def prove(self) -> None:
        """Verify the artifacts, move them to the output folder, and write the manifest."""
        if self.manifest is None:
            work, image, folder = self._work, self._image, self._folder
            assert work is not None
            programs: dict[str, str] = work.remember("programs", dict)
            shutil.rmtree(folder / "evidence", ignore_errors=True)  # of an older image
            proof = self._proof(work, programs) if self._run.settings.verify else None
            bill: dict[str, list[object]] = work.remember("sbom", dict)
            text = json.dumps(bill, indent=1, sort_keys=True) + "\n"
            write_atomically(folder / SBOM, text)
            for name in FILES.values():  # remove those of an older image
                remove(folder / name)
            for artifact in self._artifacts.values():
                shutil.move(artifact.path, folder / artifact.path.name)
            shutil.rmtree(work.path, ignore_errors=True)
            built = self._manifest(target_of(image, {}), len(bill["components"]), programs)
            manifest = built.with_proof(proof) if proof else built
            self.manifest = write_manifest(folder, manifest, manifest.bound_names)
            share_image(self._run, self._spec, self.manifest)
        self.close()

    def prove_again(self) -> None:
        """Verify an image that an earlier run built."""
        self.begin()
        expected = target_of(self._image, digests_of(self._spec.files))
        verified = prove_again(self._run, self._folder, expected=expected)
        if verified.untried:
            raise not_tried(self._image.identifier, verified.untried)
        self.manifest = verified.record
        share_image(self._run, self._spec, self.manifest)

    def _proof(self, work: ImageWorkspace, programs: Mapping[str, str]) -> ProvenImage:
        specs = {**digests_of(self._spec.files), **programs}
        target = target_of(self._image, specs, indices=tuple(self._stages.indices(self._image)))
        layout = oci.read_layout(self._artifacts["oci"].path)
        target = dataclasses.replace(
            target, environment=layout.environment, directory=layout.directory
        )
        with self.timer.step("verify"):
            verified = prove(
                self._run, target, self._artifacts, work=work.path, folder=self._folder
            )
        if verified.untried:
            raise not_tried(target.identifier, verified.untried)
        if verified.tree:
            keep_contents(self._folder, self._artifacts["oci"].path, verified.tree.entries)
        return verified.record

    def _packer(self, work: ImageWorkspace) -> ImagePacker:
        stages = self._stages.of(self._image)
        (work.context / _ALONE).write_text(self._stages.alone(self._spec, len(stages) - 1))
        return ImagePacker(
            run=self._run,
            image=self._image,
            work=work,
            timer=self.timer,
            log=self._log.path,
            file=_ALONE,
            sources=self._spec.sources,
        )

    def _manifest(
        self, target: ProofTarget, packages: int, programs: Mapping[str, str]
    ) -> Manifest:
        run, image = self._run, self._image
        is_foreign = image.cell.arch != run.host.arch
        return Manifest(
            image=image.identifier,
            about=image.stages[-1].about,
            cell=image.cell,
            content_key=image.content_key,
            engine=run.engine.name,
            emulated=is_foreign,
            emulated_build=is_foreign,
            inputs=self._inputs(programs),
            tools=run.versions,
            packages=packages,
            started=self._started,
            builder=builder_of(os.environ),
            durations_s=self.timer.seconds,
            in_image_checks=target.checks,
            artifacts=in_folder(self._artifacts),
            checks={},
            outcome="built",
            proven_on_gpu=False if target.needs_gpu else None,
        )

    def _inputs(self, programs: Mapping[str, str]) -> ImageInputs:
        run, image, stages, spec = self._run, self._image, self._stages, self._spec
        base = stages.base(image)
        return ImageInputs(
            recipes=tuple(
                RecipeVersion(name=stage.name, version=stage.version) for stage in image.stages
            ),
            base=UsedBase(
                name=image.base.name,
                image=image.base_image,
                key=base.key if base else "",
                digest=base.digest if base else "",
                created=base.made if base else "",
            ),
            stages={stage.target: stage.key for stage in stages.of(image)},
            specs={
                "Dockerfile": digest_of(spec.dockerfile.encode()),
                "Singularity.def": digest_of(spec.singularity.encode()),
                **digests_of(spec.files),
            },
            sources={source.url: f"sha256:{source.sha256}" for source in spec.sources},
            compiler=COMPILER,
            version=__version__,
            files=files_of(run.declared, [stage.name for stage in image.stages], [image.base.name]),
            program=program_digest(),
            programs=programs,
            source_date_epoch=run.settings.epoch,
            native_tools=stages.native_of(image),
            indices=tuple(
                {**asdict(state), "used_by": users}
                for state, users in stages.indices(image).items()
            ),
        )


def state_of_image(settings: BuildSettings, spec: Spec) -> ImageState:
    """Return the remaining work for an image, after all bytes of its folder were read."""
    if not settings.cache:
        return BUILD_AGAIN
    return proven_state(settings.out, spec.image, settings, digests_of(spec.files))
