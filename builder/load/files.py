"""The project's own files that recipes copy into images: texts below `files/`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from builder.load.faults import Faults
from builder.model import FILE_ARGUMENTS, BlockUse, Recipe, Where

FOLDER = "files"
_BELOW = f"valid: a path below {FOLDER}/, such as app.conf"


def with_files(root: Path, recipes: Mapping[str, Recipe], faults: Faults) -> dict[str, Recipe]:
    """The recipes, each block with the texts of the files that it names."""

    def blocks(uses: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
        return tuple(
            dataclasses.replace(use, files=_texts(root / FOLDER, use, faults))
            if use.name in FILE_ARGUMENTS
            else use
            for use in uses
        )

    return {
        name: dataclasses.replace(
            recipe, development=blocks(recipe.development), runtime=blocks(recipe.runtime)
        )
        for name, recipe in recipes.items()
    }


def _texts(folder: Path, use: BlockUse, faults: Faults) -> dict[str, str]:
    found: dict[str, str] = {}
    for argument, name in _named(use):
        line = use.lines.get(argument, use.where.line)
        where = Where(file=use.where.file, line=line, key=f"{use.where.key}.{argument}")
        text = _text(folder, name, where, faults)
        if text is not None:
            found[name] = text
    return found


def _named(use: BlockUse) -> Iterator[tuple[str, str]]:
    """The files that a block names, with the argument; what is no text has its fault elsewhere."""
    if use.arguments.get("from"):
        return  # what is copied is in another stage
    for argument in FILE_ARGUMENTS[use.name]:
        value = use.arguments.get(argument)
        names = [value] if isinstance(value, str) else value
        if isinstance(names, (list, Mapping)):
            yield from ((argument, name) for name in names if isinstance(name, str))


def _text(folder: Path, name: str, where: Where, faults: Faults) -> str | None:
    if "{{" in name or "{%" in name:
        problem = "the name of a file cannot be a template: the file is read before any cell"
        faults.add(where, problem, "give the block a condition (when) for each of the files")
        return None
    parts = PurePosixPath(name).parts
    if name != PurePosixPath(name).as_posix() or ".." in parts or name.startswith("/"):
        faults.add(where, f'"{name}" does not lie below the project\'s {FOLDER}/', _BELOW)
        return None
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        faults.add(where, f"{FOLDER}/{name} is a link to outside of {FOLDER}/", _BELOW)
        return None
    return _read(path, name, where, faults)


def _read(path: Path, name: str, where: Where, faults: Faults) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        faults.add(where, f"there is no file {FOLDER}/{name}", _present(path.parent))
    except IsADirectoryError:
        faults.add(where, f"{FOLDER}/{name} is a folder", "valid: its files, one by one")
    except UnicodeDecodeError:
        problem = f"{FOLDER}/{name} is no text (UTF-8), and specs hold texts only"
        faults.add(where, problem, "binary files come with a package, or by url with a block")
    except OSError as error:
        faults.add(where, f"{FOLDER}/{name} cannot be read: {error.strerror}")
    return None


def _present(folder: Path) -> str:
    if not folder.is_dir():
        return _BELOW
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return f"in the same folder: {', '.join(names)}" if names else _BELOW
