"""Records of stages, which show what an engine has without starting it.

`home/stages/NAME/KEY.json` is written once the engine has the stage. It holds what the key covers,
and the duration and time of the build; its time stamp is that of the last use. `KEY.log` is the
output of the build. Builds ask the engine itself: its storage may have been cleaned by hand.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.build.native import is_open
from builder.model import KeyedStage
from builder.model.package_indices import IndexState
from builder.model.records import read, write
from builder.plan.keys import DeclaredStages, why_changed
from builder.system.files import json_record, read_json, write_atomically
from builder.system.home import Home
from builder.system.locks import locked

CACHED, SHARED, TO_BUILD = "cached", "shared with", "to build"
ENGINES = "engines.json"
_MADE = {"name", "made", "digest"}
_NOT_HERE = "not brought"  # stands for the digest of native tools that the next build fetches first


@dataclass(frozen=True, kw_only=True, slots=True)
class StageState:
    """The main job's plan for a stage: `state` is cached, shared with or to build.

    `shared_with` is the image whose build makes it; `why` is the reason why it is not cached.
    """

    stage: KeyedStage
    state: str
    shared_with: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.shared_with:
            return f"{self.state} {self.shared_with}"
        return f"{self.state}: {self.why}" if self.why else self.state


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecord:
    """A stage that an engine has under a tag. `text` is a digest of its part of the Dockerfile.

    `name`, `target`, `parts` and `key` are those of `KeyedStage`; `duration_s` is what its build
    took, `made` when it ended, `indices` the states of package indices that it was made with.
    """

    parts: Mapping[str, str]
    tag: str
    name: str = ""
    target: str = ""
    key: str = ""
    text: str = ""
    duration_s: float = 0.0
    made: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[IndexState, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedEngine:
    """An engine with its version and options in `words`, as the last build found it.

    `program` identifies the version of its program; `lends` says whether its steps can run native
    tools.
    """

    program: tuple[object, ...] = ()
    words: str = ""
    lends: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """The records of stages below a folder."""

    folder: Path

    def path(self, stage: KeyedStage, suffix: str = ".json") -> Path:
        return self.folder / stage.name / f"{stage.key[:32]}{suffix}"

    def log(self, stage: KeyedStage) -> Path:
        return self.path(stage, ".log")

    def has(self, stage: KeyedStage) -> bool:
        return self.path(stage).exists()

    def why_not(self, stage: KeyedStage) -> str:
        """Return why to build a stage that has no record: the changes since its last build."""
        before = self._newest(stage)
        if before is None:
            return "never built here"
        return why_changed(before, stage.parts) or "its record is missing"

    def _newest(self, stage: KeyedStage) -> Mapping[str, str] | None:
        paths = sorted(
            self.path(stage).parent.glob("*.json"),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        return next((record.parts for path in paths if (record := read_record(path))), None)

    def all(self) -> Iterator[tuple[Path, StageRecord]]:
        """Yield every record that can be read, with its path."""
        for path in sorted(self.folder.glob("*/*.json")):
            if record := read_record(path):
                yield path, record


def read_record(path: Path) -> StageRecord | None:
    """Return a stage's record; None if the file holds none."""
    return json_record(StageRecord, path)


def write_record(path: Path, record: StageRecord) -> None:
    """Write a stage's record, once the engine has the stage."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(write(record), indent=1, sort_keys=True) + "\n")


def stage_states(
    home: Home, engine: str, images: Sequence[DeclaredStages], *, native: bool = True
) -> list[tuple[StageState, ...]]:
    """Return for each image what the main job would do with each of its stages, with an engine.

    `native` says whether emulated steps are to use native tools.
    """
    records, words = Records(folder=home.stages), noted_engine(home, engine)
    bases, owners = _digests(home.bases.glob("*/base.json")), dict[str, str]()
    lends = native and _noted(home, engine).lends
    tools = _digests(home.native.glob("*/native.json")) if lends else {}
    return [
        tuple(
            _state(one, stage, records, owners)
            for stage in one.keyed(
                base=bases.get(one.base, ""),
                engine=words,
                native=tools.get(one.native, _NOT_HERE) if lends and _is_lent(one) else "",
            )
        )
        for one in images
    ]


def _state(
    image: DeclaredStages, stage: KeyedStage, records: Records, owners: dict[str, str]
) -> StageState:
    why = "its base is not in the store"
    if stage.parts["base"]:
        if records.has(stage):
            return StageState(stage=stage, state=CACHED)
        why = records.why_not(stage)
    # Without a digest, bases differ by name alone, and so do their stages.
    owner = owners.setdefault(f"{image.base} {stage.key}", image.image)
    if owner != image.image:
        return StageState(stage=stage, state=SHARED, shared_with=owner, why=why)
    return StageState(stage=stage, state=TO_BUILD, why=why)


def _is_lent(image: DeclaredStages) -> bool:
    """Return whether the kernel would start native tools instead of an image's programs."""
    arch = image.native.rpartition("-")[2]
    return bool(arch) and platform.machine() == "x86_64" and is_open(arch)


def _digests(records: Iterable[Path]) -> dict[str, str]:
    """Return the digests of the records of a store, by name; of one name, the newest counts."""
    known = [about for about in map(read_json, records) if about.keys() >= _MADE]
    known.sort(key=lambda about: str(about["made"]))
    return {str(about["name"]): str(about["digest"]) for about in known}


def noted_engine(home: Home, name: str) -> str:
    """Return an engine's version and options, as the last build noted them.

    Empty if the program has changed since, or was never run.
    """
    noted = _noted(home, name)
    return noted.words if noted.program == _program(home, name) else ""


def note_engine(home: Home, name: str, words: str, *, lends: bool) -> None:
    """Note an engine for commands that do not start it."""
    about = NotedEngine(program=_program(home, name), words=words, lends=lends)
    with locked(home.stages, "engines"):
        noted = {**noted_engines(home), name: write(about)}
        write_atomically(home.stages / ENGINES, json.dumps(noted, indent=1, sort_keys=True) + "\n")


def _noted(home: Home, name: str) -> NotedEngine:
    try:
        return read(NotedEngine, noted_engines(home).get(name))
    except ValueError:
        return NotedEngine()


def noted_engines(home: Home) -> dict[str, object]:
    """Return all notes of engines, by name."""
    return read_json(home.stages / ENGINES)


def _program(home: Home, name: str) -> tuple[object, ...]:
    """Return a program's path, size and time, which identify its version."""
    path = shutil.which(name, path=home.search_path())
    if path is None:
        return ()
    about = Path(path).stat()
    return (path, about.st_size, about.st_mtime_ns)
