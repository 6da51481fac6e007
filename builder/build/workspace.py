"""The work folder of one image, where a rerun continues, and its log in the output folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from builder.artifacts.manifests import size_of
from builder.compile.spec.image_scripts import EXECUTABLE
from builder.model import Artifact, PlannedImage, Spec
from builder.model.errors import BuildStep, MissingPrerequisite, counted
from builder.model.manifest import FILES, LOG
from builder.model.records import read, write
from builder.system.files import (
    json_record,
    link_or_copy,
    read_json,
    read_regular,
    write_atomically,
)
from builder.system.home import Home
from builder.system.locks import has_writer, locked, sole_writer, this_process
from builder.system.terminal import printable

SPEC_FILES = ("Dockerfile", "Singularity.def", ".dockerignore")
FAILED_STEP = "failed-step.json"
_STEPS = "steps.json"
_LOOK_S = 0.3  # between two looks at a log that is followed
_ORIGIN = "origin"
_RUNS = ".run-*.json"  # in an output folder: what runs build there
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageWorkspace:
    """The work folder of one image and content key. Two threads may make artifacts at once."""

    path: Path
    _recording: threading.Lock = dataclasses.field(default_factory=threading.Lock, compare=False)

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def plain(self) -> Path:
        """The image's layout with uncompressed layers, from which the others are made."""
        return self.path / "plain.oci"

    @property
    def context(self) -> Path:
        """The spec's folder, which engines build from."""
        return self.path / "spec"

    def artifact(self, artifact_format: str, make: Callable[[Path], str]) -> Artifact:
        """Return the artifact of a format: kept from an earlier run, or made now.

        `make` writes it to the path that it receives, and returns its digest, or empty if unknown.
        The artifact is recorded once it is complete; only recorded artifacts are used again.
        """
        target = self.path / FILES[artifact_format]
        if artifact_format in (steps := self._steps()):
            known = read(Artifact, steps[artifact_format])
            if target.exists() and size_of(target) == known.size:
                return dataclasses.replace(known, path=target)
        partial = target.with_name(f"partial-{target.name}")
        remove(partial)
        remove(target)
        start = time.monotonic()
        digest = make(partial)
        partial.rename(target)
        artifact = Artifact(
            format=artifact_format,
            path=target,
            digest=digest,
            size=size_of(target),
            duration_s=round(time.monotonic() - start, 2),
        )
        self._record(artifact_format, write(artifact))
        return artifact

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return a JSON value of an earlier run; if there is none, make and record it."""
        if name not in self._steps():
            self._record(name, make())
        return cast("T", self._steps()[name])

    def start_from(self, origin: str) -> None:
        """Drop all records unless they are of `origin`, the digest of the base."""
        if self._steps().get(_ORIGIN) != origin:
            (self.path / _STEPS).unlink(missing_ok=True)
            self._record(_ORIGIN, origin)

    def forget(self) -> None:
        """Drop the records of all artifacts, so that a new image gets none of an older one."""
        origin = {name: value for name, value in self._steps().items() if name == _ORIGIN}
        write_atomically(self.path / _STEPS, json.dumps(origin))

    def _steps(self) -> dict[str, object]:
        return read_json(self.path / _STEPS)

    def _record(self, name: str, value: object) -> None:
        with self._recording:
            steps = {**self._steps(), name: value}
            write_atomically(self.path / _STEPS, json.dumps(steps, indent=1))


@contextlib.contextmanager
def workspace(
    home: Home,
    image: PlannedImage,
    *,
    engine: str,
    owner: str | None,
    fresh: bool,
    waiting: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[ImageWorkspace]:
    """Lock and yield the image's work folder; `fresh` first removes what is in it."""
    name = f"{image.identifier}-{engine}"
    with locked(home.work, name, waiting=waiting, stopped=stopped):
        path = home.work / name / image.content_key[:16]
        if fresh:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():  # of other content keys, whose inputs are gone
            if other != path:
                shutil.rmtree(other, ignore_errors=True)
        path.chmod(0o755)
        (path / LOG).touch()
        if owner:  # Apptainer and Charliecloud write here as this user
            shutil.chown(path, owner)
        yield ImageWorkspace(path=path)


def write_spec(
    spec: Spec,
    base_archive: Path | None,
    folder: Path,
    archive_name: str,
    sources: Mapping[str, Path] | None = None,
) -> None:
    """Write a spec's folder: the same spec gives the same bytes and modes.

    Files that have their text already stay as they are. Several writers wait for each other.
    `sources` has stored files by URL. Source files of the spec that it does not have are left out.
    """
    own = (spec.dockerfile, spec.singularity, "*\n!files\n")
    texts = {**dict(zip(SPEC_FILES, own, strict=True)), **spec.files}
    with contextlib.ExitStack() as held:
        with contextlib.suppress(MissingPrerequisite):  # the output may have no locks
            held.enter_context(locked(folder, "spec"))
        if _has_others(folder / "files", texts):
            remove(folder / "files")
        for name, text in texts.items():
            _write(folder / name, text, 0o755 if name.startswith(EXECUTABLE) else 0o644)
        for source in spec.sources:
            if path := (sources or {}).get(source.url):
                (folder / source.in_context).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path, folder / source.in_context)
                (folder / source.in_context).chmod(0o644)
        archive = folder / archive_name
        archive.unlink(missing_ok=True)
        if base_archive is not None:
            link_or_copy(base_archive, archive)


def _has_others(files: Path, expected: Iterable[str]) -> bool:
    """Return whether a spec's folder of files has any other path than `expected`, or links."""
    names = {files.parent / name for name in expected}
    folders = {folder for name in names for folder in name.parents}
    return files.is_symlink() or any(
        path.is_symlink() or path not in (folders if path.is_dir() else names)
        for path in files.rglob("*")
    )


def _write(file: Path, text: str, mode: int) -> None:
    """Write a file of a spec, unless it has this text."""
    with contextlib.suppress(OSError):
        if read_regular(file) == text.encode():
            file.chmod(mode)
            return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    file.chmod(mode)


def output_folder(folder: Path) -> None:
    """Make an image's output folder with the mode of its parent, which the user made."""
    try:
        folder.mkdir()
    except FileExistsError:
        return
    folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode) & 0o777)


class ImageLog:
    """The log of the build of one image, in its output folder.

    It is replaced when the build begins, and locked until it ends. If another builder is at work on
    the image, its log stays, and this one adds to it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self._held = contextlib.ExitStack()
        self._is_own = False
        self._stages = 0  # whose logs are in it

    def begin(self) -> None:
        """Begin the log, and drop what is noted of an earlier failure, unless that was done."""
        output_folder(self.path.parent)
        if not self._is_own and not is_running(self.path):
            self._held.enter_context(sole_writer(self.path))
            self._is_own = True
            note_failure(self.path.parent, None)

    def end(self) -> None:
        self._held.close()

    def add(self, log: Path) -> None:
        """Add another log to the end."""
        append(log, self.path)

    def add_stages(self, logs: Sequence[Path]) -> None:
        """Add the logs of the image's first stages, except those that it has."""
        for log in logs[self._stages :]:
            self.add(log)
        self._stages = max(self._stages, len(logs))

    def built_stage(self) -> None:
        """Note that the build of the next stage was written to it."""
        self._stages += 1

    @contextlib.contextmanager
    def also_in(self, other: Path) -> Iterator[None]:
        """Write what is added meanwhile, if anything is, to another file, too."""
        start = self.path.stat().st_size if self.path.exists() else 0
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
                file.seek(start)
                if added := file.read():
                    other.write_bytes(added)


def is_running(log: Path) -> bool:
    """Return whether a build writes to a log at present."""
    try:
        with log.open("rb") as file:
            return has_writer(file)
    except FileNotFoundError:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _ActiveRun:
    """A run's file in its output folder: its process, and states of builds that are yet to begin.

    The file is locked while the run lasts.
    """

    process: str
    states: Mapping[str, str]


@contextlib.contextmanager
def announce_run(
    out: Path, states: Mapping[str, str], report: Callable[[str], object]
) -> Iterator[None]:
    """Keep the states of a run's builds in its output folder; `report` other runs of its images."""
    for path in out.glob(_RUNS):
        if not is_running(path):  # of a killed run
            with contextlib.suppress(PermissionError):  # and of another user
                path.unlink(missing_ok=True)
    for other in _active_runs(out).values():
        if number := len(states.keys() & other.states.keys()):
            text = f"{other.process} builds {counted(number, 'image')} of this run in {out}, too"
            report(printable(text))
    path = out / _RUNS.replace("*", secrets.token_hex(8))
    try:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # on a full disk, only `logs` and other runs lack it
                held.enter_context(sole_writer(path))
                run = _ActiveRun(process=this_process(), states=states)
                path.write_text(json.dumps(write(run)))
            yield
    finally:
        path.unlink(missing_ok=True)


def _active_runs(out: Path) -> dict[Path, _ActiveRun]:
    runs: dict[Path, _ActiveRun] = {}
    for path in filter(is_running, out.glob(_RUNS)):
        with contextlib.suppress(ValueError):  # it is about to be written
            runs[path] = read(_ActiveRun, read_json(path))
    return runs


def not_begun(log: Path) -> str:
    """Return the state of an image whose build a run has yet to begin; else an empty text."""
    out, image = log.parent.parent, log.parent.name
    if is_running(log):
        return ""
    for path, run in _active_runs(out).items():
        if image in run.states and _written_at(log) < _written_at(path):
            logs = filter(is_running, sorted(out.glob(f"*/{LOG}")))
            active = ", ".join(each.parent.name for each in logs)
            return printable(f"{image}: {run.states[image]}{active and f'; at work: {active}'}")
    return ""


def _written_at(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def log_text(log: Path, *, follow: bool, report: Callable[[str], object]) -> Iterator[bytes]:
    """Yield the text of a log, in pieces of whole lines; `follow` it until its build ends.

    If a run has yet to begin the build, `report` gets its state; to `follow` is to wait for it.
    """
    before, shown = _written_at(log), ""
    while state := not_begun(log):
        if state != shown:
            report(state)
        shown = state
        if not follow:
            break
        time.sleep(_LOOK_S)
    if shown and _written_at(log) == before and (follow or not before):
        if follow:
            report(f"{log.parent.name}: the run ended before this build began")
        return
    with log.open("rb") as file:
        rest = b""
        while True:
            is_last = not (follow and has_writer(file))  # first: what is written since is read
            lines, newline, rest = (rest + file.read()).rpartition(b"\n")
            yield lines + newline
            if is_last:
                yield rest
                return
            time.sleep(_LOOK_S)


def note_failure(folder: Path, step: BuildStep | None) -> None:
    """Note the step at which the last build of an image failed; None if none did."""
    if step is None:
        (folder / FAILED_STEP).unlink(missing_ok=True)
        return
    write_atomically(folder / FAILED_STEP, json.dumps(write(step), indent=1) + "\n")


def failed_step(folder: Path) -> BuildStep | None:
    """Return the step at which the last build of an image failed; None if none did."""
    return json_record(BuildStep, folder / FAILED_STEP)


def append(log: Path, to: Path) -> None:
    """Add one log to the end of another."""
    if log.exists():
        with log.open("rb") as source, to.open("ab") as target:
            shutil.copyfileobj(source, target)


def stored_sources(spec: Spec) -> dict[str, Path]:
    """Return the sources of a spec that are in the store already, by URL."""
    if not spec.sources:
        return {}
    from builder.sources.store import SourceStore  # noqa: PLC0415 - most specs need none, and no HTTP client

    store = SourceStore(path=Home.of_environment().sources)
    return {one.url: path for one in spec.sources if (path := store.holds(one))}


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
