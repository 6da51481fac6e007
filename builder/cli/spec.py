"""`build-images spec`: write the Dockerfile and Singularity.def of each image."""

from __future__ import annotations

import sys

from builder.build import workspace
from builder.build.planning import compile_images, load_images
from builder.cli.lint import check
from builder.cli.options import Parser, SelectorOptions
from builder.compile.spec import base_archive


class SpecOptions(SelectorOptions):
    no_lint: bool


def declare(parser: Parser) -> None:
    parser.add_output("where to write a folder for each image (default: PROJECT/out)")
    parser.add_no_lint()


def run(options: SpecOptions) -> int:
    """Write the specs of the selected images, lint them, and print their folders."""
    specs = compile_images(options.project, load_images(options.project, options.selection))
    for spec in specs:
        folder = options.out / spec.image.identifier
        sources = workspace.stored_sources(spec)
        workspace.write_spec(spec, None, folder, base_archive(spec.image), sources)
    if not options.no_lint:
        check(options.project, specs, lambda text: print(text, file=sys.stderr))
    print("\n".join(str(options.out / spec.image.identifier) for spec in specs))
    return 0
