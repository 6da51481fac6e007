"""Digests of base images for lock.yaml, and mismatches of a lock and its recipes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

from builder.model.errors import BuildImagesError, Fault
from builder.model.locked import LOCK, Lock
from builder.registry import Reference
from builder.sources.locking import SourceRequest
from builder.sources.registry import Registries, RegistryFails, RegistryUnreachable
from builder.sources.store import JOBS

Key = tuple[str, str]  # reference and architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """Digests by reference and architecture, and an error for each registry or image without."""

    references: Mapping[Key, str]
    failures: tuple[BuildImagesError, ...]


def pin_references(
    requested: Iterable[Key], known: Mapping[Key, str], registries: Registries, *, update: bool
) -> Pinned:
    """Return the digest of each; locked ones stay as they are without `update`.

    A server that cannot be reached is tried once: all its references fail then.
    """

    def server(name: str) -> tuple[str, str]:
        reference = Reference.parse(name)
        return reference.registry, registries.server(reference)

    keys = sorted(set(requested))
    digests = {key: known[key] for key in keys if key in known}
    pending = [key for key in keys if update or key not in known]
    unreachable: dict[tuple[str, str], RegistryUnreachable] = {}
    failures: list[BuildImagesError] = []

    def ask(key: Key) -> str:
        if server(key[0]) in unreachable:
            return ""
        try:
            return registries.digest(*key)
        except RegistryUnreachable as error:
            unreachable.setdefault(server(key[0]), error)
        except RegistryFails as error:
            failures.append(error)
        return ""

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        texts = list(pool.map(ask, pending))
        digests.update({key: text for key, text in zip(pending, texts, strict=True) if text})
    lost = [
        _lost(error, {name for name, _ in pending if server(name) == at})
        for at, error in sorted(unreachable.items(), key=itemgetter(0))
    ]
    return Pinned(references=digests, failures=(*lost, *failures))


def _lost(error: RegistryUnreachable, names: Collection[str]) -> RegistryUnreachable:
    """Return the error of one reference as that of all on the same server."""
    text = f"{error.lost}\n  not asked for: {', '.join(sorted(names))}"
    return RegistryUnreachable(text, lost=error.lost, hint=error.hint)


def mismatches(
    lock: Lock,
    requests: Collection[SourceRequest],
    references: Collection[Key],
    files: Mapping[str, str],
    *,
    everything: bool,
) -> list[Fault]:
    """Return the missing sources of partly locked recipes; with `everything`, needless ones, too.

    `files` are the files of the recipes, by name.
    """
    faults = [
        Fault(
            file=files[name],
            line=1,
            key="",
            problem=f"its source {request.urls[0]} is not in {LOCK}, and others of it are",
            valid=f"run: build-images lock --recipe {name}",
        )
        for request in requests
        for name in request.recipes
        if lock.of_recipes([name]) and not set(request.urls) & set(lock.sources)
    ]
    return [*faults, *_needless(lock, requests, references)] if everything else faults


def _needless(
    lock: Lock, requests: Collection[SourceRequest], references: Collection[Key]
) -> Iterable[Fault]:
    requested = {(url, name) for item in requests for url in item.urls for name in item.recipes}
    for source in lock.sources.values():
        for name in source.recipes:
            if (source.url, name) not in requested:
                yield _fault(source.line, f"{source.url}: {name} does not ask for it")
    for reference, arch in lock.references:
        if (reference, arch) not in references:
            yield _fault(1, f"{reference} for {arch}: no image is made from it")


def _fault(line: int, problem: str) -> Fault:
    valid = "run: build-images lock, which drops it"
    return Fault(file=LOCK, line=line, key="", problem=problem, valid=valid)
