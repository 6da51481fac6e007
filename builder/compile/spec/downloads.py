"""What the blocks of an image download, and how a locked file takes the download's place.

hpccm's blocks fetch with `hpccm.templates.wget`, while they are constructed. For a URL that is
locked the step is another one: the file is copied in, its checksum is verified, and it is put
where wget would have put it. Builds then never touch the network for it. All other URLs stay.
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

from builder.compile.spec.quirks import WORK_FOLDER
from builder.compile.spec.rules import LOCAL_FILES
from builder.model import BlockUse, LockedSource, PlannedImage, StageRecipe
from builder.model.errors import BadInput, Fault
from builder.model.inputs import (
    DEBIAN_SOURCE,
    LOCAL_SOURCE,
    LOCK,
    Lock,
    locked_url,
    source_folder,
)

_ORIGINAL = hpccm.templates.wget.download_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A file that a recipe's block asks for: at the first of `urls`, or else the next."""

    recipe: str
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Downloads:
    """What the blocks of an image asked for while it was compiled, each once.

    With `locking`, what is not locked is no fault. `copied` are the files that the specs copy in,
    `clones` are Git repositories, with the commit if one is named.
    """

    locking: bool = False
    asked: dict[Asked, None] = field(default_factory=dict)
    copied: dict[str, LockedSource] = field(default_factory=dict)
    clones: dict[tuple[str, str, str], None] = field(default_factory=dict)

    def add(self, other: Downloads) -> None:
        """What another part of the image downloads, too."""
        self.asked.update(other.asked)
        self.copied.update(other.copied)
        self.clones.update(other.clones)


_RECORD: ContextVar[Downloads | None] = ContextVar("downloads", default=None)


@contextlib.contextmanager
def recorded(*, locking: bool = False) -> Iterator[Downloads]:
    """What is downloaded by the images that are compiled meanwhile."""
    made = Downloads(locking=locking)
    token = _RECORD.set(made)
    try:
        yield made
    finally:
        _RECORD.reset(token)


def record() -> Downloads:
    """Return where downloads are noted now; nowhere that lasts outside of `recorded`."""
    return _RECORD.get() or Downloads()


def with_sources(
    use: BlockUse, image: PlannedImage, recipe: StageRecipe, make: Callable[[BlockUse], bb_base]
) -> list[object]:
    """The layers of a block: its locked files copied in, then the block that `make` gives.

    What a block copies by itself, of the project's files, it is given the place of.

    Raises `BadInput` when a recipe's block asks for a URL that is not locked, while others of the
    recipe's are, or for one that only the lock can tell where to find.
    """
    step = _Step(use=use, image=image, recipe=recipe, record=record())
    use = _with_local_files(use, step)
    with _instead(step):
        block = make(use)
    commands = _named(use, step)
    text = str(block) if step.files else ""  # a toolchain is made with blocks of earlier layers
    needed = [one for one in step.files if step.place(one) in text]
    for one in needed:
        step.record.copied[one.url] = one
    copies = [copy(src=one.in_context, dest=step.place(one)) for one in needed]
    return [*copies, *([shell(commands=commands)] if commands else []), block]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """One block on its way to text. `files` are the locked files that it asked for."""

    use: BlockUse
    image: PlannedImage
    recipe: StageRecipe
    record: Downloads
    files: list[LockedSource] = field(default_factory=list)

    def place(self, source: LockedSource) -> str:
        """Where the file is copied to: hpccm moves it on, to where wget would have put it."""
        return f"{source_folder(self.recipe.name)}/{source.file}"

    def locked(self, url: str) -> LockedSource | None:
        """The lock's entry for a URL."""
        return next((one for one in self.image.sources if one.url == url), None)

    def file_name(self, urls: tuple[str, ...]) -> str:
        """The name of the file that some alternatives stand for, as templates give it."""
        lock = Lock(sources={one.url: one for one in self.image.sources})
        return posixpath.basename(lock.asked(urls))

    def ask(self, urls: tuple[str, ...]) -> LockedSource | None:
        """Note that the block asks for a file; its entry, if it is locked."""
        self.record.asked[Asked(recipe=self.recipe.name, urls=urls)] = None
        found = next((entry for url in urls if (entry := self.locked(url))), None)
        if found:
            self.files.append(found)
        elif not self.record.locking:
            self._check_unlocked(urls)
        return found

    def copied_by_block(self, url: str) -> str:
        """Return where the spec's folder has a file that the block copies itself."""
        found = self.ask(self.alternatives(url))
        if found is None:  # it is about to be locked
            return f"files/sources/{posixpath.basename(url)}"
        self.files.remove(found)
        self.record.copied[found.url] = found
        return found.in_context

    def alternatives(self, url: str) -> tuple[str, ...]:
        """The URLs of the recipe's source that a block was given one of, else that URL alone."""
        wanted = locked_url(url)
        return next((some for some in self.recipe.sources.values() if wanted in some), (wanted,))

    def _check_unlocked(self, urls: tuple[str, ...]) -> None:
        others = [one for one in self.image.sources if self.recipe.name in one.recipes]
        if others:
            self.refuse(f"{urls[0]} is not in {LOCK}, and other sources of the recipe are")
        if urls[0].startswith(LOCAL_SOURCE):
            self.refuse(f"{urls[0]} is not in {LOCK}: a file of the project needs its checksum")
        if urls[0].startswith(DEBIAN_SOURCE):
            self.refuse(f"{urls[0]} is not in {LOCK}, and only the lock knows where it is")

    def refuse(self, problem: str) -> None:
        where = self.use.where
        valid = f"run: build-images lock --recipe {self.recipe.name}"
        raise BadInput.of(
            [Fault(file=where.file, line=where.line, key=where.key, problem=problem, valid=valid)]
        )


@contextlib.contextmanager
def _instead(step: _Step) -> Iterator[None]:
    """Let hpccm's blocks ask us instead of writing a command for wget or git."""
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
        place = step.place(source)
        folder = posixpath.dirname(target)
        return f"mkdir -p {folder} && {_verify(source, place)} && mv {place} {target}"

    def clone_step(self: object, **given: object) -> str:
        repository, commit = str(given.get("repository") or ""), str(given.get("commit") or "")
        step.record.clones[(step.recipe.name, repository, commit)] = None
        return str(clone(self, **given))

    hpccm.templates.wget.download_step = download_step
    hpccm.templates.git.clone_step = clone_step
    try:
        yield
    finally:
        hpccm.templates.wget.download_step = _ORIGINAL
        hpccm.templates.git.clone_step = clone


def _verify(source: LockedSource, place: str) -> str:
    return f'echo "{source.sha256}  {place}" | sha256sum -c -'


def _with_local_files(use: BlockUse, step: _Step) -> BlockUse:
    """A block whose own copies are of locked files, by their places in the spec's folder.

    Singularity hides /var/tmp, hpccm's folder for work, while it copies.
    """
    local = {name: use.arguments.get(name) for name in LOCAL_FILES.get(use.name, ())}
    urls = {name: url for name, url in local.items() if str(url).startswith(LOCAL_SOURCE)}
    if not urls:
        return use
    places = {name: step.copied_by_block(str(url)) for name, url in urls.items()}
    return replace(use, arguments={**use.arguments, **places, "wd": WORK_FOLDER})


def _named(use: BlockUse, step: _Step) -> list[str]:
    """Commands that bring the recipe's own sources whose place the block's arguments name."""
    text = str(use.arguments) if step.recipe.sources else ""
    folder = source_folder(step.recipe.name)
    return [
        _brought(step, urls)
        for urls in step.recipe.sources.values()
        if f"{folder}/{step.file_name(urls)}" in text
    ]


def _brought(step: _Step, urls: tuple[str, ...]) -> str:
    """The command that has a file ready for the commands of a recipe."""
    source = step.ask(urls)
    if source:
        return _verify(source, step.place(source))
    folder = source_folder(step.recipe.name)
    return str(hpccm.templates.wget().download_step(url=urls[0], directory=folder))
