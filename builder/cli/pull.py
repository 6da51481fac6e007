"""`build-images pull`: judge images in a registry, and download those that are proven."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from builder.cli.options import Parser, ProgressOptions
from builder.distribute.pull.cache import BlobStore
from builder.distribute.pull.images import Pulled, Puller, pull
from builder.distribute.pull.request import (
    POLICY,
    Judged,
    NotProven,
    references_of,
    request_of,
)
from builder.model.errors import BuildImagesError, Interrupted
from builder.model.records import write
from builder.system.home import Home, failure_of
from builder.system.terminal import printable, printable_lines
from builder.trust.policy.records import PULLED, Ruling, as_lines

_DESCRIPTION = """\
Pull an image from a registry, if it is proven.

The tag is resolved once; every later request is by digest. All proof of the image is read and
evaluated by the policy: who signed it; which checks passed, when, and on which class of hosts; who
built it and from what; what it contains; whether it runs on this host; whether it is older than the
last pull. Then the image is downloaded. Every byte is checked against its digest, and the file tree
against the tree that was verified. A refused image leaves no files.

No engine, cosign or root rights are needed. `sif` and `charliecloud` are the files that were
published with the image; `oci` and `directory` are made from its layers.
"""
_EXIT_CODES = """\
exit codes:
  0  the image is complete, with a receipt of the decision
  1  the registry does not have the image, or keeps failing
  2  bad input or usage: policy missing or invalid, or another image at the output path
  4  registry unreachable, access denied, or no disk space
  5  refused: one line per rule that refuses, with the reason and the remedy
With several references, all are tried, and the highest exit code is returned.

examples:
  build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --format sif
  build-images pull REFERENCE --format directory --policy policy.yaml --explain
  build-images pull REFERENCE REFERENCE REFERENCE --format oci        shared layers once
  build-images pull REFERENCE --format oci --dry-run --explain       only evaluate the image
  build-images pull REFERENCE --format sif --arch ppc64le --host node.json
"""


class PullOptions(ProgressOptions):
    """The options of `pull`; the default of `arch` is that of the host."""

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
    parser.description, parser.epilog = _DESCRIPTION, _EXIT_CODES
    text = "HOST/NAMESPACE/NAME:TAG, or @sha256:…; each is evaluated separately"
    parser.add_argument("references", metavar="REFERENCE", nargs="+", help=text)
    parser.add_argument("--format", choices=PULLED, required=True, help="format on disk")
    parser.add_path("--policy", f"default: {POLICY}")
    parser.add_text("--arch", "default: that of the host", "ARCH")
    text = (
        "folder to create (default: NAME-TAG-ARCH-FORMAT in the current folder); with several "
        "references, the folder that contains one folder for each"
    )
    parser.add_output(text)
    parser.add_path("--host", "pull for a recorded host (check-host --record)")
    parser.add_flag("--emulated", "accept images of another architecture, which run under QEMU")
    parser.add_plain_http()
    parser.add_flag("--explain", "show the outcome of every rule")
    parser.add_flag("--dry-run", "evaluate images; download nothing")
    parser.add_json("print the receipt as JSON")


def run(options: PullOptions) -> int:
    """Evaluate images, and pull those that are proven; return the highest exit code."""
    references = references_of(options.references)
    several = len(references) > 1
    shown = _Shown(options=options, several=several)
    template = request_of(
        references[0],
        options.format,
        policy=options.policy,
        arch=options.arch or "",
        record=options.host,
        emulated=options.emulated,
    )
    puller = Puller(plain_http=options.plain_http, say=shown.say)
    store = BlobStore(folder=Home.of_environment().pulls / "blobs", tell=shown.say)
    folder = options.output or Path.cwd()
    worst = 0
    for reference in references:
        request = replace(template, reference=reference)
        is_output = options.output and not several
        output = folder if is_output else folder / request.folder_name
        try:
            _pull_one(shown, puller.judged(request), store, output)
        except (BuildImagesError, OSError) as error:  # the disk may have room for the next one
            if not several or isinstance(error, Interrupted | BrokenPipeError):
                raise
            own = failure_of(error) if isinstance(error, OSError) else error
            print(printable_lines(f"build-images: {own}"), file=sys.stderr)
            if options.json:
                shown.json({"reference": str(request.reference), **own.as_json()})
            worst = max(worst, own.exit_code)
    return worst


def _pull_one(shown: _Shown, image: Judged, store: BlobStore, output: Path) -> None:
    options, reference = shown.options, str(image.request.reference)
    try:
        if options.dry_run:
            image.check()
            shown.rules(reference, image.judgement.rulings)
        else:
            shown.pulled(pull(image, store=store, output=output, say=shown.say))
    except NotProven as refusal:
        if options.explain and not options.json:
            shown.rules(reference, refusal.rulings)
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """Prints results; with several references, each JSON document is one line."""

    options: PullOptions
    several: bool

    def rules(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        if self.options.json:
            self.json({"reference": reference, "rules": [asdict(ruling) for ruling in rulings]})
            return
        if self.several:
            print(printable(reference))
        print("\n".join(as_lines(rulings, fixes=False)))

    def json(self, document: dict[str, object]) -> None:
        self.options.print_json(json.dumps(document, indent=None if self.several else 1))

    def say(self, text: str) -> None:
        if self.options.level:
            print(printable(text), file=sys.stderr)

    def pulled(self, done: Pulled) -> None:
        """Show the image on disk, and how it differs from the published one."""
        if self.options.json:
            self.json({**write(done.receipt), "at": str(done.path)})
            return
        if self.options.explain:
            print("\n".join(as_lines(done.rulings)))
        if done.fresh:
            for kind, change in done.receipt.changes.items():
                self.say(f"{change.count} {kind}: {', '.join(change.paths[:3])}")
        else:
            self.say("already there, and complete")
        print(done.path, flush=True)
