"""The downloads of an image's blocks, and the locked files that take their place.

hpccm's blocks write download steps with `hpccm.templates.wget` while they are constructed. The step
for a locked URL is replaced: the file is copied in, its checksum is verified, and it is moved to
where wget would have saved it. Builds then need no network for it. Other URLs are unchanged.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import hpccm.templates
from hpccm.building_blocks.base import bb_base
from hpccm.primitives import copy, shell

from builder.compile.spec.catalogue import notes_on
from builder.compile.spec.quirks import WORK_FOLDER
from builder.compile.spec.rules import fault
from builder.model import BlockUse, LockedSource, PlannedImage, StageRecipe
from builder.model.errors import BadInput
from builder.model.inputs import (
    LOCAL_SOURCE,
    LOCK,
    LOOKED_UP,
    WHEEL_SOURCE,
    Lock,
    locked_url,
    source_folder,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A file that a recipe's block needs: from the first of `urls`, or else the next."""

    recipe: str
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Downloads:
    """The downloads of blocks, recorded while images are compiled, each once.

    With `locking`, a URL that is not locked is not a fault. `copied` has the files that the specs
    copy in, by URL; `clones` has each recipe, Git repository and commit (empty if none is named).
    """

    locking: bool = False
    asked: dict[Asked, None] = field(default_factory=dict)
    copied: dict[str, LockedSource] = field(default_factory=dict)
    clones: dict[tuple[str, str, str], None] = field(default_factory=dict)


_RECORD: ContextVar[Downloads | None] = ContextVar("downloads", default=None)


@contextlib.contextmanager
def recorded(*, locking: bool = False) -> Iterator[Downloads]:
    """Record the downloads of the images that are compiled within the context."""
    token = _RECORD.set(downloads := Downloads(locking=locking))
    try:
        yield downloads
    finally:
        _RECORD.reset(token)


def with_sources(
    use: BlockUse, image: PlannedImage, recipe: StageRecipe, make: Callable[[BlockUse], bb_base]
) -> list[object]:
    """Return the layers of a block: copies of its locked files, then the block that `make` returns.

    Arguments for files of the project become their paths in the spec's folder.

    Raises `BadInput` for a URL that is not locked, if other URLs of the recipe are locked or if
    only the lock has the file's address or checksum.
    """
    step = _Step(use, image, recipe)
    use = _with_local_files(use, step)
    with _replaced_steps(step):
        block = make(use)
    commands = _source_commands(use, step)
    text = str(block) if step.files else ""  # a toolchain constructs earlier blocks again
    needed = [source for source in step.files if step.path(source) in text]
    step.downloads.copied.update({source.url: source for source in needed})
    copies = [copy(src=source.in_context, dest=step.path(source)) for source in needed]
    return [*copies, *([shell(commands=commands)] if commands else []), block]


class _Step:
    """A block while it is compiled. `files` are the locked files that it needs."""

    def __init__(self, use: BlockUse, image: PlannedImage, recipe: StageRecipe) -> None:
        self.use = use
        self.recipe = recipe
        self.lock = Lock(sources={source.url: source for source in image.sources})
        self.downloads = _RECORD.get() or Downloads()
        self.folder = source_folder(recipe.name)
        self.files: list[LockedSource] = []

    def path(self, source: LockedSource) -> str:
        """Return the path of the copy, which is moved to where wget would have saved it."""
        return f"{self.folder}/{source.file}"

    def ask(self, urls: tuple[str, ...]) -> LockedSource | None:
        """Record that the block needs a file; return its entry in the lock, if any."""
        self.downloads.asked[Asked(recipe=self.recipe.name, urls=urls)] = None
        entries = (self.lock.sources[url] for url in urls if url in self.lock.sources)
        if entry := next(entries, None):
            self.files.append(entry)
        elif not self.downloads.locking:
            self._check_unlocked(urls[0])
        return entry

    def alternatives(self, url: str) -> tuple[str, ...]:
        """Return all URLs of the recipe's source that has this URL, else only this URL."""
        locked = locked_url(url)
        return next((urls for urls in self.recipe.sources.values() if locked in urls), (locked,))

    def _check_unlocked(self, url: str) -> None:
        own = [one for one in self.lock.sources.values() if self.recipe.name in one.recipes]
        if any(not one.url.startswith(WHEEL_SOURCE) for one in own):
            reason = ", but other sources of the recipe are"
        elif url.startswith(LOCAL_SOURCE):
            reason = ": a file of the project needs its checksum"
        elif url.startswith(LOOKED_UP):
            reason = ", and only the lock has its URL"
        else:
            return
        valid = f"run: build-images lock --recipe {self.recipe.name}"
        raise BadInput.of([fault(self.use, f"{url} is not in {LOCK}{reason}", valid)])


_ORIGINAL = hpccm.templates.wget.download_step


@contextlib.contextmanager
def _replaced_steps(step: _Step) -> Iterator[None]:
    """Replace the steps that hpccm's blocks write for wget and git."""
    clone = hpccm.templates.git.clone_step

    def download_step(
        self: object,
        outfile: str | None = None,
        referer: str | None = None,
        url: str | None = None,
        directory: str = "/tmp",  # noqa: S108 - hpccm's own default, a path in the image
        no_check_certificate: bool = False,
    ) -> str:
        source = step.ask(step.alternatives(url)) if url else None
        if source is None:
            text = _ORIGINAL(self, outfile, referer, url, directory, no_check_certificate)
            return str(text)
        if callable(annotate := getattr(self, "add_annotation", None)):
            annotate("url", url)
        target = outfile or posixpath.join(directory, posixpath.basename(url or ""))
        path = step.path(source)
        folder = posixpath.dirname(target)
        return f"mkdir -p {folder} && {_verify(source, path)} && mv {path} {target}"

    def clone_step(self: object, **options: object) -> str:
        repository, commit = options.get("repository") or "", options.get("commit") or ""
        step.downloads.clones[(step.recipe.name, str(repository), str(commit))] = None
        return str(clone(self, **options))

    hpccm.templates.wget.download_step = download_step
    hpccm.templates.git.clone_step = clone_step
    try:
        yield
    finally:
        hpccm.templates.wget.download_step = _ORIGINAL
        hpccm.templates.git.clone_step = clone


def _verify(source: LockedSource, path: str) -> str:
    return f'echo "{source.sha256}  {path}" | sha256sum -c -'


def _with_local_files(use: BlockUse, step: _Step) -> BlockUse:
    """Return a block that copies its local files from their paths in the spec's folder.

    Its working folder is not hpccm's /var/tmp, which Singularity hides while it copies.
    """
    paths = {}
    for name in notes_on(use.name).local_files:
        url = str(use.arguments.get(name))
        if url.startswith(LOCAL_SOURCE):
            paths[name] = f"files/sources/{posixpath.basename(url)}"
            if source := step.ask(step.alternatives(url)):  # otherwise the lock is being written
                step.files.remove(source)
                step.downloads.copied[source.url] = source
                paths[name] = source.in_context
    if not paths:
        return use
    return replace(use, arguments={**use.arguments, **paths, "wd": WORK_FOLDER})


def _source_commands(use: BlockUse, step: _Step) -> list[str]:
    """Return commands that fetch the recipe's sources whose paths the block's arguments contain."""
    text = str(use.arguments) if step.recipe.sources else ""
    commands = []
    for urls in step.recipe.sources.values():
        if f"{step.folder}/{posixpath.basename(step.lock.asked(urls))}" in text:
            if source := step.ask(urls):
                commands.append(_verify(source, step.path(source)))
            else:
                wget = hpccm.templates.wget()
                commands.append(str(wget.download_step(url=urls[0], directory=step.folder)))
    return commands
