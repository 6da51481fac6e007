"""`build-images publish`: send proven images to a registry, or copy them from another registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from builder.cli.options import EXIT_CODES, Parser, SelectorOptions, TransferOptions
from builder.compile.spec import block_faults
from builder.distribute.publish.failures import any_failing, attach_failures
from builder.distribute.publish.mirror import Mirrored, ReleaseMirror, found_release
from builder.distribute.publish.proof import prove_with
from builder.distribute.publish.publisher import (
    MISSING,
    MOUNTED,
    SENT,
    THERE,
    AnyRelease,
    Publisher,
    ReleaseSender,
)
from builder.distribute.publish.releases import (
    BUILD_HINT,
    NARROW_HINT,
    Declared,
    declared_releases,
    ready_releases,
    refusal,
)
from builder.load.project import load_project
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput, Refused, counted
from builder.registry import Registry, Source, namespace
from builder.system.process import Processes
from builder.system.terminal import Progress

_WORDS = {THERE: "already there", MOUNTED: "mounted", SENT: "sent", MISSING: "to send"}
_DESCRIPTION = """\
Publish the selected images with their proof: one repository per recipe, one tag per cell (without
the architecture), one index of all architectures that the matrix declares for the tag. Upload
order: blobs, images by digest, the SIF, tarball and proof that refer to them, and tags last. An
image is refused, with its tag, if it is not built or not verified, or if its evidence is for other
digests. Failed checks do not affect published images, unless --attach-failures is set. Content that
the registry already has is not sent again: after any failure, run the same command again.

Credentials come from the files of podman login and docker login, from credential helpers, or from
BUILD_IMAGES_REGISTRY_USER and BUILD_IMAGES_REGISTRY_PASSWORD. With --from, releases are copied
from another registry with all proof, and nothing from this machine is published.
"""

_EXAMPLES = """\
examples:
  build-images publish --to quay.io/site --key cosign.key
  build-images publish --recipe pytorch --to quay.io/site --dry-run
  build-images publish --to mirror.site.example/hpc --from quay.io/site

"""


class PublishOptions(SelectorOptions, TransferOptions):
    to: str
    source: str | None
    key: str | None
    attach_failures: bool


def declare(parser: Parser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES + EXIT_CODES
    parser.add_argument(
        "--to", required=True, metavar="REGISTRY/NAMESPACE", help="namespace to publish to"
    )
    parser.add_source("copy from another registry instead of the output folder")
    text = (
        "sign everything with this key: a file, env://NAME, or, through cosign, pkcs11:, "
        "awskms://, ...; keyless for the identity of a CI job (default: proof is not signed)"
    )
    parser.add_text("--key", text, "KEY")
    parser.add_output("output folder of the build (default: PROJECT/out)")
    text = (
        "attach evidence of failed checks to the images in the registry: "
        "policies refuse these images until a later pass is published"
    )
    parser.add_flag("--attach-failures", text)
    parser.add_transfer("show what would be sent and tagged; do nothing", jobs=8)


def run(options: PublishOptions) -> int:
    """Publish the selected releases; refuse all of them if one is not proven."""
    if options.source and options.key:
        raise BadInput("--from copies proof unchanged: it cannot be used with --key")
    processes, say = Processes(), Progress(level=options.level).say
    to = namespace(options.to, options.plain_http, own=True, processes=processes, tell=say)
    project = load_project(options.project, block_faults=block_faults)
    declared = declared_releases(project, options.selection)
    narrowed = partial(refusal, declared=declared, hint=NARROW_HINT)
    if options.source:
        source = namespace(options.source, options.plain_http, tell=say)
        copies = find_releases(source, declared)
        mirror = ReleaseMirror(source=source, target=to, jobs=options.jobs, say=say)
        send(mirror, copies, narrowed, options)
        return 0
    releases, reasons = ready_releases(declared, options.out, options.project)
    if reasons:
        notes = _attached(options, declared, to, processes)
        raise refusal(reasons, declared, notes=notes, hint=_hint(options, declared))
    prove = prove_with(options.key or "", releases, processes)
    publisher = Publisher(target=to, prove=prove, jobs=options.jobs, say=say, stop=processes.stop)
    send(publisher, releases, narrowed, options)
    for line in () if options.dry_run else _attached(options, declared, to, processes):
        say(line)
    return 0


def _attached(
    options: PublishOptions,
    declared: Sequence[Declared],
    to: Callable[[str], Registry],
    processes: Processes,
) -> list[str]:
    """Attach failures to published images if the option is set; return a line for each.

    It is optional because this machine alone may be the cause of a failure.
    """
    if not options.attach_failures:
        return []
    key, dry_run = options.key or "", options.dry_run
    return attach_failures(declared, options.out, to, key=key, dry_run=dry_run, processes=processes)


def _hint(options: PublishOptions, declared: Sequence[Declared]) -> str:
    if options.attach_failures or not any_failing(declared, options.out):
        return BUILD_HINT
    return f"{BUILD_HINT}; --attach-failures attaches the failures to the published images"


def find_releases(
    source: Callable[[str], Source], declared: Sequence[Declared], *, done: str = "published"
) -> list[Mirrored]:
    """Find the declared releases in a registry; raises `Refused` if one cannot be copied."""
    releases, reasons = [], []
    for release in declared:
        architectures = [ARCHITECTURES[image.cell.arch].oci for image in release.images]
        name = release.recipe
        mirrored, faults = found_release(source(name), name, release.tags, architectures)
        releases += [mirrored] if mirrored else []
        reasons += faults
    if reasons:
        raise refusal(reasons, declared, hint="publish them there first", done=done)
    return releases


def send(
    sender: ReleaseSender[AnyRelease],
    releases: Sequence[AnyRelease],
    narrowed: Callable[[list[str]], Refused],
    options: TransferOptions,
) -> None:
    """Send releases, except in a dry run, and print them and the traffic.

    If a tag would lose an architecture, raises the error that `narrowed` returns.
    """
    if reasons := sender.narrowed(releases):
        raise narrowed(reasons)
    if options.dry_run:
        done, traffic = [*map(sender.described, releases)], sender.missing(releases)
    else:
        done, traffic = sender.send(releases)
    if options.json:
        blobs = {how: {"count": traffic.blobs[how], "bytes": traffic.sizes[how]} for how in _WORDS}
        options.print_json({"releases": [*map(asdict, done)], "blobs": blobs})
        return
    for release in done:
        print(", ".join([f"{release.repository}:{release.tag}", *release.floating]))
        print(f"  {release.digest}  {', '.join(release.images)}")
        for arch, digests in release.images.items():
            print(f"    {arch}  {digests['oci']}  {', '.join(digests)}")
    parts = [
        f"{counted(traffic.blobs[how], 'blob')} {word}, {traffic.sizes[how] / 1e6:.1f} MB"
        for how, word in _WORDS.items()
        if traffic.blobs[how]
    ]
    print(("dry run, nothing was sent: " if options.dry_run else "") + "; ".join(parts))
