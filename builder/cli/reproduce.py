"""`build-images reproduce`: build an image again, and compare it byte for byte."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from builder.build.planning import unchanged_spec
from builder.build.run import BuildSettings
from builder.cli.options import (
    Parser,
    ProgressOptions,
    a_path,
    add_flag,
    add_max_index_age,
    add_no_native_tools,
    add_offline,
    add_output,
    find_image,
)
from builder.model.errors import BadInput, counted
from builder.model.manifest import MANIFEST, Manifest
from builder.system.terminal import progress_for
from builder.verify.finished_images import finished
from builder.verify.reproduction import Comparison, build_again

_SHOWN = 5
_DESCRIPTION = """\
Build an image again and compare OCI layout and Charliecloud tarball with those in its folder.

The build uses the base in the folder, the project's specs for the image, locked sources and no
layer of an earlier build. It runs in a temporary folder; the image's folder is not changed. The
exit code is 0 if both files are identical, else 1. For each layer that differs, the output names
the first path, and says whether its content, mode, mtime, owner, link or type differs, or whether
it is missing. Packages come from the distribution's mirror of today: packages of another version
are listed. With --no-native-tools, the command also shows that native tools changed nothing in an
image that was built with them.
"""


_HINT = "name an image's folder, such as out/IDENTIFIER, or its identifier"


class ReproduceOptions(ProgressOptions):
    """The options of `reproduce`."""

    path: Path
    no_native_tools: bool
    max_index_age: int | None
    offline: bool
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `reproduce`."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "path",
        type=a_path,
        metavar="IMAGE",
        help="an image's folder, such as out/IDENTIFIER, or its identifier",
    )
    add_output(parser, "where the image's folder is, if its identifier is given (default: out)")
    add_no_native_tools(parser)
    add_max_index_age(parser)
    add_offline(parser)
    add_flag(parser, "--json", "print the result as JSON")


def run(options: ReproduceOptions) -> int:
    """Build an image again from its inputs; return 0 if the result is identical, else 1."""
    folder = find_image(options.path, options.out, lambda path: (path / MANIFEST).exists(), _HINT)
    manifest = _manifest(folder)
    spec = unchanged_spec(options.project, manifest)
    build = BuildSettings(
        project=options.project,
        out=options.out,
        native_tools=not options.no_native_tools,
        offline=options.offline,
        max_index_age=options.max_index_age,
        verbose=options.level > 1,
    )
    comparison = build_again(folder, manifest, spec, build, progress_for(options.level))
    print(_as_json(comparison) if options.json else _as_text(comparison))
    return 0 if comparison.is_same else 1


def _manifest(folder: Path) -> Manifest:
    manifest = finished(folder)
    if manifest.inputs.source_date_epoch is None:
        raise BadInput(
            f"{folder}: built by a version whose images cannot be reproduced",
            hint="build it again: build-images --no-cache --image " + folder.name,
        )
    return manifest


def _as_json(comparison: Comparison) -> str:
    digests = {
        name: {"before": digest, "after": comparison.after[name]}
        for name, digest in comparison.before.items()
    }
    return json.dumps(
        {
            "image": comparison.image,
            "reproduced": comparison.is_same,
            "artifacts": digests,
            "differences": [dataclasses.asdict(change) for change in comparison.differences],
            "packages": list(comparison.packages),
            "duration_s": comparison.duration_s,
        },
        indent=1,
    )


def _as_text(comparison: Comparison) -> str:
    mark, end = ("✓", "the same") if comparison.is_same else ("✗", "it differs")
    lines = [f"{mark} {comparison.image}  built again in {comparison.duration_s:.0f} s: {end}"]
    for name, digest in comparison.before.items():
        rebuilt = comparison.after[name]
        lines.append(f"    {name:12} {rebuilt}" + ("" if rebuilt == digest else f", not {digest}"))
    lines += [f"  {difference}" for difference in comparison.differences]
    if packages := comparison.packages:
        more = len(packages) - _SHOWN
        text = "; ".join(packages[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        lines.append(f"  {counted(len(packages), 'package')} of another version: {text}")
    return "\n".join(lines)
