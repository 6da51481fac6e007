"""The measurement of an image for `verify --bench`, and its place in manifest and evidence."""

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
from builder.verify.measure.bare import BARE_FORMAT, bare_kind
from builder.verify.measure.measurement import BARE, Measured, PlaceFacts
from builder.verify.measure.programs import EMULATED, PROGRAMS, RANKS, Sizes
from builder.verify.measure.rounds import Place, programs_in, rows_of, run_rounds
from builder.verify.measure.sampling import gpu_look
from builder.verify.proof import emulator_of
from builder.verify.runners import Container


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
    started = now()
    emulator = emulator_of(run, image.target.arch)
    family = facts.MPI_FAMILIES.get(split_mpi(image.record.cell.mpi)[0])
    sizes = EMULATED if emulator else Sizes()
    with contextlib.ExitStack() as stack:
        opening = _places(run, image, runners, stack)
        bare = next(opening)
        programs = programs_in(bare.runner, PROGRAMS, mpi=family is not None)
        if not programs:
            raise BadInput(
                f"--bench: {image.record.image} holds none of the programs that measure",
                hint=f"they are {', '.join(each.name for each in PROGRAMS)}; recipe hpc-bench",
            )
        places = [bare, *opening]
        rounds = run_rounds(
            places,
            programs,
            sizes,
            launch=family.launch.format(ranks=RANKS) if family else "",
            repeats=repeats,
            gpus=gpu_look(run.tools.processes),
            say=lambda text: run.progress.step(image.target.identifier, text),
        )
    root = "the image's root file system, unpacked and entered by chroot"
    return Measured(
        image=image.record.image,
        arch=image.target.arch,
        host=run.host,
        emulator=emulator,
        bare=root if os.geteuid() == 0 else f"{root} in a user namespace",
        started=started,
        finished=now(),
        repeats=repeats,
        sizes=asdict(sizes),
        places=tuple(place.facts for place in places),
        rows=rows_of(rounds.runs, programs, [place.facts.name for place in places]),
        runs=rounds.runs,
        others=rounds.others,
    )


def _places(
    run: Run, image: OpenImage, runners: Sequence[str], stack: contextlib.ExitStack
) -> Iterator[Place]:
    """Open bare, then each format when it is asked for; all have the same folder for files."""
    tools, target = run.tools, image.target
    data = image.work / "data"
    data.mkdir()
    data.chmod(0o1777)  # each runner has an ordinary user of its own
    usual = [DEFAULTS[name] for name in FORMATS if name in image.artifacts]
    for kind in (bare_kind(target.environment), *(RUNNERS[name] for name in runners or usual)):
        run.progress.step(target.identifier, f"unpacking for {kind.name}")
        container = Container(
            artifact=image.artifacts[kind.format].path,
            work=image.work,
            tools=tools,
            directory=target.directory,
            data=data,
        )
        version = run.versions.get(kind.program) or tools.version(kind.program)
        facts_of_place = PlaceFacts(name=_name(kind), runner=kind.program, version=version)
        yield Place(facts=facts_of_place, runner=stack.enter_context(kind.open(container)))


def _name(kind: Kind) -> str:
    """Return the name in evidence: the format, with the runner where it is not the usual one."""
    if kind.name == BARE:
        return BARE
    return kind.format if kind.name == DEFAULTS[kind.format] else f"{kind.format}-{kind.name}"


def record(run: Run, image: OpenImage, folder: Path, measured: Measured) -> Manifest:
    """Write the evidence of each format and the manifest, which is returned.

    There is no evidence of what a busy machine could not tell: that says nothing of the image.
    """
    files = [
        _write_evidence(run, image, folder, place, measured).relative_to(folder).as_posix()
        for place in measured.places
        if place.name != BARE and measured.collapse_in(place.name).outcome != SKIPPED
    ]
    return write_manifest(folder, with_measurement(image.record, measured, files), files)


def with_measurement(manifest: Manifest, measured: Measured, evidence: Sequence[str]) -> Manifest:
    """Return a manifest with a measurement in the place of an older one.

    Whether the image is verified stays as it is: what is fast may be wrong, and what is slow right.
    """
    return replace(
        manifest,
        evidence=tuple(sorted({*manifest.evidence, *evidence})),
        measured=measured.as_json(with_runs=False),
    )


def _write_evidence(
    run: Run, image: OpenImage, folder: Path, place: PlaceFacts, measured: Measured
) -> Path:
    format_ = place.name.partition("-")[0]
    return write_evidence(
        folder / "evidence",
        f"{place.name}{BENCH}",
        identifier=measured.image,
        artifacts=subjects(image.record, image.artifacts[format_]),
        outcomes=[measured.collapse_in(place.name)],
        scripts={},
        setting=Setting(
            format=format_,
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
