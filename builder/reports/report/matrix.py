"""The matrix of the report: a row for each recipe, base, MPI and CUDA, a column for each arch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone

from builder import facts
from builder.model import DEVELOPMENT, FAILED, GENERIC, NONE, RUNTIME, LeftOut
from builder.model.architectures import CPU_TARGETS
from builder.model.manifest import Manifest

_VARIANTS = {"flavour": RUNTIME, "cpu": GENERIC}  # what is not said where it is usual
VERIFIED, BUILT, COMPILED = "verified", "built", "compiled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One cell of the matrix: `state` is verified, built (and not verified), failed, broken
    (its build failed), compiled (and not built: this machine lacks something) or left-out."""

    image: str
    row: str
    recipe: str
    axes: tuple[str, ...]
    arch: str
    state: str
    mark: str
    word: str
    notes: tuple[str, ...] = ()
    hover: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    recipe: str
    axes: tuple[str, ...]
    tiles: Mapping[str, Tile]


def tiles_of(
    manifests: Sequence[Manifest],
    left_out: Sequence[LeftOut],
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
) -> tuple[Tile, ...]:
    """A tile for every cell that the run had to do with, each image once."""
    tiles = [_built(manifest) for manifest in manifests]
    tiles += [_broken(image, text) for image, text in failures.items()]
    tiles += [_compiled(image, text) for image, text in compiled.items()]
    tiles += [_absent(one) for one in left_out]
    return tuple({tile.image: tile for tile in reversed(tiles)}.values())[::-1]


def rows_of(tiles: Sequence[Tile]) -> tuple[Row, ...]:
    """The tiles by row, sorted by name: a row keeps its place from run to run."""
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        groups.setdefault(tile.row, []).append(tile)
    return tuple(
        Row(
            recipe=group[0].recipe,
            axes=group[0].axes,
            tiles={tile.arch: tile for tile in group},
        )
        for _, group in sorted(groups.items())
    )


def _built(manifest: Manifest) -> Tile:
    state, mark, word = standing(manifest)
    notes = [human_time(sum(manifest.durations_s.values()))]
    notes.append("emulated" if manifest.emulated else "native")
    if manifest.proven_on_gpu is False:
        notes.append("not proven on a GPU")
    tile = _tile(manifest.image, asdict(manifest.cell), state, mark, word, hover=manifest.image)
    return replace(tile, notes=tuple(notes))


def standing(manifest: Manifest) -> tuple[str, str, str]:
    """State, mark and word of an image that was built. What is not known to be good has failed."""
    if manifest.outcome == VERIFIED:
        return VERIFIED, "✓", "verified"
    if manifest.outcome == BUILT:
        return BUILT, "○", "not verified"
    return FAILED, "✗", _failed_word(manifest)


def _failed_word(manifest: Manifest) -> str:
    outcomes = [one for found in manifest.checks.values() for one in found]
    if any(one.outcome == FAILED for one in outcomes):
        return "check failed"
    return "formats differ" if manifest.formats_equal is False else "failed"


def _broken(image: str, text: str) -> Tile:
    return _tile(image, axes_of(image), "broken", "✗", "build failed", hover=first_line(text))


def _compiled(image: str, text: str) -> Tile:
    word = "compiled, not built here"
    return _tile(image, axes_of(image), COMPILED, "◇", word, hover=first_line(text))


def first_line(text: str) -> str:
    """What an error says before it goes into details."""
    return text.strip().partition("\n")[0]


def _absent(one: LeftOut) -> Tile:
    hover, cell = "; ".join(map(str, one.reasons)), asdict(one.cell)
    return _tile(one.cell.identifier, cell, "left-out", "⊘", "left out", hover=hover)


def _tile(
    image: str, cell: Mapping[str, str], state: str, mark: str, word: str, *, hover: str
) -> Tile:
    arch = cell.get("arch", "")
    axes = [cell.get("base", ""), _unless_none(cell.get("mpi", NONE))]
    cuda = _unless_none(cell.get("cuda", NONE))
    axes.append(f"CUDA {cuda}" if cuda else "")
    axes += [cell[name] for name, usual in _VARIANTS.items() if cell.get(name, usual) != usual]
    return Tile(
        image=image,
        row=image.removesuffix(f"-{arch}"),
        recipe=f"{cell.get('recipe', image)} {cell.get('recipe_version', '')}".rstrip(),
        axes=tuple(axis for axis in axes if axis),
        arch=arch,
        state=state,
        mark=mark,
        word=word,
        hover=hover,
    )


def _unless_none(value: str) -> str:
    return "" if value == NONE else value


def axes_of(image: str) -> dict[str, str]:
    """An image identifier taken apart again, for an image that left nothing but its name."""
    words = image.split("-")
    found = {"arch": words.pop()}
    if words and words[-1] in CPU_TARGETS.get(found["arch"], ()):
        found["cpu"] = words.pop()
    if words and words[-1] == DEVELOPMENT:
        found["flavour"] = words.pop()
    if words and words[-1].startswith(tuple(facts.MPI_FAMILIES)):
        found["mpi"] = words.pop()
    if words and words[-1].startswith("cuda"):
        found["cuda"] = words.pop().removeprefix("cuda")
    version = next((at for at, word in enumerate(words) if at and word[:1].isdigit()), len(words))
    found["recipe"] = "-".join(words[:version])
    found["recipe_version"] = "".join(words[version : version + 1])
    found["base"] = "-".join(words[version + 1 :])
    return found


_SIZES = ("B", "kB", "MB", "GB", "TB")


def human_size(size: float) -> str:
    """Bytes in decimal units, as `ls --si` and registries show them: `63.1 MB`."""
    value = float(size)
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:  # noqa: PLR2004 - would round to 1000
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def human_time(seconds: float) -> str:
    """Seconds as `0.4 s`, `41 s`, `5 min 01 s` or `1 h 02 min`."""
    if seconds < 0.05:  # noqa: PLR2004 - nothing to see
        return "<0.1 s" if seconds > 0 else "0 s"
    if seconds < 9.95:  # noqa: PLR2004 - below that, tenths matter
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def human_moment(text: str) -> str:
    """An ISO 8601 moment as `2026-01-31 14:05 UTC`; other text is shown as it is."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
