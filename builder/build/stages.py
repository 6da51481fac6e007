"""The bases and stages that images are built from: each is made once, then shared."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.build.base_store import StoredBase, ensure_base, stored_base
from builder.build.engines import Engine
from builder.build.native.tools import NativeTools
from builder.build.records import Records, StageRecord, note_engine, read_record, write_record
from builder.build.run import Run, bootstrapping, build_dockerfile, index_states, native_tools, now
from builder.build.workspace import ImageLog, append, output_folder, remove, write_spec
from builder.compile.spec import COMPILER, base_archive
from builder.model import KeyedStage, PlannedImage, Spec
from builder.model.errors import BuildStep, StepFailed
from builder.model.manifest import LOG
from builder.model.package_indices import IndexState
from builder.plan.keys import declared_stages
from builder.system.home import NATIVE_LABEL, Home
from builder.system.locks import locked

_ASKS = "apt-get update"  # in the text of a stage that reads package indices
_BASE = "base"
_IMAGE = "image"  # the folder with the engine's export, in an entry of the site's store


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStages:
    """The stages of one run. `engine` names the engine with its version and options."""

    run: Run
    engine: str
    bases: dict[str, StoredBase] = field(default_factory=dict)
    native: dict[str, NativeTools] = field(default_factory=dict)

    @property
    def records(self) -> Records:
        return Records(folder=self.run.tools.home.stages)

    def declared(self, images: Sequence[PlannedImage]) -> list[tuple[KeyedStage, ...]]:
        """Return the stages of images whose bases may not exist yet; equal keys: equal stages."""
        declared = ((image, declared_stages(image, COMPILER)) for image in images)
        return [
            stages.keyed(base=image.base_image, engine=self.engine) for image, stages in declared
        ]

    def of(self, image: PlannedImage) -> tuple[KeyedStage, ...]:
        """Return the stages of an image whose base exists."""
        base = self.base(image)
        return declared_stages(image, COMPILER).keyed(
            base=base.digest if base else "", engine=self.engine, native=self.native_of(image)
        )

    def base(self, image: PlannedImage) -> StoredBase | None:
        """Return the base that an image starts from, if it was made here."""
        return self.bases.get(image.base_image)

    def bases_of(self, image: PlannedImage) -> tuple[StoredBase, ...]:
        """Return the bases to load into the engine: the one made here, or those of `load`.

        The engine has all others, or pulls them.
        """
        if base := self.base(image):
            return (base,)
        bases = imported_bases(image, self.run.tools.home)
        for base in bases:
            base.touch()
        return bases

    def native_of(self, image: PlannedImage) -> str:
        """Return the digest of the native tools for an image's steps; empty for none."""
        lent = self.native.get(image.base_image) if self.run.engine.lends else None
        return lent.digest if lent else ""

    def make_base(self, image: PlannedImage, log: Path | None = None) -> bool:
        """Make a base unless the store has it; return whether it was made now.

        The output is added to a log; without one it is in a log of its own.
        """
        if not image.is_bootstrapped or image.base_image in self.bases:
            return False
        run = self.run
        run.progress.step(image.identifier, f"base {image.base.name}")
        if log is None:
            log = run.tools.home.stages / f"{image.base.name}-{image.cell.arch}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.unlink(missing_ok=True)
        with run.tools.installing():
            tools = native_tools(run, image, log=log)
            stored = None
            if run.settings.offline and not run.settings.refresh:  # from any mirror
                stored = stored_base(image.base_image, store=run.tools.home.bases)
            if stored is None:
                store, proxy = run.tools.home.bases, run.tools.downloading_for(image.base_image)
                stored = ensure_base(
                    image.base,
                    image.cell.arch,
                    image.base_image,
                    bootstrapping(run, image, store=store, log=log, environment=proxy),
                    native=tools.root if tools else None,
                    indices=lambda: index_states(run, image, image.base_image, earlier=False),
                )
        stored.touch()
        self.bases[image.base_image] = stored
        if tools:
            self.native[image.base_image] = tools
        return stored.made >= run.started

    def indices(self, image: PlannedImage) -> dict[IndexState, list[str]]:
        """Return the states of package indices of an image: its base's, and its stages'."""
        used: dict[IndexState, list[str]] = {}
        if base := self.base(image):
            used |= {one: [_BASE] for one in base.indices}
        for stage in self.of(image):
            record = read_record(self.records.path(stage))
            for state in record.indices if record else ():
                used.setdefault(state, []).append(stage.target)
        return dict(sorted(used.items()))

    def make(self, spec: Spec, number: int, log: ImageLog | None = None) -> bool:
        """Build one of a spec's stages unless the engine has it; return whether it was built.

        The output of its build goes to its image's `log`, if there is one, and to its own.
        Raises `StepFailed`, with the log of what failed.
        """
        stages = self.of(spec.image)
        stage, records = stages[number], self.records
        text = self.alone(spec, number)
        run, identifier = self.run, spec.image.identifier
        with locked(
            run.tools.home.stages,
            stage.key[:32],
            waiting=lambda holder: run.progress.step(
                identifier, f"{stage.target}: waiting for {holder}, which builds it"
            ),
            stopped=lambda: run.tools.processes.stopping,
        ):
            if self.run.settings.cache and (
                self._is_there(stage, text) or self._taken(spec, stage, text)
            ):
                os.utime(records.path(stage))
                return False
            start = time.monotonic()
            self._build(spec, stage, text, log)
            took_s = round(time.monotonic() - start, 1)
            self._record(spec, stage, text, took_s, stage.tag)
            self._share(spec, stage)
            return True

    def done(self, spec: Spec, tag: str, took_s: float) -> None:
        """Record the last stage of a spec, which the engine keeps as the image."""
        stages = self.of(spec.image)
        text = self.alone(spec, len(stages) - 1)
        self._record(spec, stages[-1], text, took_s, tag)

    def alone(self, spec: Spec, number: int) -> str:
        """Return one stage of a spec as a Dockerfile that starts from the engine's images."""
        stages, image = self.of(spec.image), spec.image
        native = self.native_of(image)
        names = {one.target: one.tag for one in stages[:number]}
        for base in self.bases_of(image):  # another builder may replace it under its name
            names[base.name] = base.tag
        return stage_alone(spec.dockerfile, stages[number].target, names, native=native)

    def _is_there(self, stage: KeyedStage, text: str) -> bool:
        record = read_record(self.records.path(stage))
        if record is None or record.text != _digest(text):
            return False
        if self.run.engine.has(stage.tag):
            return True
        self.records.path(stage).unlink()  # the engine's storage was cleaned by hand
        return False

    def _taken(self, spec: Spec, stage: KeyedStage, text: str) -> bool:
        """Load a stage from the site's store into the engine; return whether that worked."""
        run, path = self.run, self.records.path(stage)
        if not self._is_shared(spec.image):
            return False
        with run.shared.files() as folder:
            if not run.shared.take(_tag(stage), folder):
                return False
            record = read_record(folder / path.name)
            if record is None or record.text != _digest(text) or record.tag != stage.tag:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                run.engine.load(folder / _IMAGE, stage.tag, log=self.records.log(stage))
            except StepFailed as error:
                run.progress.say(f"the site's store: {stage.name}: {error.message}; it is built")
                return False
        write_record(path, record)
        run.progress.step(spec.image.identifier, f"{stage.target} from the site's store")
        return True

    def _is_shared(self, image: PlannedImage) -> bool:
        """Return whether the stages of an image are shared.

        Emulated ones without native tools are not: a native machine has the same keys for its own,
        and would call them native.
        """
        is_native = image.cell.arch == self.run.host.arch
        return self.run.shared.is_used and (is_native or bool(self.native_of(image)))

    def _share(self, spec: Spec, stage: KeyedStage) -> None:
        """Add a stage that the engine has to the site's store."""
        run, path = self.run, self.records.path(stage)
        if not self._is_shared(spec.image):
            return
        with run.shared.files() as folder:
            try:
                run.engine.export(stage.tag, folder / _IMAGE, log=self.records.log(stage))
                shutil.copyfile(path, folder / path.name)
            except (StepFailed, OSError) as error:
                run.progress.say(f"{stage.name} is not added to the site's store: {error}")
                return
            run.shared.put(_tag(stage), folder, f"stage {stage.name}", packed=True)

    def _build(self, spec: Spec, stage: KeyedStage, text: str, image_log: ImageLog | None) -> None:
        run, image = self.run, spec.image
        folder = run.tools.home.work / "stages" / stage.key[:32]
        own = self.records.log(stage)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.unlink(missing_ok=True)
        log = image_log.path if image_log else own
        run.progress.step(image.identifier, f"building {stage.target} with {run.engine.name}")
        remove(folder)
        try:
            write_spec(spec, None, folder, base_archive(image), run.sources)
            (folder / "Dockerfile").write_text(text)
            bases = self.bases_of(image)
            with image_log.also_in(own) if image_log else contextlib.nullcontext():
                build_dockerfile(run, image, folder, log=log, name=stage.tag, bases=bases)
        except StepFailed as error:
            raise self.with_place(error, spec, stage) from error
        finally:
            remove(folder)

    def with_place(self, error: StepFailed, spec: Spec, stage: KeyedStage) -> StepFailed:
        """Return the error of a stage's build with the place in the project of its failed step."""
        if error.step is None:
            return error
        stages = self.of(spec.image)
        number = stages.index(stage)
        [*_, base] = _FROM.finditer(self.alone(spec, number))
        where = place_of(error.step, spec, stage.target)
        step = dataclasses.replace(
            error.step,
            layer=error.step.layer or base["source"],
            stage=stage.target,
            where=where,
            engine=self.run.engine.name,
            stages={one.target: one.tag for one in stages[:number]},
        )
        message = f"{error.message}\n  from {where}" if where else error.message
        return _with(error, message=message, log=error.log, step=step)

    def _record(self, spec: Spec, stage: KeyedStage, text: str, took_s: float, tag: str) -> None:
        record = StageRecord(
            name=stage.name,
            target=stage.target,
            parts=stage.parts,
            key=stage.key,
            tag=tag,
            text=_digest(text),
            duration_s=took_s,
            made=now(),
            tools=self.run.versions,
            indices=index_states(self.run, spec.image, tag, asks=_ASKS in text),
        )
        write_record(self.records.path(stage), record)


def _tag(stage: KeyedStage) -> str:
    return f"stage-{stage.key}"


def imported_bases(image: PlannedImage, home: Home) -> tuple[StoredBase, ...]:
    """Return the bases from registries that an image starts from and that the store has."""
    bases = (stored_base(name, store=home.bases) for name in image.registry_bases.values())
    return tuple(base for base in bases if base)


def engine_description(home: Home, engine: Engine) -> str:
    """Return the engine with its version and options, noted for commands that do not start it."""
    words = f"{engine.name} {engine.version()}, {engine.options}"
    note_engine(home, engine.name, words, lends=engine.lends)
    return words


def with_log(error: StepFailed, folder: Path) -> StepFailed:
    """Return the error of a step with its log copied from the home to an image's folder."""
    log = folder / LOG
    if error.log and error.log != log and error.log.exists():
        output_folder(folder)
        log.unlink(missing_ok=True)
        append(error.log, log)
    return _with(error, message=error.message, log=error.log and log)


def _with(
    error: StepFailed, *, message: str, log: Path | None, step: BuildStep | None = None
) -> StepFailed:
    return StepFailed(
        message,
        tail=error.tail,
        first_error=error.first_error,
        log=log,
        hint=error.hint,
        step=step or error.step,
    )


def place_of(step: BuildStep, spec: Spec, target: str) -> str:
    """Return the file, line and key that a step of a stage comes from; empty if it is not known."""
    from builder.compile.lint.reading import read_dockerfile  # noqa: PLC0415 - only failures need it

    text, words = read_dockerfile(spec.dockerfile), step.instruction.split()
    lines = [
        part.line
        for part in text.parts
        if text.stages[part.stage].name == target and [part.name, *part.value.split()] == words
    ]
    return spec.origin_text(lines[min(step.number, len(lines)) - 1]) if lines else ""


def _digest(text: str) -> str:
    """Return a SHA-256 over a Dockerfile without its comments, in hexadecimal."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_FROM = re.compile(r"^FROM (?P<source>\S+) AS (?P<name>\S+)$", re.MULTILINE)


def stage_alone(dockerfile: str, target: str, built: Mapping[str, str], *, native: str = "") -> str:
    """Return a Dockerfile of the stage `target` alone; `built` has earlier stages' images by name.

    `native` is the digest of the native tools that its steps use. As a label, it keeps the engine
    from using steps again that ran with other tools; packing leaves the label out.

    Raises `LookupError` if the Dockerfile has no such stage.
    """
    heads = list(_FROM.finditer(dockerfile))
    ends = [*(head.start() for head in heads[1:]), len(dockerfile)]
    for head, end in zip(heads, ends, strict=True):
        if head["name"] == target:
            source = built.get(head["source"], head["source"])
            body = dockerfile[head.end() : end].rstrip()
            copied = {*re.findall(r"(?:--|,)from=([^\s,]+)", body)}
            stages = [f"FROM {built[name]} AS {name}" for name in copied & {*built}]
            label = f"\nLABEL {NATIVE_LABEL}={native}" if native else ""
            alone = f"FROM {source} AS {target}{label}{body}"
            return "\n\n".join([*sorted(stages), alone]) + "\n"
    raise LookupError(f"the Dockerfile has no stage {target}")


def on_images(dockerfile: str, names: Mapping[str, str]) -> str:
    """Return a Dockerfile with the images that its stages start from renamed."""
    return _FROM.sub(
        lambda head: f"FROM {names.get(head['source'], head['source'])} AS {head['name']}",
        dockerfile,
    )
