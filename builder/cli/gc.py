"""`build-images gc`: show or remove unused parts of this machine's store, or of the site's."""

from __future__ import annotations

from builder.build.at_work import LOCK, clean
from builder.build.engines import Tools
from builder.build.garbage import (
    UNUSED_FOR,
    Garbage,
    as_data,
    as_text,
    free,
    garbage,
    garbage_of_site,
)
from builder.build.planning import load_images
from builder.cli.options import Options, Parser, number_of_days
from builder.model import FLAVOURS, Selection
from builder.model.errors import BuildImagesError
from builder.system.home import Home
from builder.system.locks import locked_now
from builder.system.orphans import end_orphans
from builder.system.process import Processes


class GcOptions(Options):
    free: bool
    unused_for: int | None
    layers: bool
    store: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.add_flag("--free", "remove the parts (default: show them)")
    text = f"keep parts that any project used in the last DAYS days (default: {UNUSED_FOR})"
    parser.add_argument("--unused-for", type=number_of_days, metavar="DAYS", help=text)
    parser.add_flag("--layers", "include all build layers; later builds make them again")
    text = (
        "entries of the site's store, which all projects and machines share, instead of this "
        "machine's parts"
    )
    parser.add_flag("--store", text)
    parser.add_json()


def run(options: GcOptions) -> int:
    """Show unused parts of the store; with `--free`, remove them."""
    if options.store:
        unused = garbage_of_site(
            options.project, Processes(), unused_for=options.unused_for, removes=options.free
        )
    else:
        unused = _of_machine(options)
    command = "build-images gc --store" if options.store else "build-images gc"
    data = as_data(unused, freed=options.free)
    options.show(data, lambda: as_text(unused, freed=options.free, command=command))
    return 0


def _of_machine(options: GcOptions) -> list[Garbage]:
    home = Home.of_environment()
    tools = Tools(processes=Processes(), home=home)
    with locked_now(home.path, LOCK) as alone:
        if not alone:
            raise BuildImagesError(
                f"another build-images is using the store ({home.path}); nothing was removed",
                hint="run build-images gc after it has finished",
            )
        if options.free:
            end_orphans(home.builders, home=home.path)
            clean(tools)
        everything = Selection(everything=True, flavours=FLAVOURS)
        unused = garbage(
            tools,
            options.project,
            load_images(options.project, everything),
            unused_for=UNUSED_FOR if options.unused_for is None else options.unused_for,
            layers=options.layers,
        )
        if options.free:
            free(unused, tools)
    return unused
