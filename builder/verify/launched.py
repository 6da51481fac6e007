"""The ranks of an image, each in a container that this host's launcher starts.

What is found is added to what an earlier verification found: outcomes under `launched` in the
manifest, and evidence in files of its own for each outcome.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import facts
from builder.artifacts.manifests import write_manifest
from builder.build.run import Run, now
from builder.build.workspace import FILES
from builder.load.facts import read_facts
from builder.load.faults import Faults
from builder.model import FAILED, SKIPPED, Artifact, Outcome
from builder.model.errors import BadInput, MissingPrerequisite
from builder.model.manifest import Manifest
from builder.model.package_indices import states_in
from builder.model.versions import split_mpi
from builder.verify import RUNNERS, Setting, digest_of_file, write_evidence
from builder.verify.evidence import StartedBy
from builder.verify.finished_images import (
    finished,
    subjects,
    with_emulation,
    within_reach,
    work_folder,
)
from builder.verify.proof import emulator_of
from builder.verify.ranks import PROGRAM, ImageMpi, Ranks, Start, verify_ranks

LAUNCHED = ("apptainer", "charliecloud")  # what an ordinary user starts, on every node
CHECK = "mpi"  # whose program the ranks run
_NO_GPU = "its program needs none"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """How ranks are to be started: by each of `launchers`.

    `nodes` and `timeout_s` are 0, and `bind_mpi` is empty, where nothing was said of them.
    `options` go to the launcher as they are.
    """

    launchers: tuple[str, ...]
    ranks: int
    nodes: int = 0
    bind_mpi: str = ""
    options: tuple[str, ...] = ()
    timeout_s: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The manifest with what was found now, and that by format; `emulated` if any rank was."""

    manifest: Manifest
    outcomes: Mapping[str, Sequence[Outcome]]
    emulated: bool

    @property
    def exit_code(self) -> int:
        """1 if ranks failed, else 4 if this machine could not do what was asked for."""
        outcomes = [one.outcome for some in self.outcomes.values() for one in some]
        if FAILED in outcomes:
            return 1
        return MissingPrerequisite.exit_code if SKIPPED in outcomes else 0


def verify_launched(
    run: Run, project: Path, folder: Path, asked: RankOptions, runners: Sequence[str] = ()
) -> Launched:
    """Start the ranks of an image in every way that was asked for, by each of the `runners`.

    What this machine could not do is told, and not recorded: it says nothing of the image.
    """
    manifest = finished(folder)
    found: dict[str, list[Outcome]] = {}
    written: list[str] = []
    programs: dict[str, str] = {}
    emulated: dict[str, bool] = {}
    with work_folder(run.tools) as work:
        artifacts = _artifacts(manifest, runners, folder, work)
        for ranks in _all_ranks(project, asked, manifest, artifacts):
            name = ranks.kind.format
            started = now()
            run.progress.step(manifest.image, f"{ranks.check} in {ranks.kind.program}")
            outcome, started_by = verify_ranks(ranks, work=work, tools=run.tools)
            found.setdefault(name, []).append(outcome)
            if outcome.outcome == SKIPPED:
                continue
            if name not in programs:
                programs[name] = digest_of_file(
                    name, artifacts[name].path, PROGRAM, work=work, tools=run.tools
                )
            setting = _setting(run, ranks, started_by, started, manifest)
            emulated[f"{name}-{outcome.check}"] = bool(setting.emulator)
            path = write_evidence(
                folder / "evidence",
                f"{name}-{outcome.check}",
                identifier=manifest.image,
                artifacts=subjects(manifest, artifacts[name]),
                outcomes=[outcome],
                scripts=_programs(outcome, programs.get(name, "")),
                setting=setting,
            )
            written.append(path.relative_to(folder).as_posix())
    updated = _with(manifest, found, written, emulated)
    if written:
        updated = write_manifest(folder, updated, written)
    return Launched(manifest=updated, outcomes=found, emulated=any(emulated.values()))


def _artifacts(
    manifest: Manifest, runners: Sequence[str], folder: Path, work: Path
) -> dict[str, Artifact]:
    """What is to be run, each the one that the manifest names: a site may have fetched one alone.

    Raises `BadInput` where one that was asked for is not there, or none is.
    """
    wanted = [RUNNERS[name].format for name in runners or LAUNCHED]
    there = [
        name for name in wanted if name in manifest.artifacts and (folder / FILES[name]).exists()
    ]
    missing = [FILES[name] for name in wanted if name not in there]
    if missing and (runners or not there):
        raise BadInput(f"{folder}: there is no {', no '.join(missing)} here")
    return {name: within_reach(name, manifest.artifacts[name], folder, work) for name in there}


def _all_ranks(
    project: Path,
    asked: RankOptions,
    manifest: Manifest,
    artifacts: Mapping[str, Artifact],
) -> Iterator[Ranks]:
    check = next((one for one in manifest.in_image_checks if one.name == CHECK), None)
    mpi = _image_mpi(project, manifest.cell.mpi)
    for kind in (RUNNERS[name] for name in LAUNCHED):
        if kind.format not in artifacts:
            continue
        for launcher in asked.launchers:
            start = Start(
                launcher=launcher,
                ranks=asked.ranks,
                nodes=asked.nodes,
                options=asked.options,
                timeout_s=asked.timeout_s or (check.timeout_s if check else 0),
            )
            for bind in dict.fromkeys(("", asked.bind_mpi)):
                yield Ranks(
                    arch=manifest.cell.arch,
                    kind=kind,
                    artifact=artifacts[kind.format].path,
                    mpi=mpi,
                    has_program=check is not None,
                    start=start,
                    bind=bind,
                )


def _image_mpi(project: Path, value: str) -> ImageMpi | None:
    """The MPI that an axis value such as `openmpi5.0` stands for; None if it stands for none."""
    name, version = split_mpi(value)
    family = facts.MPI_FAMILIES.get(name)
    if family is None:
        return None
    faults = Faults()
    series = read_facts(project, faults).mpi_series(name, version)
    if faults.found:
        raise BadInput.of(faults.found)
    return ImageMpi(
        family=family,
        version=version,
        soname=series.soname if series else family.sonames[0],
        pmix=series.pmix if series else "",
    )


def _programs(outcome: Outcome, digest: str) -> dict[str, str]:
    """What the ranks ran, as it is in the artifact; nothing if that is not known."""
    return {outcome.check: digest} if digest else {}


def _setting(
    run: Run, ranks: Ranks, started_by: StartedBy, started: str, manifest: Manifest
) -> Setting:
    """Where the ranks ran: the first of their machines stands for all, unless one emulated."""
    program, machines = ranks.kind.program, started_by.machines
    foreign = [one for one in machines if one.arch != ranks.arch]
    chosen = next(iter((*foreign, *machines)), None)
    emulator = emulator_of(run, ranks.arch)
    if machines:
        emulator = (emulator or "qemu") if foreign else ""
    return Setting(
        format=ranks.kind.format,
        runner=program,
        runner_version=run.versions.get(program, ""),
        host=chosen.facts if chosen else run.host,
        started=started,
        finished=now(),
        emulator=emulator,
        launcher=started_by,
        no_gpu=_NO_GPU,
        tools=run.versions,
        indices=states_in(manifest.inputs),
    )


def _with(
    manifest: Manifest,
    found: Mapping[str, list[Outcome]],
    written: list[str],
    emulated: Mapping[str, bool],
) -> Manifest:
    """The manifest with these outcomes in the place of earlier ones of the same names.

    `emulated` says of each outcome, by format and check, whether its ranks were.
    """
    launched = dict(manifest.launched or {})
    for name, outcomes in found.items():
        tried = [one for one in outcomes if one.outcome != SKIPPED]
        new = {one.check for one in tried}
        kept = [one for one in launched.get(name, ()) if one.check not in new]
        launched[name] = (*kept, *tried)
    return dataclasses.replace(
        with_emulation(manifest, manifest, emulated),
        launched=launched,
        evidence=tuple(sorted({*manifest.evidence, *written})),
    )
