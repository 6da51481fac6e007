"""`build-images diff`: compare two images, or an image with the build before it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from builder.artifacts.compare import (
    PREVIOUS,
    ImageChange,
    ImageChanges,
    image_changes,
)
from builder.cli.options import Options, Parser, a_path, add_flag, add_output, find_image
from builder.model.errors import BadInput, counted
from builder.model.manifest import MANIFEST
from builder.verify.container_output import one_line

_DESCRIPTION = """\
Compare two images: packages, files, sizes of the formats, labels and outcomes of the checks. With
one image, its last build is compared with the build before, of which the manifest, the bill of
materials and the list of files are kept in out/IDENTIFIER/previous. The exit code is 0 if the
images are equal, else 1.
"""
_HINT = "name an image's folder, such as out/IDENTIFIER, or its identifier"
_SHOWN = 20
_MB = 1e6


class DiffOptions(Options):
    """The options of `diff`."""

    first: Path
    second: Path | None
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `diff`."""
    parser.description = _DESCRIPTION
    parser.add_argument("first", type=a_path, metavar="IMAGE", help=_HINT)
    parser.add_argument(
        "second",
        type=a_path,
        nargs="?",
        metavar="OTHER",
        help="the image to compare it with (default: the build before)",
    )
    add_output(parser, "where the images' folders are, if identifiers are given (default: out)")
    add_flag(parser, "--json", "print all differences as JSON")


def run(options: DiffOptions) -> int:
    """Print the differences of two images; return 1 if there are any."""
    before = _folder(options, options.first)
    after = _folder(options, options.second) if options.second else before
    if after == before:
        before = after / PREVIOUS
        if not (before / MANIFEST).exists():
            raise BadInput(f"{after.name}: no earlier build is kept", hint="name two images")
    changes = image_changes(before, after)
    print(_as_json(changes) if options.json else "\n".join(_as_text(changes)))
    return 1 if changes.changes or not changes.files_known else 0


def _folder(options: DiffOptions, path: Path) -> Path:
    return find_image(path, options.out, lambda path: (path / MANIFEST).exists(), _HINT)


def _as_json(changes: ImageChanges) -> str:
    return json.dumps(
        {
            "before": {"image": changes.before.image, "started": changes.before.started},
            "after": {"image": changes.after.image, "started": changes.after.started},
            "files_compared": changes.files_known,
            "changes": [dataclasses.asdict(one) for one in changes.changes],
        },
        indent=1,
    )


def _as_text(changes: ImageChanges) -> Iterator[str]:
    yield f"- {changes.before.image}  {changes.before.started}"
    yield f"+ {changes.after.image}  {changes.after.started}"
    for what in ("package", "file", "size", "label", "check"):
        listed = [one for one in changes.changes if one.what == what]
        if what in {"file", "label"} and not changes.files_known:
            yield f"{what}s: not compared: an earlier version kept no list of them"
        else:
            yield f"{what}s: {counted(len(listed), 'difference') if listed else 'equal'}"
        yield from (f"  {one_line(_line(one))}" for one in listed[:_SHOWN])
        if len(listed) > _SHOWN:
            yield f"  and {len(listed) - _SHOWN} more; --json lists all"


def _line(change: ImageChange) -> str:
    if change.what == "file":
        return f"{change.name}: {change.after}"
    if change.what == "size" and change.before and change.after:
        old, new = int(change.before), int(change.after)
        return f"{change.name}: {old / _MB:.2f} MB → {new / _MB:.2f} MB ({new - old:+} bytes)"
    return f"{change.name}: {change.before or 'none'} → {change.after or 'none'}"
