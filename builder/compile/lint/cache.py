"""What lint found before, by content: unchanged specs are not read again.

One JSON file holds all results. Several processes may use it at once: it is replaced as a whole,
under a lock. A file that cannot be read, or does not hold what it should, counts as empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.compile.lint.findings import Problem
from builder.model import Spec
from builder.system.atomic import write_atomically
from builder.system.locks import locked

MOST = 20_000  # results that are kept, the newest
_FIELDS = frozenset(field.name for field in dataclasses.fields(Problem))


class Cache:
    """Results by key, in `FOLDER/lint.json`; nothing is kept without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._entries = self._read()
        self._new: dict[str, object] = {}

    def problems(self, key: str) -> list[Problem] | None:
        """What was found for a key, or nothing if it is not known or not whole."""
        return _problems(self._entries.get(f"spec {key}"))

    def keep(self, key: str, problems: Sequence[Problem]) -> None:
        self._new[f"spec {key}"] = [dataclasses.asdict(problem) for problem in problems]

    def text(self, key: str) -> str | None:
        """A short text, such as a program's version."""
        found = self._entries.get(f"text {key}")
        return found if isinstance(found, str) else None

    def keep_text(self, key: str, text: str) -> None:
        self._new[f"text {key}"] = text

    def save(self) -> None:
        """Add what is new. A folder that cannot be written to costs time, and nothing else."""
        if self._folder is None or not self._new:
            return
        with contextlib.suppress(OSError), locked(self._folder, "lint"):
            entries = {**self._read(), **self._new}
            kept = dict(list(entries.items())[-MOST:])
            write_atomically(self._folder / "lint.json", json.dumps(kept, separators=(",", ":")))

    def _read(self) -> dict[str, object]:
        if self._folder is None:
            return {}
        try:
            found = json.loads((self._folder / "lint.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _problems(stored: object) -> list[Problem] | None:
    if not isinstance(stored, list):
        return None
    if not all(isinstance(one, dict) and one.keys() == _FIELDS for one in stored):
        return None
    return [Problem(**one) for one in stored]


def rules_digest() -> str:
    """Changes whenever a rule does: a digest of this package's own source."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


class Keys:
    """The keys of specs, for one state of rules and linters."""

    def __init__(self, state: Sequence[str]) -> None:
        self._begin = "\0".join(state)
        self._digests: dict[str, bytes] = {}

    def of(self, spec: Spec, *, locked: bool) -> str:
        """A SHA-256 in hexadecimal over everything that the rules look at."""
        words = [self._begin, spec.image.cell.arch, str(locked), spec.dockerfile, spec.singularity]
        words += [source.in_context for source in spec.sources]
        digest = hashlib.sha256("\0".join(words).encode())
        digest.update(self._files(spec.files))
        return digest.hexdigest()

    def _files(self, files: Mapping[str, str]) -> bytes:
        """Most specs hold the same files: each text is hashed once."""
        found = []
        for name, text in files.items():
            if text not in self._digests:
                self._digests[text] = hashlib.sha256(text.encode()).digest()
            found.append(name.encode() + b"\0" + self._digests[text])
        return b"".join(found)
