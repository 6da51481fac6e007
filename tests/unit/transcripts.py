"""What commands print, exit with and leave behind, as text that is compared with a golden file.

What differs from run to run is replaced: the folder of the test, the registry's address, times, and
digests, which are numbered as they come up. UPDATE_GOLDEN=1 writes the files anew: read the
difference.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake, digest
from samples import GOLDEN

from builder.cli import main

_DIGEST = re.compile(r"\b[0-9a-f]{12,64}\b")  # a SHA-256, or as much of it as is shown


class Transcript:
    """Commands with what they print, and the files that they leave."""

    def __init__(self, capsys: pytest.CaptureFixture[str], replaced: Mapping[str, str]) -> None:
        self._capsys = capsys
        self._replaced = replaced
        self._digests: list[str] = []
        self._text = ""

    def run(self, *argv: str | Path) -> str:
        """Run a command, and note all of it; what it printed on standard output."""
        words = [str(word) for word in argv]
        try:
            code: object = main(words)
        except SystemExit as ended:
            code = ended.code
        out, err = self._capsys.readouterr()
        self.note(f"$ build-images {' '.join(words)}", f"{err}{out}(exit {code})")
        return out

    def files(self, folder: Path, *, without: Sequence[str] = ()) -> None:
        """Note what is in a folder: modes, links, and JSON without some of its keys."""
        lines = sorted(_line(path, folder, without) for path in folder.rglob("*"))
        self.note(f"# {folder}", "\n".join(lines))

    def registry(self, fake: Fake) -> None:
        """Note all manifests of a registry, with what is signed in their blobs."""
        tags = [
            f"{repository}:{name} is {digest(content)}"
            for (repository, name), (content, _) in sorted(fake.manifests.items())
            if not name.startswith("sha256")
        ]
        documents = dict.fromkeys(  # as they came, where only digests differ
            json.dumps(_readable(json.loads(content), fake), indent=1)
            for content, _ in fake.manifests.values()
        )
        some = sorted(documents, key=lambda text: re.sub(_DIGEST, "", text))
        self.note("# the registry", "\n".join([*tags, *some]))

    def note(self, title: str, text: str) -> None:
        self._text += self._normal(f"{title}\n{text}\n\n")

    def compare(self, name: str) -> None:
        """Compare all that was noted with a golden file."""
        file = GOLDEN / "transcripts" / f"{name}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(self._text)
        assert self._text == file.read_text()

    def _normal(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        text = re.sub(r"\[ *\d+\.\d s\]", "[TIME]", text)
        text = re.sub(r'("bytes": )[1-9]\d*', r"\1SIZE", text)  # a signature is not always as long
        return re.sub(_DIGEST, lambda match: self._number(match[0]), text)

    def _number(self, digits: str) -> str:
        for number, known in enumerate(self._digests):
            if known.startswith(digits) or digits.startswith(known):
                self._digests[number] = max(known, digits, key=len)
                return f"<{number}>"
        self._digests.append(digits)
        return f"<{len(self._digests) - 1}>"


def _line(path: Path, folder: Path, without: Sequence[str]) -> str:
    status = path.lstat()
    name = re.sub(_DIGEST, "DIGEST", str(path.relative_to(folder)))
    line = f"{stat.filemode(status.st_mode)} {name}"
    if path.is_symlink():
        return f"{line} -> {path.readlink()}"
    if path.suffix == ".json" and path.is_file():
        content = json.loads(path.read_text())
        kept = {key: value for key, value in content.items() if key not in without}
        return f"{line}\n{json.dumps(kept, indent=1, ensure_ascii=False)}"
    return line


def _readable(value: Any, fake: Fake) -> Any:
    """JSON with what is in Base64 and behind digests in it; without signatures and sizes."""
    if isinstance(value, list):
        return [_readable(one, fake) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: _part(key, one, fake) for key, one in value.items()}
    if "digest" in value and "mediaType" in value and (content := _content(value, fake)):
        made["content"] = _readable(content, fake)
    return made


def _part(key: str, value: Any, fake: Fake) -> Any:
    if key in {"sig", "size", "data", "dev.cosignproject.cosign/signature"} and value:
        return key.upper()
    if key == "payload":
        return _readable(json.loads(base64.b64decode(value)), fake)
    return _readable(value, fake)


def _content(descriptor: dict[str, Any], fake: Fake) -> Any:
    """The JSON that a descriptor names, if it is some; that of a subject is there by itself."""
    for (_, name), content in fake.blobs.items():
        if name == descriptor["digest"] and content.startswith(b"{"):
            assert descriptor["size"] == len(content)
            return json.loads(content)
    return None
