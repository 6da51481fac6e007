"""Whether so many images are meant, before the first of them is begun."""

from __future__ import annotations

import sys

from builder.model.cells import Selection
from builder.model.errors import BadInput

MANY = 20  # images, each of minutes; `--arch ppc64le --cuda 10.1` takes 16
_HINT = "--all says that they are meant; --dry-run lists them, and --recipe or --image names fewer"


def check_number(selection: Selection, number: int) -> None:
    """Ask whether to build as many images as selectors took together; raise `BadInput` if not.

    `--arch x86_64` takes every recipe, and whoever says it may mean one. Without a terminal there
    is nobody to be asked.
    """
    is_chosen = selection.patterns or selection.images
    if selection.everything or not is_chosen or number <= MANY:
        return
    told = f"{number} images are to be built"
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"{told}, and there is no terminal to ask if that is meant", hint=_HINT)
    print(f"{told}. Is that meant? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise BadInput("nothing was built", hint=_HINT)
