"""`build-images verify --bench`: how fast an image's programs are in each format, and bare."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from builder import facts
from builder.artifacts.manifests import write_manifest
from builder.build.run import Run, now
from builder.model import FORMATS, SKIPPED
from builder.model.agreement import BENCH
from builder.model.errors import BadInput
from builder.model.manifest import Manifest
from builder.model.package_indices import states_in
from builder.model.versions import split_mpi
from builder.verify import DEFAULTS, RUNNERS, Kind, Setting, write_evidence
from builder.verify.finished_images import OpenImage, check_runners, opened, subjects
from builder.verify.measure import (
    BARE,
    BARE_FORMAT,
    EMULATED,
    PROGRAMS,
    Measured,
    Place,
    PlaceFacts,
    Program,
    Rounds,
    Sampler,
    Sizes,
    bare_kind,
    gpu_look,
    how,
    programs_in,
    rows_of,
    run_rounds,
)
from builder.verify.proof import emulator_of
from builder.verify.runners import Container

_RANKS = 2


def measure(
    run: Run, folder: Path, *, runners: Sequence[str], repeats: int
) -> tuple[Measured, Manifest]:
    """Measure the image in an output folder; return the measurement and the updated manifest.

    Manifest and evidence in the folder have the measurement, too.

    Raises `BadInput` when the image has none of the programs, or no tarball for bare.
    """
    with opened(folder, run.tools) as image:
        check_runners(image.artifacts, runners)
        measured = _measured(run, image, runners=runners, repeats=repeats)
        return measured, record(run, image, folder, measured)


def _measured(run: Run, image: OpenImage, *, runners: Sequence[str], repeats: int) -> Measured:
    if BARE_FORMAT not in image.artifacts:
        raise BadInput(
            f"--bench: the image has no {BARE_FORMAT} tarball, of which bare is made",
            hint="build it with --format charliecloud",
        )
    started, launch = now(), _launcher(image.record.cell.mpi)
    emulator = emulator_of(run, image.target.arch)
    sizes = EMULATED if emulator else Sizes()
    with contextlib.ExitStack() as held:
        places = _places(run, image, runners, held)
        bare = next(places)
        programs = programs_in(bare.runner, PROGRAMS, mpi=bool(launch))
        if not programs:
            raise BadInput(
                f"--bench: {image.record.image} holds none of the programs that measure",
                hint=f"they are {', '.join(one.name for one in PROGRAMS)}; recipe hpc-bench",
            )
        everywhere = [bare, *places]
        rounds = _rounds(run, image, everywhere, programs, sizes, launch, repeats)
    known = tuple(one.facts for one in everywhere)
    return Measured(
        image=image.record.image,
        arch=image.target.arch,
        host=run.host,
        emulator=emulator,
        bare=how(is_root=os.geteuid() == 0),
        started=started,
        finished=now(),
        repeats=repeats,
        sizes=asdict(sizes),
        places=known,
        rows=rows_of(rounds.runs, programs, [one.name for one in known]),
        runs=rounds.runs,
        others=rounds.others,
    )


def _rounds(
    run: Run,
    image: OpenImage,
    places: Sequence[Place],
    programs: Sequence[Program],
    sizes: Sizes,
    launch: str,
    repeats: int,
) -> Rounds:
    look = gpu_look(run.tools.processes)
    return run_rounds(
        places,
        programs,
        sizes,
        launch=launch,
        repeats=repeats,
        sampler=lambda: Sampler(gpus=look),
        say=lambda text: run.progress.step(image.target.identifier, text),
    )


def _launcher(mpi: str) -> str:
    """What starts the ranks in the image; empty if it has no MPI."""
    family = facts.MPI_FAMILIES.get(split_mpi(mpi)[0])
    return family.launch.format(ranks=_RANKS) if family else ""


def _places(
    run: Run, image: OpenImage, runners: Sequence[str], held: contextlib.ExitStack
) -> Iterator[Place]:
    """Bare, then each format, made when it is asked for; all have the same folder for files."""
    data = image.work / "data"
    data.mkdir()
    data.chmod(0o1777)  # each runner has an ordinary user of its own
    usual = [DEFAULTS[name] for name in FORMATS if name in image.artifacts]
    kinds = [RUNNERS[name] for name in runners or usual]
    for kind in (bare_kind(image.target.environment), *kinds):
        yield held.enter_context(_place(run, image, kind, data))


@contextlib.contextmanager
def _place(run: Run, image: OpenImage, kind: Kind, data: Path) -> Iterator[Place]:
    tools, target = run.tools, image.target
    run.progress.step(target.identifier, f"unpacking for {kind.name}")
    container = Container(
        artifact=image.artifacts[kind.format].path,
        work=image.work,
        tools=tools,
        directory=target.directory,
        data=data,
    )
    version = run.versions.get(kind.program) or tools.version(kind.program)
    with kind.open(container) as runner:
        known = PlaceFacts(name=_name(kind), runner=kind.program, version=version)
        yield Place(facts=known, runner=runner)


def _name(kind: Kind) -> str:
    """As evidence calls it: the format, with the runner where it is not the usual one."""
    if kind.name in {BARE, DEFAULTS[kind.format]}:
        return BARE if kind.name == BARE else kind.format
    return f"{kind.format}-{kind.name}"


def record(run: Run, image: OpenImage, folder: Path, measured: Measured) -> Manifest:
    """Write the evidence of each format and the manifest, which is returned.

    Of what a busy machine could not tell there is none: that says nothing of the image.
    """
    evidence = [
        _evidence(run, image, folder, place, measured)
        for place in measured.places
        if place.name != BARE and measured.collapse_in(place.name).outcome != SKIPPED
    ]
    files = [file.relative_to(folder).as_posix() for file in evidence]
    return write_manifest(folder, with_measurement(image.record, measured, files), files)


def with_measurement(manifest: Manifest, measured: Measured, evidence: Sequence[str]) -> Manifest:
    """A manifest with a measurement in the place of an older one.

    Whether the image is verified stays as it is: what is fast may be wrong, and what is slow right.
    """
    return replace(
        manifest,
        evidence=tuple(sorted({*manifest.evidence, *evidence})),
        measured=measured.as_json(with_runs=False),
    )


def _evidence(
    run: Run, image: OpenImage, folder: Path, place: PlaceFacts, measured: Measured
) -> Path:
    ran = place.name.partition("-")[0]
    return write_evidence(
        folder / "evidence",
        f"{place.name}{BENCH}",
        identifier=measured.image,
        artifacts=subjects(image.record, image.artifacts[ran]),
        outcomes=[measured.collapse_in(place.name)],
        scripts={},
        setting=Setting(
            format=ran,
            runner=place.runner,
            runner_version=place.version,
            host=measured.host,
            started=measured.started,
            finished=measured.finished,
            emulator=measured.emulator,
            no_gpu="no program that is measured uses one",
            tools=run.versions,
            indices=states_in(image.record.inputs),
        ),
    )
