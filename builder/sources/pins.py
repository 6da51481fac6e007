"""Digests of base images for lock.yaml, and what of a lock does not match its recipes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

from builder.model.errors import BuildImagesError, Fault
from builder.model.locked import LOCK, Lock
from builder.registry import Reference
from builder.sources.locking import Wanted
from builder.sources.registry import Registries, RegistryFails, RegistryUnreachable
from builder.sources.store import JOBS

Key = tuple[str, str]  # reference and architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """Digests by reference and architecture, and an error for each registry or image without."""

    references: Mapping[Key, str]
    failures: tuple[BuildImagesError, ...]


def pin_references(
    wanted: Iterable[Key], known: Mapping[Key, str], registries: Registries, *, update: bool
) -> Pinned:
    """The digest of each; those that are locked stay as they are, but for `update`.

    A server that cannot be reached is asked once: the rest of its references fails with it.
    """

    def server(name: str) -> tuple[str, str]:
        wanted = Reference.parse(name)
        return wanted.registry, registries.server(wanted)

    keys = sorted(set(wanted))
    found = {key: known[key] for key in keys if key in known}
    asked = [key for key in keys if update or key not in known]
    gone: dict[tuple[str, str], RegistryUnreachable] = {}
    failures: list[BuildImagesError] = []

    def ask(key: Key) -> str:
        if server(key[0]) in gone:
            return ""
        try:
            return registries.digest(*key)
        except RegistryUnreachable as error:
            gone.setdefault(server(key[0]), error)
        except RegistryFails as error:
            failures.append(error)
        return ""

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        texts = list(pool.map(ask, asked))
        found.update({key: text for key, text in zip(asked, texts, strict=True) if text})
    lost = [
        _lost(error, {name for name, _ in asked if server(name) == at})
        for at, error in sorted(gone.items(), key=itemgetter(0))
    ]
    return Pinned(references=found, failures=(*lost, *failures))


def _lost(error: RegistryUnreachable, names: Collection[str]) -> RegistryUnreachable:
    """The error of one reference as that of all on the same server."""
    text = f"{error.lost}\n  not asked for: {', '.join(sorted(names))}"
    return RegistryUnreachable(text, lost=error.lost, hint=error.hint)


def mismatches(
    lock: Lock,
    wanted: Collection[Wanted],
    references: Collection[Key],
    files: Mapping[str, str],
    *,
    everything: bool,
) -> list[Fault]:
    """What a lock lacks of recipes that it has sources of, and, of `everything`, what it has more.

    `files` are the files of the recipes, by name.
    """
    faults = [
        Fault(
            file=files[name],
            line=1,
            key="",
            problem=f"its source {want.urls[0]} is not in {LOCK}, and others of it are",
            valid=f"run: build-images lock --recipe {name}",
        )
        for want in wanted
        for name in want.recipes
        if lock.of_recipes([name]) and not set(want.urls) & set(lock.sources)
    ]
    return [*faults, *_needless(lock, wanted, references)] if everything else faults


def _needless(
    lock: Lock, wanted: Collection[Wanted], references: Collection[Key]
) -> Iterable[Fault]:
    asked = {(url, name) for want in wanted for url in want.urls for name in want.recipes}
    for source in lock.sources.values():
        for name in source.recipes:
            if (source.url, name) not in asked:
                yield _fault(source.line, f"{source.url}: {name} does not ask for it")
    for reference, arch in lock.references:
        if (reference, arch) not in references:
            yield _fault(1, f"{reference} for {arch}: no image is made from it")


def _fault(line: int, problem: str) -> Fault:
    valid = "run: build-images lock, which drops it"
    return Fault(file=LOCK, line=line, key="", problem=problem, valid=valid)
