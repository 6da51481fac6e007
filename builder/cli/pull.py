"""`build-images pull`: judge images where they are, and bring those that are proven."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.cli.options import (
    Parser,
    ProgressOptions,
    a_path,
    add_output,
    add_plain_http,
    add_progress,
    add_project,
    not_empty,
)
from builder.cli.os_errors import told
from builder.distribute.pull.ahead import AT_ONCE, Coming, ahead
from builder.distribute.pull.contents import reading
from builder.distribute.pull.packing import NOTED, Brought, Kept, kept_in
from builder.distribute.pull.pulling import Judged, NotProven, Wanted, look, prepare, pull
from builder.distribute.pull.receipts import Last
from builder.distribute.pull.request import FORMATS, POLICY, request_of
from builder.model.errors import BadInput, BuildImagesError, Interrupted
from builder.registry import Credentials, Learned, Reference, Registry, connect
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import printable, printable_lines
from builder.system.workers import Workers
from builder.trust.policy.outcomes import Ruling
from builder.trust.policy.render import as_lines

_DESCRIPTION = """\
Bring an image from a registry, if it is proven.

What a tag names is asked once; all that follows is by digest. Everything that is said of the image
is gathered and held against the policy: who signed it; which checks passed, when, and on which
class of hosts; who built it from what; what is in it; whether it runs on this host; whether it is
older than what was pulled last. Then it is brought, every byte is checked against its digest, and
its tree against the one that was verified. What is refused leaves nothing behind.

No engine, no cosign and no root are needed. `sif` and `charliecloud` are the files that were
published with the image, `oci` and `directory` are made of its layers.
"""
_EXIT_CODES = """\
exit codes:
  0  the image is there, whole, with a receipt of what was decided
  1  the registry has no such image, or goes on failing
  2  bad input or bad usage: no such policy, or one with faults; another image is at that place
  4  the registry cannot be reached or does not let us, or there is no space
  5  refused: a line for each rule that refuses, with the reason and what can be done
Of several references, all are tried, and the highest of their codes is given.

examples:
  build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format sif
  build-images pull REFERENCE --format directory --policy policy.yaml --explain
  build-images pull REFERENCE REFERENCE REFERENCE --format oci        layers that they share once
  build-images pull REFERENCE --format oci --dry-run --explain       only judge it
  build-images pull REFERENCE --format sif --arch ppc64le --host node.json
"""
_LOOKS_AT_ONCE, _MOST_AHEAD = 2, 16
_LOOK_S = 1800.0  # for all that is asked before an image is judged


class PullOptions(ProgressOptions):
    """The options of `pull`. Without an `arch`, it is that of the host."""

    references: Sequence[str]
    format: str
    policy: Path | None
    arch: str | None
    host: Path | None
    emulated: bool
    plain_http: Sequence[str]
    explain: bool
    dry_run: bool
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `pull`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXIT_CODES
    add_project(parser)
    add_progress(parser)
    parser.add_argument(
        "references",
        metavar="REFERENCE",
        nargs="+",
        help="HOST/NAMESPACE/NAME:TAG, or @sha256:…; each is judged by itself",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what is to be on disk")
    parser.add_argument("--policy", type=a_path, metavar="FILE", help=f"default: {POLICY}")
    parser.add_argument("--arch", type=not_empty, metavar="ARCH", help="default: that of the host")
    add_output(
        parser,
        "the folder that is made (default: NAME-TAG-ARCH-FORMAT, here); of several references, "
        "the one in which theirs are made",
    )
    parser.add_argument(
        "--host",
        type=a_path,
        metavar="FILE",
        help="pull for the host of a record (check-host --record)",
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="let programs of another architecture run under QEMU",
    )
    add_plain_http(parser)
    parser.add_argument("--explain", action="store_true", help="show the outcome of every rule")
    parser.add_argument("--dry-run", action="store_true", help="judge it, and bring nothing")
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")


def run(options: PullOptions) -> int:
    """Judge images, and bring those that are proven; the highest of their exit codes."""
    references = _parsed(options.references)
    several = len(references) > 1
    wanted = request_of(
        references[0],
        options.format,
        policy=options.policy,
        arch=options.arch or "",
        record=options.host,
        emulated=options.emulated,
    )
    worst = 0
    asked = [replace(wanted, reference=one) for one in references]
    with (
        _workers(options) as read_by,
        contextlib.closing(_looked_ahead(options, asked, read_by)) as looked,
    ):
        for one in looked:
            try:
                _pull_one(options, one.result(), several=several)
            except Interrupted:
                raise
            except BuildImagesError as error:
                if not several:
                    raise
                print(printable_lines(f"build-images: {error}"), file=sys.stderr)
                worst = max(worst, error.exit_code)
            except OSError as error:  # a full disk is one image's: the next one may be smaller
                if not several or isinstance(error, BrokenPipeError):
                    raise
                text, code = told(error)
                print(printable_lines(f"build-images: {text}"), file=sys.stderr)
                worst = max(worst, code)
    return worst


def _workers(options: PullOptions) -> AbstractContextManager[Workers | None]:
    """Processes that take notes, one for each layer that comes at once."""
    if options.dry_run or options.format not in NOTED:
        return contextlib.nullcontext()
    return reading(AT_ONCE)


def _parsed(given: Sequence[str]) -> list[Reference]:
    """The references, each once; all that are none are told at once."""
    found: dict[str, Reference] = {}
    faults = []
    for one in given:
        try:
            reference = Reference.parse(one)
            named = reference.tag or reference.digest
            found.setdefault(str(reference if named else reference.at("latest")), reference)
        except BadInput as fault:
            if len(given) == 1:
                raise
            faults.append(str(fault))
    if faults:
        raise BadInput("\n".join(faults))
    return list(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Looked:
    """An image that was looked at where it is."""

    wanted: Wanted
    registry: Registry
    last: Last
    judged: Judged
    kept: Kept
    output: Path


def _looked_ahead(
    options: PullOptions, asked: Sequence[Wanted], read_by: Workers | None
) -> Generator[Future[_Looked], None, None]:
    """What is to be brought, in order: some are judged, and come, while another one is packed."""
    processes = Processes()
    together = _Together(
        options=options,
        several=len(asked) > 1,
        workers=read_by,
        processes=processes,
        credentials=Credentials(processes=processes),
    )
    for first in range(0, len(asked), _MOST_AHEAD):
        some = asked[first : first + _MOST_AHEAD]
        looked, end = ahead(together.looked, some, threads=_LOOKS_AT_ONCE)
        try:
            yield from looked
        except BaseException:
            end()
            together.processes.stop()
            for one in looked:
                if one.done() and not (one.cancelled() or one.exception()):
                    one.result().registry.stop()
            raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Together:
    """What the images of one command have in common."""

    options: PullOptions
    several: bool
    workers: Workers | None
    processes: Processes
    credentials: Credentials  # helpers are asked once, and may ask a person
    coming: Coming[Brought] = field(default_factory=Coming)
    learned: dict[str, Learned] = field(default_factory=dict)

    def looked(self, wanted: Wanted) -> _Looked:
        """Look at an image, and have its layers come if it is proven."""
        options, pulls = self.options, Home.of_environment().pulls
        shown = _Shown(options=options, several=self.several)
        registry = connect(
            wanted.reference,
            self.credentials,
            plain_http=options.plain_http,
            tell=shown.say,
            learned=self.learned.setdefault(wanted.reference.name, Learned()),
        )
        last = Last(folder=pulls / "last")
        with registry.transport.within(_LOOK_S):
            judged = look(wanted, registry, last)
        found = _Looked(
            wanted=wanted,
            registry=registry,
            last=last,
            judged=judged,
            kept=kept_in(
                pulls,
                check=registry.transport.sleep.check,
                tell=shown.say,
                coming=self.coming,
                workers=self.workers,
            ),
            output=_output(options, wanted, several=self.several),
        )
        if not options.dry_run:
            prepare(wanted, found.judged, registry, kept=found.kept, output=found.output)
        return found


def _pull_one(options: PullOptions, looked: _Looked, *, several: bool) -> None:
    shown = _Shown(options=options, several=several)
    try:
        if options.dry_run:
            _only_judged(shown, looked.wanted, looked.judged)
        else:
            _brought(shown, looked)
    except NotProven as refusal:
        if options.explain or options.json:
            shown.rules(str(looked.wanted.reference), refusal.rulings)
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """How results are told: of several references, JSON is a line each."""

    options: PullOptions
    several: bool

    def rules(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        if self.options.json:
            self.json({"reference": reference, "rules": [asdict(one) for one in rulings]})
            return
        if self.several:
            print(printable(reference))
        print("\n".join(as_lines(rulings, fixes=False)))

    def json(self, document: dict[str, Any]) -> None:
        print(json.dumps(document, indent=None if self.several else 1), flush=True)

    def say(self, text: str) -> None:
        if self.options.level:
            print(printable(text), file=sys.stderr)


def _brought(shown: _Shown, looked: _Looked) -> None:
    options = shown.options
    done = pull(
        looked.wanted,
        looked.judged,
        looked.registry,
        kept=looked.kept,
        last=looked.last,
        output=looked.output,
        say=shown.say,
    )
    if options.json:
        shown.json({**done.receipt, "at": str(done.path)})
        return
    if options.explain:
        print("\n".join(as_lines(done.rulings)))
    if not done.fresh:
        shown.say("it is there already, and whole")
    for what, some in done.receipt["changes"].items() if done.fresh else ():
        shown.say(f"{some['count']} {what}: {', '.join(some['paths'][:3])}")
    print(done.path, flush=True)


def _output(options: PullOptions, wanted: Wanted, *, several: bool) -> Path:
    if options.output and not several:
        return options.output
    return (options.output or Path.cwd()) / wanted.folder_name


def _only_judged(shown: _Shown, wanted: Wanted, judged: Judged) -> None:
    rulings = judged.judgement.rulings
    if judged.judgement.refused:
        raise NotProven(str(wanted.reference), rulings)
    shown.rules(str(wanted.reference), rulings)
