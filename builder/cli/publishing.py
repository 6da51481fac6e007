"""`build-images publish`: proven images to a registry, or from one registry to another."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from builder.cli.failures import any_failing, told_of_failures
from builder.compile.spec import block_faults
from builder.distribute.publish import Done, Mirror, Prove, Publisher, Release, found_release
from builder.distribute.publish.blobs import MISSING, MOUNTED, SENT, THERE, Traffic
from builder.distribute.publish.selection import Declared, declared_releases, ready_releases
from builder.distribute.publish.unsigned import unsigned
from builder.load.project import load_project
from builder.model.errors import BadInput, Refused, counted
from builder.registry import Credentials, Reference, Registry, connect
from builder.system.process import Processes
from builder.system.progress import Progress

if TYPE_CHECKING:
    from builder.cli.options import Options

_BUILD_HINT = "build-images, with the same selectors, builds and verifies what is missing"
NARROW_HINT = "publish those architectures with it, or remove the tag from the registry"
DRY = "dry run, nothing was sent: "
_WORDS = {THERE: "there already", MOUNTED: "mounted", SENT: "sent", MISSING: "to send"}


def publish(options: Options) -> int:
    """Publish the selected releases; refuse all of them if one is not proven."""
    if options.source and options.key:
        raise BadInput("--from copies proof as it is: it takes no --key")
    processes, say = Processes(), Progress(level=options.level).say
    to = namespace(options.to, options.plain_http, own=True, processes=processes, tell=say)
    project = load_project(options.project, block_faults=block_faults)
    declared = declared_releases(project, options.selection)
    if options.source:
        source = namespace(options.source, options.plain_http, tell=say)
        return _copied(options, declared, source, to)
    releases, reasons = ready_releases(declared, options.out, options.project)
    if reasons:
        told = told_of_failures(options, declared, to, processes)
        raise refusal(reasons, declared, told=told, hint=_hint(options, declared))
    publisher = Publisher(
        to,
        prove_with(options, releases, processes),
        jobs=options.jobs,
        say=say,
        stop=processes.stop,
    )
    if reasons := publisher.narrowed(releases):
        raise refusal(reasons, declared, hint=NARROW_HINT)
    if options.dry_run:
        planned = [publisher.described(one) for one in releases]
        tell(options, planned, publisher.missing(releases), before=DRY)
        return 0
    done, traffic = publisher.publish(releases)
    tell(options, done, traffic)
    for line in told_of_failures(options, declared, to, processes):
        say(line)
    return 0


def _hint(options: Options, declared: Sequence[Declared]) -> str:
    if options.attach_failures or not any_failing(options, declared):
        return _BUILD_HINT
    return f"{_BUILD_HINT}; --attach-failures tells those who pull what is published that it failed"


def prove_with(options: Options, releases: Sequence[Release], processes: Processes) -> Prove:
    """Makes the proof: signed with a key, if one is named."""
    if not options.key:
        return unsigned
    from builder.distribute.publish.signing import signed  # noqa: PLC0415 - what signs is slow to import

    return signed(options.key, releases, processes)


def _copied(
    options: Options,
    declared: Sequence[Declared],
    source: Callable[[str], Registry],
    to: Callable[[str], Registry],
) -> int:
    """Copy the releases from another registry."""
    found = [
        found_release(source(one.recipe), one.recipe, (one.tag, *one.floating), one.architectures)
        for one in declared
    ]
    if reasons := [reason for _, some in found for reason in some]:
        raise refusal(reasons, declared, hint="publish them there first")
    releases = [release for release, _ in found if release]
    mirror = Mirror(source, to, jobs=options.jobs, say=Progress(level=options.level).say)
    if reasons := mirror.narrowed(releases):
        raise refusal(reasons, declared, hint=NARROW_HINT)
    if options.dry_run:
        planned = [mirror.described(one) for one in releases]
        tell(options, planned, mirror.missing(releases), before=DRY)
        return 0
    done, traffic = mirror.copy(releases)
    tell(options, done, traffic)
    return 0


def namespace(
    text: str,
    plain_http: Collection[str],
    *,
    own: bool = False,
    processes: Processes | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Callable[[str], Registry]:
    """From a recipe to its repository in REGISTRY/NAMESPACE; raises `BadInput`.

    Only the command's `own` registry gets the login of the environment's variables. `processes`
    start credential helpers. `tell` is told of what is waited for.
    """
    if "/" not in text.strip("/"):
        shown = "this" if "@" in text else text
        raise BadInput(f"{shown}: write REGISTRY/NAMESPACE, such as quay.io/site")
    if any(one in text.rpartition("/")[2] for one in ":@"):
        raise BadInput("a namespace has no tag and no digest: REGISTRY/NAMESPACE")
    sample = Reference.parse(f"{text.rstrip('/')}/x")
    credentials = Credentials(own=sample.registry if own else "", processes=processes)
    first = connect(sample, credentials, plain_http=plain_http, tell=tell)
    folder = sample.repository.removesuffix("/x")
    return lambda recipe: first.sibling(
        Reference.parse(f"{sample.registry}/{folder}/{recipe}").repository
    )


def refusal(
    reasons: Sequence[str],
    declared: Sequence[Declared],
    *,
    told: Sequence[str] = (),
    hint: str = _BUILD_HINT,
    done: str = "published",
) -> Refused:
    """The error that lists why nothing was done, and what the registry was told instead."""
    count = counted(len(declared), "release")
    what = "no image was published, and no tag was set" if told else f"nothing was {done}"
    return Refused("\n".join([f"{count} asked for; {what}:", *reasons, *told]), hint=hint)


def tell(options: Options, done: Sequence[Done], traffic: Traffic, *, before: str = "") -> None:
    """What was done."""
    if options.json:
        published = [
            {
                "repository": one.repository,
                "tag": one.tag,
                "floating": list(one.floating),
                "digest": one.digest,
                "images": {arch: dict(digests) for arch, digests in one.images.items()},
            }
            for one in done
        ]
        print(json.dumps({"releases": published, **_traffic_json(traffic)}, indent=1))
        return
    for one in done:
        print(f"{one.repository}:{one.tag}{_also(one.floating)}")
        print(f"  {one.digest}  {', '.join(one.images)}")
        for arch, digests in one.images.items():
            print(f"    {arch}  {digests['oci']}  {', '.join(digests)}")
    print(before + _traffic(traffic))


def _also(floating: Sequence[str]) -> str:
    return f", {', '.join(floating)}" if floating else ""


def _traffic(traffic: Traffic) -> str:
    parts = [
        f"{counted(traffic.blobs[how], 'blob')} {word}, {traffic.sizes[how] / 1e6:.1f} MB"
        for how, word in _WORDS.items()
        if traffic.blobs.get(how)
    ]
    return "; ".join(parts)


def _traffic_json(traffic: Traffic) -> dict[str, object]:
    return {
        "blobs": {
            how: {"count": traffic.blobs.get(how, 0), "bytes": traffic.sizes.get(how, 0)}
            for how in _WORDS
        }
    }
