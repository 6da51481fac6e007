"""Journals of the files that the package cache served to each build, so that it can repeat them.

A journal is a file of JSON lines in `packages/journals`: a URL, the file served for it (its path
below `packages`) and its media type; the last line for a URL counts. The journal's name is a digest
of the engine's name for the build. Files that may change under their URL, such as indices, are
stored by SHA-256 in `packages/answers`. Each line is a single write, so an interruption loses no
earlier line. The last line lists the layers that were built, and whether all files that they needed
are noted: for a reused layer, the files of the earlier build are added. Other lines note the states
of package indices that the build saw.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.model.package_indices import IndexState, distinct, state_from
from builder.model.records import read
from builder.system.files import write_atomically
from builder.system.home import PIP_CONFIG
from builder.system.locks import locked

ANSWERS = "answers"
RUN = "run"  # user name of requests that belong to no build
_FOLDER = "journals"
_INDEX = "index"
_STATE = "state"
_ALONE = "alone"  # no layer of an earlier build was reused
_BUILD_ID = re.compile(r"[0-9a-f]{32}")
_RUN_S = re.compile(rf"//{RUN}:(?P<secret>[^@/\s]+)@")
_FILE = re.compile(r"(?:[0-9a-f]{2}|answers)/[A-Za-z0-9+_~-][A-Za-z0-9.+_~-]*")


def build_id(name: str) -> str:
    """Return the cache's identifier for a build's name: 32 hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedFile:
    """The file served for a URL: `file` is its path below the cache, `kind` its media type."""

    url: str
    file: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Journals:
    """The journals in a cache's folder; a journal missing there is read from the `shared` one."""

    cache: Path
    shared: Path | None = None

    def path(self, build: str) -> Path:
        return self.cache / _FOLDER / f"{build}.jsonl"

    def note(self, build: str, files: Iterable[ServedFile]) -> None:
        """Add lines to a journal; `RUN`, which is no build, is ignored."""
        self._append(build, [asdict(file) for file in files])

    def note_state(self, build: str, state: IndexState) -> None:
        """Add the state of a suite that a build saw; `RUN` is ignored."""
        self._append(build, [{_STATE: asdict(state)}])

    def states(self, build: str) -> tuple[IndexState, ...]:
        """Return the suite states that a build, or the builds of its reused layers, saw."""
        states, since = list[IndexState](), 0
        for line in self._lines(build):
            if _STATE in line:
                with contextlib.suppress(ValueError):
                    states.append(state_from(line[_STATE]))
            elif line.get(_ALONE) is True:  # earlier states do not concern this build's layers
                states = states[since:]
            elif line.get("complete") is False:
                since = len(states)
        return distinct(states)

    def begin(self, build: str, *, fresh: bool) -> None:
        """Begin a build; a fresh one reuses no layers."""
        if fresh:
            self.path(build).unlink(missing_ok=True)
        self._append(build, [{"complete": False}])

    def end(self, build: str, *, built: Iterable[str], taken: Iterable[str], well: bool) -> None:
        """End a build; `well` if it succeeded. It built layers and reused others (`taken`)."""
        known, taken = self._built(build) | {*built}, {*taken}
        layers = taken - known
        paths = (self.cache / _FOLDER).glob("*.jsonl") if layers else ()
        builders = {layer: path.stem for path in paths for layer in self._built(path.stem)}
        others = {builders[layer] for layer in layers & builders.keys()}
        own = self.of(build)
        inherited = {url: file for other in others for url, file in self.of(other).items()}
        states = {state for other in others for state in self.states(other)}
        # If an index changed between the builds, one file could not serve both.
        agree = all(own.get(url, file).file == file.file for url, file in inherited.items())
        well = well and agree and layers <= builders.keys()
        self.note(build, [file for url, file in inherited.items() if url not in own])
        for state in sorted(states - {*self.states(build)}):
            self.note_state(build, state)
        alone = {} if taken else {_ALONE: True}
        self._append(build, [{"complete": well, "built": sorted(known), **alone}])

    def _built(self, build: str) -> set[str]:
        """Return the layers that a build built."""
        lists = (line.get("built") for line in self._lines(build))
        layers = (layer for built in lists if isinstance(built, list) for layer in built)
        return {layer for layer in layers if isinstance(layer, str)}

    def _append(self, build: str, lines: Iterable[Mapping[str, object]]) -> None:
        """Append lines in a single write."""
        if is_build_id(build):
            self.path(build).parent.mkdir(parents=True, exist_ok=True)
            with self.path(build).open("ab", buffering=0) as file:
                file.write(_text(lines).encode())

    def replace(self, build: str, files: Iterable[ServedFile]) -> None:
        """Replace a journal atomically; no other process may write it meanwhile."""
        lines = [*map(asdict, files), {"complete": True, "built": []}]
        write_atomically(self.path(build), _text(lines), durable=True)

    def of(self, build: str) -> dict[str, ServedFile]:
        """Return the files served to a build, by URL; empty for an unknown build."""
        files: dict[str, ServedFile] = {}
        for line in self._lines(build):
            with contextlib.suppress(ValueError):
                file = read(ServedFile, line)
                if is_file(file.file):
                    files[file.url] = file
        return files

    def is_complete(self, build: str) -> bool:
        """Return whether a build succeeded and all files that it needed are noted."""
        ends = [line["complete"] for line in self._lines(build) if "complete" in line]
        return ends[-1:] == [True]

    def _lines(self, build: str) -> list[dict[str, object]]:
        """Return the complete lines; the next build notes a truncated line again."""
        entries = []
        for line in self._read(f"{build}.jsonl").splitlines() if is_build_id(build) else ():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return [entry for entry in entries if isinstance(entry, dict)]

    def newest_first(self) -> Iterator[Mapping[str, ServedFile]]:
        """Yield the journals of all builds, newest first."""
        files = [path for folder in self._folders for path in folder.glob("*.jsonl")]
        newest = sorted(files, key=lambda path: -path.stat().st_mtime)
        return (self.of(stem) for stem in dict.fromkeys(path.stem for path in newest))

    @property
    def _folders(self) -> list[Path]:
        return [cache / _FOLDER for cache in (self.cache, self.shared) if cache]

    def _read(self, name: str) -> str:
        """Return the text of a file in the cache's folder or the shared one; empty if missing."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                return (folder / name).read_text()
        return ""

    @property
    def index(self) -> str:
        """Return the index that pip used last; empty if none."""
        return self._read(_INDEX).strip()

    def note_index(self, url: str) -> None:
        """Note the index that pip uses."""
        folder = self.cache / _FOLDER
        with locked(folder, _INDEX):
            write_atomically(folder / _INDEX, url + "\n", durable=True)


def is_build_id(text: str) -> bool:
    """Return whether a text is a valid build identifier."""
    return _BUILD_ID.fullmatch(text) is not None


def is_file(text: str) -> bool:
    """Return whether a text is a file path below the cache that cannot lead out of it."""
    return _FILE.fullmatch(text) is not None


def _text(lines: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


def key_of(secret: str, user: str) -> str:
    """Return the password for a build, or for the run itself; no other can be derived from it."""
    if user == RUN:
        return secret
    return hmac.new(secret.encode(), user.encode(), hashlib.sha256).hexdigest()


def as_build(text: str, build: str) -> str:
    """Put a build's login into the cache's URL in a text, so that requests are noted for it."""
    return _RUN_S.sub(lambda match: f"//{build}:{key_of(match['secret'], build)}@", text)


def pip_as_build(folder: str, build: str) -> Path:
    """Write a pip configuration with a build's login; return its folder."""
    config = Path(folder) / Path(PIP_CONFIG).name
    own = Path(folder) / build
    own.mkdir(exist_ok=True)
    (own / config.name).write_text(as_build(config.read_text(), build))
    return own


def user_and_key(header: str) -> tuple[str, str]:
    """Return user name and password of a Basic authorization header; empty for other headers."""
    try:
        text = base64.b64decode(header.removeprefix("Basic ")).decode("ascii")
    except ValueError:
        return "", ""
    user, _, key = text.partition(":")
    return user, key
