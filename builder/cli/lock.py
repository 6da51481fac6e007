"""`build-images lock`: lock the checksums of sources, and the digests of bases from registries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from builder.build.inputs import Lockable
from builder.cli.options import Parser, SelectorOptions
from builder.compile.spec import block_faults
from builder.compile.spec.downloads import Downloads
from builder.load.project import load_project
from builder.model import Lock
from builder.model.errors import counted
from builder.model.inputs import LOCK
from builder.system.terminal import Progress


class LockOptions(SelectorOptions):
    check: bool
    update: bool
    json: bool


def declare(parser: Parser) -> None:
    how = parser.add_mutually_exclusive_group()
    parser.add_flag("--check", "only compare lock.yaml with recipes", to=how)
    parser.add_flag("--update", "look up locked entries again, and accept changes", to=how)
    parser.add_json("print the lock as JSON")


def run(options: LockOptions) -> int:
    """Write lock.yaml: the checksum of each source, the digest of each base from a registry.

    With `check`, the lock is only compared with the recipes, and nothing is written. If some
    entries fail, the others are still written.
    """
    project = load_project(options.project, block_faults=block_faults, stale_lock=True)
    lockable = Lockable.of(project, options.selection)
    if options.check:
        unlocked, unpinned = lockable.check(project)
        document = {"unlocked": unlocked, "unpinned": unpinned}
        options.show(document, lambda: _text_of_check(unlocked, unpinned))
        return 0
    progress = Progress(level=options.level)
    lock, error = lockable.lock(options.project, project, progress, update=options.update)
    if options.json:
        options.print_json({**lock_json(lock), **({"error": error.as_json()} if error else {})})
    else:
        print("\n".join(f"{LOCK}: {line}" for line in lockable.changes(project, lock)))
        _show_clones(lockable.downloads)
    if error:
        raise error
    return 0


def _text_of_check(unlocked: Sequence[str], unpinned: Sequence[str]) -> str:
    sources, bases = counted(len(unlocked), "source"), counted(len(unpinned), "base image")
    lacking = f"; {sources} and {bases} are not locked yet" if unlocked or unpinned else ""
    return f"{LOCK} matches the recipes{lacking}"


def _show_clones(downloads: Downloads) -> None:
    for recipe, repository, commit in downloads.clones:
        how = f"at commit {commit}" if commit else "without a commit: it can change at any time"
        print(f"not lockable: {recipe} clones {repository} {how}")


def lock_json(written: Lock) -> dict[str, object]:
    """Return the lock as JSON values."""
    sources = [dataclasses.asdict(source) for _, source in sorted(written.sources.items())]
    references = [
        {"reference": reference, "arch": arch, "digest": digest}
        for (reference, arch), digest in sorted(written.references.items())
    ]
    return {"sources": sources, "references": references}
