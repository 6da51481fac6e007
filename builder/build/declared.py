"""By which bytes an image was declared and built: the project's files, and this program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from builder.model.digests import sha256_of_file

_PROGRAM = Path(__file__).parents[1]
_FILES = ("matrix.yaml", "lock.yaml", "site.yaml", "tests/images/checks.yaml")
_FOLDERS = ("recipes", "base-images", "facts", "files")  # the checks' scripts count with the specs


def project_digests(project: Path) -> dict[str, str]:
    """`sha256:…` of each file that declares images, by its path in the project."""
    return {
        path.relative_to(project).as_posix(): f"sha256:{sha256_of_file(path)}"
        for path in _declaring(project)
    }


def _declaring(project: Path) -> Iterator[Path]:
    yield from (path for name in _FILES if (path := project / name).is_file())
    for name in _FOLDERS:
        yield from sorted(one for one in (project / name).rglob("*") if one.is_file())


def program_digest(program: Path = _PROGRAM) -> str:
    """One `sha256:…` over all files of this program, whatever the time or the place they have.

    Each counts with its path and its SHA-256; compiled Python does not.
    """
    whole = hashlib.sha256()
    for path in sorted(one for one in program.rglob("*") if one.is_file()):
        if path.suffix != ".pyc":
            name = path.relative_to(program).as_posix()
            whole.update(f"{sha256_of_file(path)}  {name}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def files_of(
    declared: Mapping[str, str], recipes: Sequence[str], bases: Sequence[str]
) -> dict[str, str]:
    """Those of a project's files that declare one image, by the names of its recipes and bases.

    A file has the name of what it declares. In a project that has it otherwise, all are kept.
    """
    wanted = {"recipes/": set(recipes), "base-images/": set(bases)}
    kept = dict(declared)
    for folder, names in wanted.items():
        others = [path for path in declared if path.startswith(folder)]
        own = [path for path in others if PurePosixPath(path).stem in names]
        if {PurePosixPath(path).stem for path in own} == names:
            for path in set(others) - set(own):
                del kept[path]
    return kept
