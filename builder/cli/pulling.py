"""`build-images pull`: judge images where they are, and bring those that are proven."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import facts
from builder.cli.os_errors import told
from builder.cli.pull_options import POLICY, PullOptions
from builder.distribute.pull.ahead import AT_ONCE, Coming, ahead
from builder.distribute.pull.contents import reading
from builder.distribute.pull.packing import NOTED, Brought, Kept, kept_in
from builder.distribute.pull.pulling import Judged, NotProven, Wanted, look, prepare, pull
from builder.distribute.pull.receipts import Last
from builder.host import read_record, this_host
from builder.host.record import Host
from builder.model.errors import BadInput, BuildImagesError, Interrupted
from builder.model.exact_json import member
from builder.registry import Credentials, Learned, Reference, Registry, connect
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import printable, printable_lines
from builder.system.workers import Workers
from builder.trust.policy.outcomes import Ruling
from builder.trust.policy.reading import read_policy
from builder.trust.policy.render import as_lines
from builder.trust.policy.values import Identity, Policy
from builder.trust.proof import Trusted, TrustedIdentity, TrustedKey, public_key

if TYPE_CHECKING:
    from builder.cli.options import Options
    from builder.trust.proof.roots import Roots


_LOOKS_AT_ONCE, _MOST_AHEAD = 2, 16
_LOOK_S = 1800.0  # for all that is asked before an image is judged


def pull_image(options: Options) -> int:
    """Judge images, and bring those that are proven; the highest of their exit codes."""
    given = options.pull
    references = _parsed(given.references)
    several = len(references) > 1
    wanted = wanted_of(options, given, references[0])
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


def _workers(options: Options) -> AbstractContextManager[Workers | None]:
    """Processes that take notes, one for each layer that comes at once."""
    if options.dry_run or options.pull.format not in NOTED:
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
    options: Options, asked: Sequence[Wanted], read_by: Workers | None
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

    options: Options
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
            output=_output(options.pull, wanted, several=self.several),
        )
        if not options.dry_run:
            prepare(wanted, found.judged, registry, kept=found.kept, output=found.output)
        return found


def _pull_one(options: Options, looked: _Looked, *, several: bool) -> None:
    shown = _Shown(options=options, several=several)
    try:
        if options.dry_run:
            _only_judged(shown, looked.wanted, looked.judged)
        else:
            _brought(shown, looked)
    except NotProven as refusal:
        if options.pull.explain or options.json:
            shown.rules(str(looked.wanted.reference), refusal.rulings)
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """How results are told: of several references, JSON is a line each."""

    options: Options
    several: bool

    def rules(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        if self.options.json:
            self.json({"reference": reference, "rules": [asdict(one) for one in rulings]})
            return
        if self.several:
            print(printable(reference))
        print("\n".join(as_lines(rulings, fixes=False)))

    def json(self, document: dict[str, object]) -> None:
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
    if options.pull.explain:
        print("\n".join(as_lines(done.rulings)))
    if not done.fresh:
        shown.say("it is there already, and whole")
    for what, some in member(done.receipt, "changes").items() if done.fresh else ():
        shown.say(f"{some['count']} {what}: {', '.join(some['paths'][:3])}")
    print(done.path, flush=True)


def _output(given: PullOptions, wanted: Wanted, *, several: bool) -> Path:
    if given.output and not several:
        return given.output
    return (given.output or Path.cwd()) / folder_name(wanted)


def _only_judged(shown: _Shown, wanted: Wanted, judged: Judged) -> None:
    rulings = judged.judgement.rulings
    if judged.judgement.refused:
        raise NotProven(str(wanted.reference), rulings)
    shown.rules(str(wanted.reference), rulings)


def wanted_of(options: Options, given: PullOptions, reference: Reference) -> Wanted:
    """What is asked for: by which policy, on which host, for which architecture."""
    file = given.policy or POLICY
    if given.policy is None and not file.exists():
        raise BadInput(
            f"no policy: {file} is not there",
            hint="name one with --policy FILE; docs/pulling.md has one of three lines",
        )
    policy = read_policy(file)
    trusted = _trusted(policy)
    processes = Processes()
    search_path = Home.of_environment().search_path()
    host = (
        read_record(options.host) if options.host else this_host(processes, search_path=search_path)
    )
    return Wanted(
        reference=reference,
        format=given.format,
        arch=_architecture(given.arch, host),
        host=host,
        policy=policy,
        trusted=trusted,
        now=dt.datetime.now(tz=dt.timezone.utc),
        emulated=options.emulated,
    )


def _trusted(policy: Policy) -> tuple[Trusted, ...]:
    """Those who are trusted; whoever is there under two names would count as two signatures."""
    found: dict[str, Trusted] = {}
    roots = functools.cache(_roots)
    for one in policy.keys:
        made: Trusted
        if isinstance(one, Identity):
            where, known = f"identity {one.name}", f"{one.issuer} {one.name}"
            made = TrustedIdentity(
                glob=one.name, issuer=one.issuer, roots=roots(one.roots), until=one.until
            )
        else:
            key = public_key(str(one.file), os.environ)
            where, known = str(one.file), key.fingerprint
            made = TrustedKey(key=key, name=one.name, until=one.until)
        if first := found.get(known):
            raise BadInput(f"{where}: the same key as {first.name}", hint="name it once")
        found[known] = made
    return tuple(found.values())


def _roots(path: Path) -> Roots:
    # Most sites trust keys, and pull without what reads certificates.
    from builder.trust.proof.roots import roots_in  # noqa: PLC0415

    return roots_in(path)


def _architecture(named: str, host: Host) -> str:
    name = named or host.architecture or ""
    known = facts.architecture(name)
    if known is None:
        there = ", ".join(facts.ARCHITECTURES)
        raise BadInput(
            f"{name or 'nothing'} is not an architecture", hint=f"--arch, one of {there}"
        )
    return known.name


def folder_name(wanted: Wanted) -> str:
    """`hpc-base-1.0-debian13-openmpi5.0-x86_64-sif`."""
    return f"{wanted.identifier}-{wanted.format}"
