"""`build-images diff`: compare two images, or an image with the build before it."""

from __future__ import annotations

from pathlib import Path

from builder.artifacts.compare import image_changes, previous_of
from builder.cli.options import ImageOptions, Parser, a_path, add_image, add_json
from builder.model.manifest import MANIFEST


class DiffOptions(ImageOptions):
    """The options of `diff`."""

    other: Path | None
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `diff`."""
    parser.description = """\
Compare two images: packages, files, sizes of the formats, labels and outcomes of the checks. With
one image, its last build is compared with the build before, of which the manifest, the bill of
materials and the list of files are kept in out/IDENTIFIER/previous. The exit code is 0 if the
images are equal, else 1.
"""
    add_image(parser)
    text = "the image to compare it with (default: the build before)"
    parser.add_argument("other", type=a_path, nargs="?", metavar="OTHER", help=text)
    add_json(parser, "print all differences as JSON")


def run(options: DiffOptions) -> int:
    """Print the differences of two images; return 1 if there are any."""
    folder = options.folder(MANIFEST)
    if options.other:
        changes = image_changes(folder, options.folder(MANIFEST, path=options.other))
    else:
        changes = image_changes(previous_of(folder), folder)
    options.show(changes.as_json(), changes.as_text)
    return 0 if changes.is_equal else 1
