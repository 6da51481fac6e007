"""The matrix of the report: a row for each recipe, base, MPI and CUDA, a column for each arch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from builder import facts
from builder.model import DEVELOPMENT, FAILED, GENERIC, NONE, RUNTIME, LeftOut
from builder.model.architectures import CPU_TARGETS
from builder.model.manifest import Manifest
from builder.reports.templates import first_line, human_time

_USUAL = {"flavour": RUNTIME, "cpu": GENERIC}  # not shown
VERIFIED, BUILT, COMPILED = "verified", "built", "compiled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One cell of the matrix: `state` is verified, built (and not verified), failed, broken
    (its build failed), compiled (and not built: this machine lacks something) or left-out.
    """

    image: str
    recipe: str
    axes: tuple[str, ...]
    arch: str
    state: str
    mark: str
    word: str
    hover: str
    notes: tuple[str, ...] = ()

    @property
    def row(self) -> str:
        return self.image.removesuffix(f"-{self.arch}")


def tiles_of(
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
) -> tuple[Tile, ...]:
    """Return a tile for every cell that the run had to do with, each image once."""
    tiles = [_built(manifest) for manifest in manifests]
    broken, lacking = ("broken", "✗", "build failed"), (COMPILED, "◇", "compiled, not built here")
    for standing, texts in ((broken, failures), (lacking, compiled)):
        tiles += [
            _tile(image, axes_of(image), standing, first_line(text))
            for image, text in texts.items()
        ]
    for absent in left_out:
        cell, reasons = absent.cell, "; ".join(map(str, absent.reasons))
        tiles.append(_tile(cell.identifier, asdict(cell), ("left-out", "⊘", "left out"), reasons))
    return tuple({tile.image: tile for tile in reversed(tiles)}.values())[::-1]


def rows_of(tiles: Sequence[Tile]) -> tuple[Mapping[str, Tile], ...]:
    """Return the tiles of each row by architecture, sorted by name.

    So a row keeps its place from run to run.
    """
    rows: dict[str, dict[str, Tile]] = {}
    for tile in tiles:
        rows.setdefault(tile.row, {})[tile.arch] = tile
    return tuple(row for _, row in sorted(rows.items()))


def _built(manifest: Manifest) -> Tile:
    notes = (
        human_time(sum(manifest.durations_s.values())),
        "emulated" if manifest.emulated else "native",
        *(("not proven on a GPU",) if manifest.proven_on_gpu is False else ()),
    )
    image, cell = manifest.image, asdict(manifest.cell)
    return _tile(image, cell, standing_of(manifest), image, notes)


def standing_of(manifest: Manifest) -> tuple[str, str, str]:
    """Return state, mark and word of an image that was built.

    An image that is not known to be good has failed.
    """
    if manifest.outcome == VERIFIED:
        return VERIFIED, "✓", "verified"
    if manifest.outcome == BUILT:
        return BUILT, "○", "not verified"
    checks = [check.outcome for outcomes in manifest.checks.values() for check in outcomes]
    if FAILED in checks:
        return FAILED, "✗", "check failed"
    return FAILED, "✗", "formats differ" if manifest.formats_equal is False else "failed"


def _tile(
    image: str,
    cell: Mapping[str, str],
    standing: tuple[str, str, str],
    hover: str,
    notes: tuple[str, ...] = (),
) -> Tile:
    mpi, cuda = cell.get("mpi", NONE), cell.get("cuda", NONE)
    axes = [
        cell.get("base", ""),
        "" if mpi == NONE else mpi,
        "" if cuda == NONE else f"CUDA {cuda}",
        *(cell[name] for name, usual in _USUAL.items() if cell.get(name, usual) != usual),
    ]
    state, mark, word = standing
    return Tile(
        image=image,
        recipe=f"{cell.get('recipe', image)} {cell.get('recipe_version', '')}".rstrip(),
        axes=tuple(filter(None, axes)),
        arch=cell.get("arch", ""),
        state=state,
        mark=mark,
        word=word,
        hover=hover,
        notes=notes,
    )


def axes_of(image: str) -> dict[str, str]:
    """Take an image identifier apart, for an image that left nothing but its name."""
    words = image.split("-")
    axes = {"arch": words.pop()}
    if words and words[-1] in CPU_TARGETS.get(axes["arch"], ()):
        axes["cpu"] = words.pop()
    if words and words[-1] == DEVELOPMENT:
        axes["flavour"] = words.pop()
    if words and words[-1].startswith(tuple(facts.MPI_FAMILIES)):
        axes["mpi"] = words.pop()
    if words and words[-1].startswith("cuda"):
        axes["cuda"] = words.pop().removeprefix("cuda")
    version = next((at for at, word in enumerate(words) if at and word[:1].isdigit()), len(words))
    axes["recipe"] = "-".join(words[:version])
    axes["recipe_version"] = "".join(words[version : version + 1])
    axes["base"] = "-".join(words[version + 1 :])
    return axes
