"""What is known of stages without asking an engine: one record for each that an engine has.

`home/stages/NAME/KEY.json` is written once the engine has the stage, and says what its key covers,
how long it took and when; its time stamp says when it was last used. `KEY.log` is what the build
printed. The engine's storage may have been cleaned by hand: whoever builds asks the engine itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.bases import Mirror, find_mirror, stored_base
from builder.cli.workspace import write_atomically
from builder.engines import ENGINES, Engine
from builder.errors import BuildImagesError
from builder.home import Home
from builder.model import KeyedStage, PlannedImage
from builder.plan.keys import StageKeys, why_changed
from builder.spec import COMPILER

CACHED, SHARED, TO_BUILD = "cached", "shared with", "to build"
_ENGINES = "engines.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageState:
    """What the main job would do with a stage: `state` is cached, shared with or to build.

    `shared_with` is the image that has it built; `why` says why it is not cached.
    """

    stage: KeyedStage
    state: str
    shared_with: str = ""
    why: str = ""

    def __str__(self) -> str:
        more = f": {self.why}" if self.why and not self.shared_with else ""
        return f"{self.state}{self.shared_with and ' ' + self.shared_with}{more}"


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

    def use(self, stage: KeyedStage) -> None:
        """Note that the stage was of use today."""
        with contextlib.suppress(OSError):
            os.utime(self.path(stage))

    def write(self, stage: KeyedStage, **about: Any) -> None:
        """Record a stage that an engine has."""
        self.path(stage).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(stage), "tag": stage.tag, **about}, indent=1, sort_keys=True)
        write_atomically(self.path(stage), text + "\n")

    def forget(self, stage: KeyedStage) -> None:
        for suffix in (".json", ".log"):
            self.path(stage, suffix).unlink(missing_ok=True)

    def why_not(self, stage: KeyedStage) -> str:
        """Why a stage that is not recorded has to be built: what changed since the last of it."""
        before = self._newest(stage)
        if before is None:
            return "never built here"
        return why_changed(before, stage.parts) or "its record is gone"

    def _newest(self, stage: KeyedStage) -> Mapping[str, Any] | None:
        found = sorted(self.path(stage).parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for path in reversed(found):
            if record := read_record(path):
                parts: Mapping[str, Any] = record["parts"]
                return parts
        return None

    def all(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Every record that can be read, with its path."""
        for path in sorted(self.folder.glob("*/*.json")):
            if record := read_record(path):
                yield path, record


def read_record(path: Path) -> Mapping[str, Any] | None:
    """A stage's record; None if it is not one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    is_record = isinstance(found, dict) and isinstance(found.get("parts"), dict)
    return found if is_record and isinstance(found.get("tag"), str) else None


def keys_for(home: Home, engine: str) -> StageKeys:
    """The keys that stages have on this machine as it is now; a base that is missing has none."""
    try:
        mirror: Mirror | None = find_mirror()
    except BuildImagesError:
        mirror = None
    known: dict[tuple[str, str], str] = {}

    def digest(image: PlannedImage) -> str:
        name = (image.base_image, image.cell.arch)
        if mirror and name not in known:
            found = stored_base(
                image.base, image.cell.arch, image.base_image, mirror=mirror, store=home.bases
            )
            known[name] = found.digest if found else ""
        return known.get(name, "")

    return StageKeys(compiler=COMPILER, engine=engine, base_digest=digest)


def stage_states(
    images: Sequence[PlannedImage], keys: StageKeys, records: Records
) -> list[tuple[StageState, ...]]:
    """For each image, what the main job would do with each stage of it."""
    owners: dict[str, str] = {}
    return [
        tuple(_state(image, stage, records, owners) for stage in keys.of(image)) for image in images
    ]


def _state(
    image: PlannedImage, stage: KeyedStage, records: Records, owners: dict[str, str]
) -> StageState:
    if not stage.parts["base"]:
        why = f"the base {image.base.name} for {image.cell.arch} is not in the store"
    elif records.has(stage):
        return StageState(stage=stage, state=CACHED)
    else:
        why = records.why_not(stage)
    owner = owners.setdefault(stage.key, image.identifier)
    if owner != image.identifier:
        return StageState(stage=stage, state=SHARED, shared_with=owner, why=why)
    return StageState(stage=stage, state=TO_BUILD, why=why)


def note_engine(home: Home, engine: Engine) -> str:
    """The engine with its version and options, noted for those who must not start it."""
    words = f"{engine.name} {engine.version()}, {engine.options}"
    home.stages.mkdir(parents=True, exist_ok=True)
    noted = {**_noted(home), engine.name: {"program": _program(home, engine.name), "words": words}}
    write_atomically(home.stages / _ENGINES, json.dumps(noted, indent=1, sort_keys=True) + "\n")
    return words


def noted_engine(home: Home, name: str) -> str:
    """The same as it was noted; empty if the program is another one now, or was never run."""
    noted = _noted(home).get(name)
    if not isinstance(noted, dict) or noted.get("program") != _program(home, name):
        return ""
    words = str(noted.get("words", ""))
    return words if words.endswith(f", {ENGINES[name].options}") else ""


def _noted(home: Home) -> dict[str, Any]:
    try:
        noted = json.loads((home.stages / _ENGINES).read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _program(home: Home, name: str) -> list[Any]:
    """What tells a program from another version of it."""
    found = shutil.which(name, path=home.search_path())
    if found is None:
        return []
    about = Path(found).stat()
    return [found, about.st_size, about.st_mtime_ns]
