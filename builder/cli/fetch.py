"""`build-images fetch`: download locked sources into the local store."""

from __future__ import annotations

from builder.build.at_work import store_in_use
from builder.build.inputs import fetch_sources, sources_of
from builder.build.planning import compile_images, own_images
from builder.cli.options import Parser, SelectorOptions
from builder.compile.spec import block_faults
from builder.load.project import load_project
from builder.model.errors import counted
from builder.system.home import Home
from builder.system.terminal import Progress


class FetchOptions(SelectorOptions):
    offline: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.add_offline()
    parser.add_json("print the files as JSON, by URL")


def run(options: FetchOptions) -> int:
    """Download every locked source of the selected images into the store."""
    project = load_project(options.project, block_faults=block_faults)
    images, _ = own_images(project, options.selection)
    specs = compile_images(options.project, images)
    progress = Progress(level=options.level)
    home = Home.of_environment()
    with store_in_use(home, options.project, progress.say):
        paths = fetch_sources(options.project, specs, progress, offline=options.offline)
    sources = sources_of(specs)
    size = sum(source.size for source in sources) / 1e6
    text = f"{counted(len(sources), 'source')}, {size:.1f} MB, in {home.sources}"
    options.show({url: str(path) for url, path in sorted(paths.items())}, lambda: text)
    return 0
