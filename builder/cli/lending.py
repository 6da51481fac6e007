"""What build steps are lent: folders of this machine that stay out of the image."""

from __future__ import annotations

from pathlib import Path

from builder import native
from builder.bases import find_mirror
from builder.cli.run import Run
from builder.engines import Lent
from builder.home import LENT_AT
from builder.model import PlannedImage


def lent_to(run: Run, image: PlannedImage, *, log: Path) -> tuple[Lent, ...]:
    """What the build steps of an image are lent."""
    if not run.engine.lends:
        return ()
    tools = native_tools(run, image, log=log)
    return (Lent(path=tools.root, at=LENT_AT),) if tools else ()


def native_tools(run: Run, image: PlannedImage, *, log: Path) -> native.NativeTools | None:
    """The native tools for an image that is emulated; brought first if need be."""
    if not run.native_tools or native.lacking(image.base, image.cell.arch, run.host.arch):
        return None

    def say(text: str) -> None:
        run.progress.step(image.identifier, text)

    if not native.has_door(image.cell.arch):
        say("no native tools: the kernel's handler is not that of 'make setup'")
        return None
    return native.ensure_tools(
        image.base,
        image.cell.arch,
        mirror=run.mirror or find_mirror(),
        store=run.tools.home.native,
        processes=run.tools.processes,
        log=log,
        say=say,
        environment=run.tools.downloading,
        not_before=run.not_before,
    )
