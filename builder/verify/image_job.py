"""One image's way: from its spec to proven artifacts in the output folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from builder import __version__
from builder.artifacts import oci
from builder.artifacts.manifests import Wanted, write_manifest
from builder.artifacts.repack import Plain
from builder.build.engines.protocol import tag
from builder.build.inputs import files_of, program_digest
from builder.build.packing import Packer
from builder.build.run import Run, Timer, now
from builder.build.stages import Stages
from builder.build.workspace import (
    FILES,
    Workspace,
    output_folder,
    remove,
    workspace,
    write_spec,
)
from builder.compile.spec import COMPILER, base_archive
from builder.compile.spec.image_scripts import script_of
from builder.model import Artifact, PlannedImage, Spec
from builder.model.digests import digest_of
from builder.model.errors import StepFailed
from builder.model.manifest import (
    MANIFEST,
    SBOM,
    AskedRanks,
    ImageInputs,
    InImageCheck,
    Manifest,
    ProvenImage,
    RecipeVersion,
    UsedBase,
)
from builder.model.package_indices import IndexState
from builder.system.files import write_atomically
from builder.verify import Target
from builder.verify.finished_images import proven_state
from builder.verify.harness import harness_of
from builder.verify.machine_faults import not_tried
from builder.verify.proof import in_folder, prove, proven_part

ALONE = "Dockerfile.alone"  # the last stage on the images that the others are
WAITING = "waiting for another build-images that makes this image"


class Cell:
    """One image on its way: built, packed, proven. Each step may run in a thread of its own.

    From the first step to the last, its work folder is held against other builders. The steps
    raise `StepFailed` when the build or the packing fails; failed checks are in the manifest. That
    is written last: without it, nothing in the folder is taken for done.
    """

    def __init__(self, run: Run, spec: Spec, stages: Stages) -> None:
        self.manifest: Manifest | None = None
        self.was_made = True  # by this run, and not by another builder meanwhile
        self.timer = Timer()
        self._run, self._spec, self._image, self._stages = run, spec, spec.image, stages
        self._folder = run.out / spec.image.identifier
        self._held = contextlib.ExitStack()
        self._started = now()
        self._began: float | None = None
        self._work: Workspace | None = None
        self._layout: Artifact | None = None
        self._plain: Plain | None = None
        self._artifacts: dict[str, Artifact] = {}

    def begin(self) -> None:
        """Something is done for the image, from now on."""
        if self._began is None:
            self._began, self._started = time.monotonic(), now()

    def seconds(self) -> float:
        """Return how long it is since the first thing was done for it."""
        return time.monotonic() - (self._began or time.monotonic())

    def close(self) -> None:
        """Let go of the work folder; whatever is whole in it stays for the next run."""
        self._held.close()

    def build(self) -> None:
        """Build the last stage, on those that the engine has, and write the OCI layout."""
        self.begin()
        self._work = self._open()
        if done := self._made_meanwhile():
            self.manifest, self.was_made = done, False
            return
        work = self._work
        with self._logged():
            output_folder(self._folder)
            (self._folder / MANIFEST).unlink(missing_ok=True)
            base = self._stages.base(self._image)
            origin = base.digest if base else self._image.base_image
            lent = self._stages.native_of(self._image)
            work.start_from(f"{origin} {self._run.epoch} {lent}")
            for place in (work.context, self._folder):
                archive = base.archive if base else None
                write_spec(self._spec, archive, place, base_archive(self._image), self._run.sources)
            if base:
                base.check()
            self._layout, self._plain = self._packer(work).layout(self._stages.given(self._image))
            if "build" in self.timer.seconds:  # and not kept from a run before
                self._stages.done(self._spec, tag(self._image), self.timer.seconds["build"])

    def pack(self) -> None:
        """Pack the other formats from the OCI layout."""
        if self.manifest is None:
            assert self._work is not None
            assert self._layout is not None
            with self._logged():
                packer = self._packer(self._work)
                self._artifacts = packer.artifacts(self._layout, self._plain)
                for name, artifact in self._artifacts.items():  # of those kept from a run before
                    self.timer.seconds.setdefault(name, artifact.duration_s)

    def prove(self) -> None:
        """Verify the artifacts, hand them over, and write the manifest."""
        if self.manifest is None:
            work, image = self._work, self._image
            assert work is not None
            with self._logged():
                indices = tuple(self._stages.indices(image))
                programs: dict[str, str] = work.remember("programs", dict)
                specs = {**spec_digests(self._spec), **programs}
                target = target_of(image, {}, specs=specs, indices=indices)
                proof = _proof(self._run, target, self._artifacts, work, self.timer, self._folder)
            bill: dict[str, list[object]] = work.remember("sbom", dict)
            write_atomically(self._folder / SBOM, _json(bill))
            _hand_over(work, self._artifacts.values(), self._folder)
            built = self._manifest(len(bill["components"]), programs)
            made = built.with_proof(proof) if proof else built
            self.manifest = write_manifest(self._folder, made, made.bound_names)
        self.close()

    def _open(self) -> Workspace:
        run, name = self._run, self._image.identifier
        return self._held.enter_context(
            workspace(
                run.tools.home,
                self._image,
                engine=run.engine.name,
                owner=run.tools.ordinary_user,
                fresh=not run.cache,
                waiting=lambda: run.progress.step(name, WAITING),
                stopped=lambda: run.tools.processes.stopping,
            )
        )

    def _made_meanwhile(self) -> Manifest | None:
        """The manifest that another builder wrote while this one waited for it."""
        if not self._run.cache:
            return None
        state = proven_state(
            self._run.out, self._image, wanted_by(self._run), spec_digests(self._spec)
        )
        return state.manifest if state.work == "none" and state.manifest else None

    def _packer(self, work: Workspace) -> Packer:
        stages = self._stages.of(self._image)
        (work.context / ALONE).write_text(self._stages.alone(self._spec, len(stages) - 1))
        logs = tuple(self._stages.records.log(one) for one in stages[:-1])
        return Packer(
            run=self._run,
            image=self._image,
            work=work,
            timer=self.timer,
            file=ALONE,
            logs=logs,
            sources=self._spec.sources,
        )

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """A step whose log is in the image's folder afterwards, and is named in its error."""
        assert self._work is not None
        try:
            yield
        except StepFailed as error:
            error.log = error.log and self._folder / "build.log"  # which is the user's
            raise
        finally:
            if self._folder.exists():
                shutil.copyfile(self._work.log, self._folder / "build.log")

    def _manifest(self, packages: int, programs: Mapping[str, str]) -> Manifest:
        """The manifest of an image that was built, and not yet verified."""
        run, image = self._run, self._image
        target = target_of(image, {})
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
            stages={one.target: one.key for one in stages.of(image)},
            specs={
                "Dockerfile": digest_of(spec.dockerfile.encode()),
                "Singularity.def": digest_of(spec.singularity.encode()),
                **spec_digests(spec),
            },
            sources={one.url: f"sha256:{one.sha256}" for one in spec.sources},
            compiler=COMPILER,
            version=__version__,
            files=files_of(run.declared, [stage.name for stage in image.stages], [image.base.name]),
            program=program_digest(),
            programs=programs,
            source_date_epoch=run.epoch,
            native_tools=stages.native_of(image),
            indices=tuple(
                {**asdict(state), "used_by": users}
                for state, users in stages.indices(image).items()
            ),
        )


def wanted_by(run: Run) -> Wanted:
    """What a run wants of every image."""
    return Wanted(
        formats=run.formats,
        engine=run.engine.name,
        verify=run.verify,
        epoch=run.epoch,
        native_tools=run.native_tools,
    )


def spec_digests(spec: Spec) -> dict[str, str]:
    """The digests of the files that a spec copies in, by their names."""
    return {name: digest_of(text.encode()) for name, text in spec.files.items()}


def target_of(
    image: PlannedImage,
    environment: Mapping[str, str],
    directory: str = "/",
    *,
    specs: Mapping[str, str] | None = None,
    indices: tuple[IndexState, ...] = (),
) -> Target:
    """What the verification needs to know of an image; `specs` as in `harness_of`."""
    return Target(
        identifier=image.identifier,
        arch=image.cell.arch,
        environment=environment,
        directory=directory,
        mpi=image.cell.mpi,
        harness=harness_of(specs or {}),
        indices=indices,
        checks=tuple(
            InImageCheck(
                name=check.name,
                script=script_of(image, check),
                needs=check.needs,
                timeout_s=check.timeout_s,
                asked=(
                    AskedRanks.of_command(check.run, image.mpi.family, image.mpi.version)
                    if image.mpi
                    else AskedRanks()
                ),
            )
            for check in image.checks
        ),
    )


def _proof(
    run: Run,
    target: Target,
    artifacts: Mapping[str, Artifact],
    work: Workspace,
    timer: Timer,
    folder: Path,
) -> ProvenImage | None:
    """What the verification found; None if there is to be none."""
    if not run.verify:
        return None
    layout = oci.read_layout(artifacts["oci"].path)
    target = dataclasses.replace(target, environment=layout.environment, directory=layout.directory)
    shutil.rmtree(folder / "evidence", ignore_errors=True)
    with timer.step("verify"):
        proof = prove(run, target, artifacts, work=work.path, folder=folder)
    if proof.untried:
        raise not_tried(target.identifier, proof.untried)
    return proven_part(target.identifier, run, proof)


def _hand_over(work: Workspace, artifacts: Iterable[Artifact], folder: Path) -> None:
    """Move the artifacts to the output folder, where none of an older image stays; end the work."""
    for name in FILES.values():
        remove(folder / name)
    for artifact in artifacts:
        shutil.move(artifact.path, folder / artifact.path.name)
    shutil.rmtree(work.path, ignore_errors=True)


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
