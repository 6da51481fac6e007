"""`build-images load`: load an archive of `bundle` into a registry, folder or builder's home."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.build.at_work import store_in_use
from builder.cli.options import Parser, ProgressOptions, TransferOptions, not_empty
from builder.cli.publish import send
from builder.distribute.bundle import Bundle, opened
from builder.distribute.bundle.home import (
    LoadedInputs,
    check_project,
    fill_home,
    index_of_inputs,
    inputs_of,
    write_project,
)
from builder.distribute.bundle.judgements import (
    NOWHERE,
    all_releases,
    images_of,
    proven_files,
    rulings_on_inputs,
    with_fix,
)
from builder.distribute.publish.mirror import ReleaseMirror
from builder.distribute.publish.releases import NARROW_HINT
from builder.distribute.pull.cache import BlobStore
from builder.distribute.pull.images import pull
from builder.distribute.pull.receipts import last_pulls
from builder.distribute.pull.request import (
    POLICY,
    Judged,
    NotProven,
    PullRequest,
    request_of,
)
from builder.model.errors import Refused, counted
from builder.model.records import write
from builder.registry import Reference, namespace
from builder.system.home import Home
from builder.system.terminal import ByteProgress, Progress
from builder.trust.policy.records import PULLED, REFUSED, Ruling, as_lines

_DESCRIPTION = """\
Load images from an archive written by `bundle`, if they are proven: policy and rules are those of
`pull`. Each blob is checked against its digest; damaged, missing or unexpected content is refused.

With --to, images and proof are uploaded to a registry; whether an image runs on a host is checked
when it is pulled from there. With --output, images are unpacked into a folder, as in `pull`. With
--home, bases, sources, native tools and packages are copied to the builder's home, if a key of the
policy signed them. Then build-images --offline builds the images again; with the same engine, the
result is identical.
"""
_EXIT_CODES = """\
exit codes:
  0  everything is loaded and complete
  1  the registry keeps failing
  2  bad input or usage: archive or policy missing or invalid, or other files at the output path
  4  registry unreachable, access denied, or no disk space
  5  refused: the archive is damaged, or an image in it is not proven; one line per reason

examples:
  build-images load site.tar --policy policy.yaml --to registry.site.example/hpc
  build-images load site.tar --policy policy.yaml --output images --format sif
  build-images load site.tar --policy policy.yaml --home --checkout project
  build-images load site.tar --policy policy.yaml --to registry.site.example/hpc --dry-run
"""
_HINT = "the archive is not proven: ask its author, or change the policy"


class LoadOptions(ProgressOptions, TransferOptions):
    """The options of `load`; exactly one of `to`, `output` and `home` is set."""

    archive: Path
    to: str | None
    home: bool
    policy: Path | None
    format: str | None
    arch: str | None
    checkout: Path | None
    host: Path | None
    explain: bool


def declare(parser: Parser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXIT_CODES
    parser.add_path("archive", "archive from `bundle`", "ARCHIVE")
    where = parser.add_mutually_exclusive_group(required=True)
    parser.add_text("--to", "target registry", "REGISTRY/NAMESPACE", to=where)
    parser.add_output("create one folder per image in this folder", to=where)
    parser.add_flag("--home", "copy inputs to the builder's home, to build offline", to=where)
    parser.add_path("--policy", f"default: {POLICY}")
    parser.add_argument("--format", choices=PULLED, help="with --output: format on disk")
    text = "with --output: architecture of the images (default: that of the host)"
    parser.add_argument("--arch", type=not_empty, help=text)
    parser.add_path("--checkout", "with --home: folder to create for the project files", "DIR")
    parser.add_path("--host", "evaluate for a recorded host (check-host --record)")
    parser.add_flag("--explain", "show the outcome of every rule")
    parser.add_transfer("read and evaluate everything; load nothing")


def run(options: LoadOptions) -> int:
    """Judge everything in an archive, and load it only if nothing is refused."""
    _check_usage(options)
    archive = opened(options.archive)
    site = request_of(
        Reference(registry=NOWHERE, repository="x"),
        options.format or "oci",
        policy=options.policy,
        arch=options.arch or "",
        record=options.host,
        emulated=False,
    )
    if options.home:
        return _into_home(options, archive, site)
    if options.to:
        return _into_registry(options, archive, site, options.to)
    return _into_folder(options, archive, site, options.out)


def _check_usage(options: LoadOptions) -> None:
    """Refuse options that have no effect with the others."""
    for name, goes_with in (("format", "output"), ("arch", "output"), ("checkout", "home")):
        if getattr(options, name) and not getattr(options, goes_with):
            options.parser.error(f"--{name} needs --{goes_with}")
    if options.output and not options.format:
        options.parser.error(f"--output needs --format: one of {', '.join(PULLED)}")


def _check_whole(options: LoadOptions, archive: Bundle) -> None:
    """Read every blob, also unused ones, so that no part of a damaged archive is loaded.

    This follows the judgement of the proof: no more is read from an archive that is not proven.
    """
    say = Progress(level=options.level).say
    size = sum(blob.size for blob in archive.archive.blobs.values())
    archive.archive.check_all(ByteProgress(say, size, "read"))


def _into_registry(options: LoadOptions, archive: Bundle, site: PullRequest, address: str) -> int:
    say = Progress(level=options.level).say
    to = namespace(address, options.plain_http, own=True, tell=say)
    # `pull` checks whether an image runs on a host.
    site = replace(site, policy=replace(site.policy, host_contract=False))
    images, releases, reasons = all_releases(archive, site, to)
    _refuse(options, images, reasons)
    _check_whole(options, archive)
    proven = proven_files(images)
    for release in releases:
        for line in release.leave_out(proven):
            say(line)
    mirror = ReleaseMirror(source=archive.repository, target=to, jobs=options.jobs, say=say)
    send(mirror, releases, _narrowed, options)
    for image in () if options.dry_run else images:
        request = image.request
        if request.format == "oci":
            last_pulls().write(request.remembered, image.gathered, request.policy)
    return 0


def _narrowed(reasons: list[str]) -> Refused:
    return Refused("\n".join(["nothing was loaded:", *reasons]), hint=NARROW_HINT)


def _into_folder(options: LoadOptions, archive: Bundle, site: PullRequest, folder: Path) -> int:
    images = images_of(archive, site)
    _refuse(options, images, [])
    _check_whole(options, archive)
    if options.dry_run:
        print("\n".join(f"{image.request.reference}: proven" for image in images))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    say = Progress(level=options.level).say
    store = BlobStore(folder=Home.of_environment().pulls / "blobs", tell=say)
    done = [
        pull(image, store=store, output=folder / image.request.folder_name, say=say)
        for image in images
    ]
    receipts = [{**write(pulled.receipt), "at": str(pulled.path)} for pulled in done]
    options.show(receipts, lambda: "\n".join(str(pulled.path) for pulled in done))
    return 0


def _into_home(options: LoadOptions, archive: Bundle, site: PullRequest) -> int:
    repository, index = index_of_inputs(archive)
    rulings = rulings_on_inputs(repository, index, site)
    _show(options, repository.name, rulings)
    if any(ruling.result == REFUSED for ruling in rulings):
        raise NotProven(repository.name, rulings)
    _check_whole(options, archive)
    inputs = inputs_of(repository, index)
    if options.checkout and os.path.lexists(options.checkout):
        check_project(inputs, options.checkout)
    if options.dry_run:
        print(f"dry run, nothing was loaded: {counted(len(inputs), 'input')}, signed")
        return 0
    home, progress = Home.of_environment(), Progress(level=options.level)
    with store_in_use(home, options.checkout or options.project, progress.say):
        fill_home(repository, inputs, home)
    if options.checkout:
        write_project(repository, inputs, options.checkout)
    loaded = LoadedInputs(home=home.path, checkout=options.checkout, inputs=inputs)
    options.show(loaded.as_json(), loaded.as_text)
    return 0


def _refuse(options: LoadOptions, images: Sequence[Judged], reasons: Sequence[str]) -> None:
    """Show the rules if `explain` is set; raise one error for all refused images."""
    lines: list[str] = []
    for image in images:
        label = f"{image.request.reference} ({image.request.arch}, {image.request.format})"
        _show(options, label, image.judgement.rulings)
        if refused := [with_fix(ruling) for ruling in image.judgement.refused]:
            lines += [f"{label}: refused", *as_lines(refused)]
    lines += reasons
    if lines:
        raise Refused("\n".join(["nothing was loaded:", *lines]), hint=_HINT)


def _show(options: LoadOptions, name: str, rulings: Sequence[Ruling]) -> None:
    if options.explain and not options.json:
        print("\n".join([f"{name}:", *as_lines(rulings, fixes=False)]))
