"""The layers of a project: the shipped files, those of its site, its own."""

from __future__ import annotations

from pathlib import Path

from builder.load.document import Faults, Node, parse
from builder.load.site import check_layer, read_site
from builder.model import Layer, Layers
from builder.model.site import PACKED, PROJECT, SHIPPED, SITE

MATRIX = "matrix.yaml"
INHERIT = "inherit"
_PROGRAM = Path(__file__).resolve().parents[2]
_IN_WHEEL = "build_images"  # setup.py puts the files there


def shipped_folder() -> Path:
    """Return the folder of the shipped files: in a clone its root, else a package beside this."""
    packed = _PROGRAM / _IN_WHEEL
    return packed if (packed / MATRIX).is_file() else _PROGRAM


def layers_of(root: Path, faults: Faults | None = None) -> Layers:
    """Return the layers of the project in a folder, the lowest first.

    A project inherits the shipped layer and its site's, unless its matrix says `inherit: false`. A
    project that was packed for another machine brings its layers. A site's layer that does not
    exist, or has no file of a layer, is a fault.
    """
    if (root / PACKED / SHIPPED / MATRIX).is_file():
        lower = {name: root / PACKED / name for name in (SHIPPED, SITE)}
    elif _is_alone(root):
        lower = {}
    else:
        site = read_site(root, Faults()).layer  # its faults are reported with the project's
        lower = {SHIPPED: shipped_folder(), **({SITE: Path(site)} if site else {})}
        if faults and site:
            check_layer(root, faults)
    return Layers(
        each=(
            *(
                Layer(name=name, folder=folder)
                for name, folder in lower.items()
                if folder.is_dir() and folder.resolve() != root.resolve()
            ),
            Layer(name=PROJECT, folder=root),
        ),
        shipped=shipped_folder(),
    )


def _is_alone(root: Path) -> bool:
    if root.resolve() == shipped_folder():
        return True
    if not (root / MATRIX).is_file():
        return False
    return inherits_nothing(parse(root / MATRIX, MATRIX, Faults())) is not None


def inherits_nothing(matrix: Node | None) -> Node | None:
    """Return the value of `inherit: false` in a matrix; None if it is not there."""
    entries = matrix.value if matrix and isinstance(matrix.value, dict) else {}
    inherit = entries.get(INHERIT)
    return inherit if isinstance(inherit, Node) and inherit.value is False else None
