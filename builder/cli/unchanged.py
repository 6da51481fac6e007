"""What an earlier run of the same command found, as long as nothing that it looked at changed.

`plan` and `spec` are run again and again while recipes are written. What decides their result is
digested: the input files, the command line, this program and the Python packages that it runs on.
Under that digest the builder's home keeps what `plan` prints, and which files `spec` wrote, each
with its size and times. Nothing is loaded or compiled where all of that is still so.

A file of a spec that was altered, or is missing, has another size or other times, and all specs
are written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
from builder.artifacts.manifests import Keyed, Wanted, state_of
from builder.cli import show
from builder.system.home import Home

if TYPE_CHECKING:
    from builder.cli.options import Options
    from builder.model import PlannedImage

INPUTS = (
    *("matrix.yaml", "site.yaml", "lock.yaml"),
    *("recipes", "base-images", "tests/images", "files", "facts"),
)
MOST_WITH_STAGES = 50
MOST = 50  # results that are kept, the newest
_DECLARED = {"image", "base", "made_here", "native", "common", "stages"}
_PROGRAM = Path(builder.__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """Results of earlier runs in one folder; `digest` is over what decides the result now."""

    folder: Path
    digest: str

    def result(self) -> Any:
        """What was kept for this digest, of whatever shape; None without it."""
        try:
            return json.loads((self.folder / f"{self.digest}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def keep(self, result: object) -> None:
        """Keep a result; a folder that cannot be written to costs time, and nothing else."""
        from builder.system.atomic import write_atomically  # noqa: PLC0415 - an unchanged plan does without

        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = json.dumps(result, separators=(",", ":"))
            write_atomically(self.folder / f"{self.digest}.json", kept)
            newest = sorted(self.folder.iterdir(), key=lambda one: one.stat().st_mtime)
            for old in newest[:-MOST]:
                old.unlink(missing_ok=True)


def plan(options: Options) -> int:
    """Show the selected images in build order."""
    if options.json or options.graph:
        from builder.cli import commands  # noqa: PLC0415 - an unchanged plan does without

        return commands.plan(options)
    before = earlier(options)
    kept = before.result()
    if not _is_plan(kept):
        from builder.cli import commands  # noqa: PLC0415

        made = commands.load_plan(options)
        rows = [[image.identifier, image.content_key] for image in made.images]
        stages = commands.declared_stages(options, made)
        kept = {"images": rows, "left_out": len(made.left_out), "stages": stages}
        _keep(options, before, kept)
    images = [Keyed(identifier=name, content_key=key) for name, key in kept["images"]]
    states = image_states(options, images)
    texts = _stage_texts(options, kept["stages"])
    print(show.plan_rows(images, kept["left_out"], states, texts))
    return 0


def spec(options: Options) -> int:
    """Write the specs of the selected images, and print where they are."""
    before = earlier(options)
    kept = before.result()
    if not _are_specs(kept) or not is_state(kept["files"]):
        from builder.cli import commands  # noqa: PLC0415 - unchanged specs do without

        folders = commands.write_specs(options)
        kept = {"folders": list(map(str, folders)), "files": state(written(folders))}
        _keep(options, before, kept)
    print("\n".join(kept["folders"]))
    return 0


def image_states(options: Options, images: Sequence[Keyed | PlannedImage]) -> list[str]:
    """For each image, what the main job would do with it."""
    if options.refresh or not options.cache:
        return ["to build: all of it anew"] * len(images)
    from builder.artifacts.settled import epoch_of  # noqa: PLC0415 - `spec` starts without it

    wanted = Wanted(
        formats=options.formats,
        engine=options.engine,
        verify=options.verify,
        epoch=epoch_of(os.environ),
        native_tools=options.native_tools,
    )
    return [state_of(options.out, image, wanted).text for image in images]


def shows_stages(options: Options, number: int) -> bool:
    """Whether the stages of so many images are shown: of many, only if that is asked for."""
    return options.stages or number <= MOST_WITH_STAGES


def _stage_texts(options: Options, kept: Sequence[Mapping[str, Any]]) -> list[show.Stages]:
    """The stages of images, each with what will happen to it, in words."""
    if not kept:
        return []
    from builder.build.records import stage_states  # noqa: PLC0415 - a plan of many does without
    from builder.plan.keys import DeclaredStages  # noqa: PLC0415

    declared = [DeclaredStages(**one) for one in kept]
    states = stage_states(
        Home.of_environment(), options.engine, declared, native=options.native_tools
    )
    return [[(one.stage.target, str(one)) for one in some] for some in states]


def _is_plan(kept: Any) -> bool:
    """Whether a kept result has the shape of a plan's."""
    return (
        isinstance(kept, dict)
        and isinstance(kept.get("left_out"), int)
        and isinstance(kept.get("images"), list)
        and all(_are_texts(row) and len(row) == 2 for row in kept["images"])  # noqa: PLR2004
        and isinstance(kept.get("stages"), list)
        and len(kept["stages"]) in {0, len(kept["images"])}
        and all(isinstance(one, dict) and one.keys() == _DECLARED for one in kept["stages"])
    )


def _are_specs(kept: Any) -> bool:
    """Whether a kept result has the shape of that of `spec`."""
    return (
        isinstance(kept, dict)
        and _are_texts(kept.get("folders"))
        and isinstance(kept.get("files"), dict)
    )


def _are_texts(kept: Any) -> bool:
    return isinstance(kept, list) and all(isinstance(one, str) for one in kept)


def _keep(options: Options, before: Earlier, result: object) -> None:
    """Keep a result, unless what decides it changed meanwhile."""
    if earlier(options) == before:
        before.keep(result)


def earlier(options: Options) -> Earlier:
    """The results for a command line, as the files on this machine are now."""
    home = Home.of_environment()
    return Earlier(folder=home.path / "unchanged", digest=_digest(options, home))


def state(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Files and folders as they are: modes, sizes and times, by path; those that are there."""
    return {str(path): found for path in paths if (found := _state(path))}


def is_state(kept: Mapping[str, list[int]]) -> bool:
    """Whether files and folders are as they were."""
    return all(_state(path) == found for path, found in kept.items())


def written(folders: Sequence[Path]) -> Iterator[Path]:
    """The files of specs, and the folders in which a new file would be part of one."""
    for folder in folders:
        yield from (folder / name for name in ("Dockerfile", "Singularity.def", ".dockerignore"))
        for parent, _, names in os.walk(folder / "files"):
            yield Path(parent)
            yield from (Path(parent, name) for name in names)


def _state(path: str | Path) -> list[int]:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - thousands of paths
    except OSError:
        return []
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return [found.st_mode, size, found.st_mtime_ns, found.st_ctime_ns]


def _digest(options: Options, home: Home) -> str:
    digest = hashlib.sha256()
    for word in _decisive(options, home):
        digest.update(f"{len(word)} {word}\n".encode(errors="surrogateescape"))
    for path in _inputs(options.project):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path} {len(content)}\n".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _decisive(options: Options, home: Home) -> Iterator[str]:
    yield repr(options)
    yield f"{sys.executable} {sys.version}"
    yield from (f"{name}={os.environ[name]}" for name in sorted(os.environ) if _is_ours(name))
    # What is installed into a folder, or upgraded, changes the folder.
    yield json.dumps(state(Path(name) for name in sys.path if name.endswith("-packages")))
    yield from map(str, _below(home.sources))  # specs hold copies of locked sources
    program = [one for one in _below(_PROGRAM) if one.suffix != ".pyc"]
    yield json.dumps({name: found[1:3] for name, found in state(program).items()})


def _is_ours(name: str) -> bool:
    return name.startswith("BUILD_IMAGES_")


def _inputs(project: Path) -> Iterator[Path]:
    if site := os.environ.get("BUILD_IMAGES_SITE"):
        yield Path(site)
    for name in INPUTS:
        yield project / name
        yield from _below(project / name)


def _below(folder: Path) -> list[Path]:
    """Every file below a folder, in order."""
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
