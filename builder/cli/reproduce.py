"""`build-images reproduce`: build an image again, and compare it byte for byte."""

from __future__ import annotations

from pathlib import Path

from builder.build.planning import unchanged_spec
from builder.build.run import BuildSettings
from builder.cli.options import ImageOptions, Parser, ProgressOptions
from builder.model.errors import BadInput
from builder.model.manifest import MANIFEST, Manifest
from builder.system.terminal import progress_for
from builder.verify.finished_images import read_finished
from builder.verify.reproduction import build_again

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


class ReproduceOptions(ImageOptions, ProgressOptions):
    no_native_tools: bool
    max_index_age: int | None
    offline: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_image()
    parser.add_no_native_tools()
    parser.add_max_index_age()
    parser.add_offline()
    parser.add_json("print the result as JSON")


def run(options: ReproduceOptions) -> int:
    """Build an image again from its inputs; return 0 if the result is identical, else 1."""
    folder = options.image_folder(options.path, MANIFEST)
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
    options.show(comparison.as_json(), comparison.as_text)
    return 0 if comparison.is_same else 1


def _manifest(folder: Path) -> Manifest:
    manifest = read_finished(folder)
    if manifest.inputs.source_date_epoch is None:
        raise BadInput(
            f"{folder}: built by a version whose images cannot be reproduced",
            hint="build it again: build-images --no-cache --image " + folder.name,
        )
    return manifest
