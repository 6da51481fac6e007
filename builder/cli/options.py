"""The command line: declared once, parsed into one frozen value."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.cli.bundle_options import BundleOptions, bundle_options
from builder.cli.dispatch import COMMANDS
from builder.cli.parser import make_parser
from builder.cli.pull_options import PullOptions, pull_options
from builder.cli.setup_options import setup_words
from builder.cli.site_options import FOLDERS, SiteOptions, site_options
from builder.cli.verify_options import REPEATS, RankOptions, rank_options
from builder.model.cells import Selection
from builder.model.names import FORMATS, GENERIC, RUNTIME, SELECTABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user asked for. `level` is 0 with --quiet, 2 with --verbose, else 1."""

    command: str
    selection: Selection
    project: Path
    out: Path
    level: int = 1
    json: bool = False
    engine: str = "buildah"
    jobs: int = 2
    formats: tuple[str, ...] = FORMATS
    refresh: bool = False
    cache: bool = True
    native_tools: bool = True
    max_index_age: int | None = None
    verify: bool = True
    dry_run: bool = False
    graph: bool = False
    path: Path | None = None
    clones: tuple[Path, ...] = ()
    steps: bool = False
    runners: tuple[str, ...] = ()
    bench: bool = False
    repeats: int = REPEATS
    prometheus: Path | None = None
    gpu: bool = False
    words: tuple[str, ...] = ()
    offline: bool = False
    lint: bool = True
    check: bool = False
    kind: str = ""
    update: bool = False
    stages: bool = False
    free: bool = False
    unused_for: int = 7
    layers: bool = False
    host: Path | None = None
    record: bool = False
    emulated: bool = False
    runtimes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    ranks: RankOptions | None = None
    to: str = ""
    source: str = ""
    key: str = ""
    attach_failures: bool = False
    plain_http: tuple[str, ...] = ()
    pull: PullOptions = field(default_factory=PullOptions)
    bundle: BundleOptions | None = None
    site: SiteOptions = field(default_factory=SiteOptions)


def parse(argv: Sequence[str]) -> Options:
    """Parse a command line; argparse prints usage errors and exits with status 2."""
    parser = make_parser()
    given = parser.parse_args(_with_command(argv))
    parser = getattr(given, "own_parser", parser)
    verbose, quiet = getattr(given, "verbose", False), getattr(given, "quiet", False)
    return Options(
        command=given.command,
        selection=_selection(given),
        project=given.project,
        out=getattr(given, "output", None) or given.project / FOLDERS.get(given.command, "out"),
        level=2 if verbose else 0 if quiet else 1,
        json=getattr(given, "json", False),
        engine=getattr(given, "engine", "buildah"),
        jobs=getattr(given, "jobs", 1),
        formats=_formats(_listed(getattr(given, "format", None))),
        refresh=getattr(given, "refresh", False),
        cache=not getattr(given, "no_cache", False),
        native_tools=not getattr(given, "no_native_tools", False),
        max_index_age=getattr(given, "max_index_age", None),
        verify=not getattr(given, "no_verify", False),
        dry_run=getattr(given, "dry_run", False),
        graph=getattr(given, "graph", False),
        offline=getattr(given, "offline", False),
        lint=not getattr(given, "no_lint", False),
        check=getattr(given, "check", False),
        kind=getattr(given, "kind", ""),
        update=getattr(given, "update", False),
        stages=getattr(given, "stages", False),
        free=getattr(given, "free", False),
        unused_for=getattr(given, "unused_for", 7),
        layers=getattr(given, "layers", False),
        host=getattr(given, "host", None),
        record=getattr(given, "record", False),
        emulated=getattr(given, "emulated", False),
        runtimes=_distinct(getattr(given, "runtime", None) or []),
        launchers=_distinct(getattr(given, "launcher", None) or []),
        bench=_bench(parser, given),
        repeats=getattr(given, "repeats", None) or REPEATS,
        prometheus=getattr(given, "prometheus", None),
        gpu=getattr(given, "gpu", False),
        words=setup_words(given),
        to=getattr(given, "to", "") or "",
        source=getattr(given, "source", None) or "",
        key=getattr(given, "key", None) or "",
        attach_failures=getattr(given, "attach_failures", False),
        plain_http=_distinct(getattr(given, "plain_http", None) or []),
        path=getattr(given, "path", None),
        clones=tuple(getattr(given, "clones", None) or ()),
        steps=getattr(given, "steps", False),
        runners=_distinct(getattr(given, "runner", None) or []),
        ranks=rank_options(parser, given),
        pull=pull_options(given),
        bundle=bundle_options(parser, given),
        site=site_options(given),
    )


def _with_command(argv: Sequence[str]) -> list[str]:
    """The main job has no name on the command line: put `build` where no command is."""
    words = list(argv)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

        close = get_close_matches(words[0], COMMANDS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        make_parser().error(f"unknown command {words[0]}; {guess}commands: {', '.join(COMMANDS)}")
    if words and (words[0] in COMMANDS or words[0] in {"-h", "--help", "--version"}):
        return words
    return ["build", *words]


def _bench(parser: argparse.ArgumentParser, given: argparse.Namespace) -> bool:
    """Whether to measure; what only then has a meaning is refused without."""
    bench = getattr(given, "bench", False)
    for name in ("repeats", "prometheus"):
        if getattr(given, name, None) and not bench:
            parser.error(f"--{name} goes with --bench")
    return bool(bench)


def _selection(given: argparse.Namespace) -> Selection:
    patterns = {name: tuple(getattr(given, name, None) or ()) for name in SELECTABLE}
    return Selection(
        patterns={name: some for name, some in patterns.items() if some},
        images=tuple(getattr(given, "image", None) or ()),
        everything=getattr(given, "all", False),
        flavours=_distinct(getattr(given, "flavour", None) or [RUNTIME]),
        cpu_targets=_distinct(getattr(given, "cpu_target", None) or [GENERIC]),
    )


def _distinct(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(given))


def _listed(given: object) -> list[str] | None:
    """What may be repeated; a single choice, as `pull` has one, is none of that."""
    return given if isinstance(given, list) else None


def _formats(given: Sequence[str] | None) -> tuple[str, ...]:
    """The chosen formats in their usual order; the OCI layout is what the others are made of."""
    return tuple(name for name in FORMATS if name == "oci" or name in (given or FORMATS))
