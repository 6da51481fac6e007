"""What each build was given by the cache of packages, noted so that it can be given again.

A journal is a file of JSON lines in `packages/journals`: a URL, the file that answered it (its path
below `packages`) and its media type; of a URL that is there twice, the last line counts. Its name
is made of the name under which the engine keeps what was built. Files that may change under their
URL, as indices do, are kept by their SHA-256 in `packages/answers`. A line is written in one piece,
so whatever ends a build, those before it stay. The last line says which layers were built, and
whether all that they needed is noted: a layer that was taken from an earlier build brings what that
one was given. Lines beside these say which states of package indices it was told of.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.sources.package_indices import IndexState, distinct, state_from
from builder.system.atomic import write_whole
from builder.system.home import PIP_CONFIG
from builder.system.locks import locked

ANSWERS = "answers"
RUN = "run"  # the user who is no build
_FOLDER = "journals"
_INDEX = "index"
_STATE = "state"
_ALONE = "alone"  # it took no layer of an earlier build
_WHO = re.compile(r"[0-9a-f]{32}")
_RUN_S = re.compile(rf"//{RUN}:(?P<secret>[^@/\s]+)@")
_FILE = re.compile(r"(?:[0-9a-f]{2}|answers)/[A-Za-z0-9+_~-][A-Za-z0-9.+_~-]*")


def who_of(name: str) -> str:
    """How the cache knows the build of a name: 32 hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What answered a URL: `file` is its path below the cache, `kind` its media type."""

    url: str
    file: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Journals:
    """The journals in a cache's folder; of a build that is not noted there, in a `shared` one."""

    cache: Path
    shared: Path | None = None

    def path(self, who: str) -> Path:
        return self.cache / _FOLDER / f"{who}.jsonl"

    def note(self, who: str, given: Iterable[Given]) -> None:
        """Add lines to a journal; nothing for who is none."""
        if not is_who(who):
            return
        self._append(who, [asdict(one) for one in given])

    def note_state(self, who: str, state: IndexState) -> None:
        """Add the state of a suite that a build was told of; nothing for who is none."""
        if is_who(who):
            self._append(who, [{_STATE: asdict(state)}])

    def states(self, who: str) -> tuple[IndexState, ...]:
        """The states of suites that a build was told of, or the builds that its layers are of."""
        found, since = list[IndexState](), 0
        for line in self._lines(who):
            if one := _state(line):
                found.append(one)
            elif line.get(_ALONE) is True:  # what was told before is of no layer of this one
                found = found[since:]
            elif line.get("complete") is False:
                since = len(found)
        return distinct(found)

    def begin(self, who: str, *, fresh: bool) -> None:
        """A build begins; a fresh one takes up no layer of an earlier one."""
        if fresh:
            self.path(who).unlink(missing_ok=True)
        self._append(who, [{"complete": False}])

    def end(self, who: str, *, built: Iterable[str], taken: Iterable[str], well: bool) -> None:
        """A build ended, `well` or not: which layers it built, which it took from earlier ones."""
        taken = {*taken}
        own = self.of(who)
        known = self._built(who) | {*built}
        inherited: dict[str, Given] = {}
        states = set[IndexState]()
        others = taken - known
        builders = self._builders() if others else {}
        well = well and others <= builders.keys()
        for other in {builders[one] for one in others & builders.keys()}:
            inherited |= self.of(other)
            states |= {*self.states(other)}
        # An index that changed between two builds would be one of the two for both.
        well = well and all(own.get(url, one).file == one.file for url, one in inherited.items())
        self.note(who, [one for url, one in inherited.items() if url not in own])
        for one in sorted(states - {*self.states(who)}):
            self.note_state(who, one)
        alone = {} if taken else {_ALONE: True}
        self._append(who, [{"complete": well, "built": sorted(known), **alone}])

    def _builders(self) -> dict[str, str]:
        """The build that made each layer."""
        paths = (self.cache / _FOLDER).glob("*.jsonl")
        return {layer: one.stem for one in paths for layer in self._built(one.stem)}

    def _built(self, who: str) -> set[str]:
        found: set[str] = set()
        for line in self._lines(who):
            if isinstance(some := line.get("built"), list):
                found |= {one for one in some if isinstance(one, str)}
        return found

    def _append(self, who: str, lines: Iterable[Mapping[str, object]]) -> None:
        path = self.path(who)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, _text(lines).encode())
        finally:
            os.close(handle)

    def replace(self, who: str, given: Iterable[Given]) -> None:
        """Put a whole journal in the place of the one before, which is there until then.

        Nobody else writes it meanwhile.
        """
        lines = [*map(asdict, given), {"complete": True, "built": []}]
        write_whole(self.path(who), _text(lines))

    def of(self, who: str) -> dict[str, Given]:
        """What a build was given, by URL; nothing of a build that is not known."""
        return {one.url: one for line in self._lines(who) if (one := _given(line))}

    def is_complete(self, who: str) -> bool:
        """Whether a build ended well, and all that it needed is noted."""
        ends = [line["complete"] for line in self._lines(who) if "complete" in line]
        return bool(ends) and ends[-1] is True

    def _lines(self, who: str) -> list[dict[str, object]]:
        """The lines; what was cut short is left out, and noted by the next build."""
        if not is_who(who):
            return []
        text = self._read(f"{who}.jsonl")
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [one for one in found if isinstance(one, dict)]

    def newest_first(self) -> Iterator[Mapping[str, Given]]:
        """The journals of all builds."""
        files = [path for one in self._folders for path in one.glob("*.jsonl")]
        found = sorted(files, key=lambda one: -one.stat().st_mtime)
        return (self.of(stem) for stem in dict.fromkeys(path.stem for path in found))

    @property
    def _folders(self) -> list[Path]:
        return [one / _FOLDER for one in (self.cache, self.shared) if one]

    def _read(self, name: str) -> str:
        """A file of the cache's folder, or else of the shared one; empty if neither has it."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                return (folder / name).read_text()
        return ""

    @property
    def index(self) -> str:
        """The index that pip was last led to; empty if it never was."""
        return self._read(_INDEX).strip()

    def note_index(self, url: str) -> None:
        """Note which index pip is led to."""
        folder = self.cache / _FOLDER
        with locked(folder, _INDEX):
            write_whole(folder / _INDEX, url + "\n")


def is_who(text: str) -> bool:
    """Whether a text can be a build's."""
    return _WHO.fullmatch(text) is not None


def is_file(text: str) -> bool:
    """Whether a text is the path of a kept file below the cache, and leads nowhere else."""
    return _FILE.fullmatch(text) is not None


def _text(lines: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(one, sort_keys=True) + "\n" for one in lines)


def _given(line: Mapping[str, object]) -> Given | None:
    """What a line notes of a URL; None if it notes something else."""
    url, file, kind = (line.get(key) for key in ("url", "file", "kind"))
    if not (isinstance(url, str) and isinstance(file, str) and isinstance(kind, str)):
        return None
    return Given(url=url, file=file, kind=kind) if is_file(file) else None


def _state(line: Mapping[str, object]) -> IndexState | None:
    """The state of a suite that a line notes; None if it notes something else."""
    try:
        return state_from(line[_STATE])
    except (KeyError, TypeError, ValueError):
        return None


def key_of(secret: str, who: str) -> str:
    """The key with which a build, or the run itself, is known; it tells nothing of any other."""
    if who == RUN:
        return secret
    return hmac.new(secret.encode(), who.encode(), hashlib.sha256).hexdigest()


def as_build(text: str, who: str) -> str:
    """A text with the cache's URL, as that of a build: what it is given is noted as that one's."""
    return _RUN_S.sub(lambda found: f"//{who}:{key_of(found['secret'], who)}@", text)


def pip_as_build(folder: str, who: str) -> Path:
    """The folder with pip's configuration, as that of a build."""
    config = Path(folder) / Path(PIP_CONFIG).name
    own = Path(folder) / who
    own.mkdir(exist_ok=True)
    (own / config.name).write_text(as_build(config.read_text(), who))
    return own


def user_and_key(header: str) -> tuple[str, str]:
    """The name and the password of a header of Basic authorization; empty if it is none."""
    try:
        text = base64.b64decode(header.removeprefix("Basic ")).decode("ascii")
    except ValueError:
        return "", ""
    user, _, key = text.partition(":")
    return user, key
