"""Whether two images agree that were built from the same recipe, with native tools and without.

usage: agree.py IMAGE IMAGE [FOLDER]        two folders below out/, such as those of

    build-images --image mpi-source-*-ppc64le --output out/native
    build-images --image mpi-source-*-ppc64le --output out/plain --no-native-tools

Compared are what configure found (in `build.log`), the symbols and needs of programs and libraries
below FOLDER (/usr/local, where things built from source are), the content of every file, and what
the checks found in every format. What differs is listed. Exit code 1: something differs besides
notes of the compiler's revision, which no program reads.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elf

from builder.artifacts.flatten import TreeNode, flattened
from builder.artifacts.oci import read_layout
from builder.artifacts.repack import unpack
from builder.model.manifest import FILES, MANIFEST

UNDER = "usr/local"
NOTES = "code and data are the same, notes are not"
_STEP = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+: (?P<instruction>.*)")
_FOUND = re.compile(r"(?:checking|configure:) .*")
_INPUTS = ("recipes", "specs", "sources", "base", "source_date_epoch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """What two builds share, and what one of them alone has, as lines."""

    alike: int
    first: tuple[str, ...]
    second: tuple[str, ...]

    @classmethod
    def of(cls, first: Iterable[str], second: Iterable[str]) -> Alike:
        """Compare lines, of which each counts as often as it is there; their order does not."""
        ours, theirs = Counter(first), Counter(second)
        return cls(
            alike=(ours & theirs).total(),
            first=tuple(sorted((ours - theirs).elements())),
            second=tuple(sorted((theirs - ours).elements())),
        )

    def as_data(self, first: str, second: str) -> dict[str, object]:
        return {
            "alike": self.alike,
            f"{first} alone": list(self.first),
            f"{second} alone": list(self.second),
        }


def configured(log: str) -> Iterator[str]:
    """What configure scripts said they found; of a step that was run more than once, the last."""
    steps: dict[str, list[str]] = {}
    said: list[str] = []
    instruction = ""
    for line in log.splitlines():
        if step := _STEP.fullmatch(line):
            said = []
            instruction = step["instruction"]
        elif _FOUND.fullmatch(line):
            if not said:
                steps[instruction] = said
            said.append(line)
    return (line for some in steps.values() for line in some)


def interfaces(nodes: dict[str, TreeNode], under: str) -> Iterator[str]:
    """The symbols and needs of all programs and libraries below a folder."""
    for path, node in nodes.items():
        if path.startswith(f"{under}/") and node.member.isreg() and elf.is_elf(data := node.read()):
            yield from (f"/{path}: {line}" for line in elf.interface(data))


def differing(ours: dict[str, TreeNode], theirs: dict[str, TreeNode]) -> dict[str, str]:
    """The paths that differ in kind, mode, target or content, and how."""
    found = {}
    for path in sorted(ours.keys() | theirs.keys()):
        first, second = ours.get(path), theirs.get(path)
        if first is None or second is None:
            found[f"/{path}"] = f"in the {'second' if first is None else 'first'} alone"
        elif _shape(first) != _shape(second):
            found[f"/{path}"] = "another kind, mode or target"
        elif first.member.isreg() and (data := first.read()) != (other := second.read()):
            both = elf.is_elf(data) and elf.is_elf(other)
            same = both and elf.code_digest(data) == elf.code_digest(other)
            found[f"/{path}"] = NOTES if same else "another content"
    return found


def _shape(node: TreeNode) -> tuple[object, ...]:
    member = node.member
    links = member.linkname if member.issym() else ""
    return node.member.isreg(), member.issym(), member.isdir(), member.mode, links


def outcomes(manifest: dict[str, Any]) -> Iterator[str]:
    """The outcome of each check in each format."""
    for name, found in manifest["checks"].items():
        yield from (f"{name}: {one['check']} {one['outcome']}" for one in found)


def compared(folders: Sequence[Path], under: str = UNDER) -> tuple[dict[str, object], bool]:
    """What two images share and where they differ, as data, and whether they agree."""
    manifests = [json.loads((folder / MANIFEST).read_text()) for folder in folders]
    names = _names(manifests)
    logs = [(folder / "build.log").read_text(errors="replace") for folder in folders]
    with tempfile.TemporaryDirectory() as work:
        first, second = (
            flattened(unpack(read_layout(folder / FILES["oci"]), Path(work) / str(number)).layout)
            for number, folder in enumerate(folders)
        )
        files = differing(first, second)
        found = {
            "configure's results": Alike.of(*map(configured, logs)),
            "symbols and needs": Alike.of(*(interfaces(one, under) for one in (first, second))),
            "checks": Alike.of(*map(outcomes, manifests)),
        }
        same_files = len(first.keys() | second.keys()) - len(files)
    inputs = [name for name in _INPUTS if len({_text(one, name) for one in manifests}) > 1]
    told: dict[str, object] = {
        "images": dict(zip(names, map(str, folders), strict=True)),
        "inputs that differ": inputs,
        **{title: one.as_data(*names) for title, one in found.items()},
        "files": {"alike": same_files, "different": files},
    }
    agree = not inputs and set(files.values()) <= {NOTES}
    return told, agree and not any(one.first or one.second for one in found.values())


def _names(manifests: Sequence[dict[str, Any]]) -> list[str]:
    lent = ["native" if one["inputs"].get("native_tools") else "QEMU" for one in manifests]
    return lent if len(set(lent)) > 1 else ["first", "second"]


def _text(manifest: dict[str, Any], name: str) -> str:
    value = manifest["inputs"].get(name)
    # A base that was made twice from the same packages is the same; when does not matter.
    value = value["digest"] if name == "base" else value
    return json.dumps(value, sort_keys=True)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in {2, 3}:
        sys.exit(__doc__)
    under = arguments[2].strip("/") if len(arguments) > 2 else UNDER
    told, agree = compared([Path(one) for one in arguments[:2]], under)
    print(json.dumps(told, indent=1))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
