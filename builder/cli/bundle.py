"""`build-images bundle`: write proven images and their inputs into one archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from builder.cli.options import EXIT_CODES, Parser, SelectorOptions, TransferOptions, a_path
from builder.cli.publish import find_releases
from builder.compile.spec import block_faults
from builder.distribute.bundle import INPUTS, ArchiveContents, write_archive
from builder.distribute.bundle.contents import EmptyRepository, size_of
from builder.distribute.bundle.inputs import Inputs, WrittenArchive, gather_inputs
from builder.distribute.publish.proof import prove_with
from builder.distribute.publish.releases import Declared, declared_releases, ready_releases, refusal
from builder.load.project import load_project
from builder.model.errors import BadInput
from builder.registry import Credentials, Reference, Source, connect, namespace
from builder.system.process import Processes
from builder.system.terminal import ByteProgress, Progress

_DESCRIPTION = """\
Write the selected images into one archive for a machine without network: OCI images with their
indexes, SIFs and tarballs, all proof, and the inputs of the images: project files, base images,
locked sources, native tools, and the packages that each build used. The archive is an OCI image
layout in a tar file; skopeo reads it as oci-archive:. Images that are not proven are refused, as
in `publish`. With --from, images and proof are copied unchanged from a registry.

The same images and the same key give the same bytes. The archive gets its name only when it is
complete.
"""
_EXAMPLES = """\
examples:
  build-images bundle --output site.tar --key site.key
  build-images bundle --recipe pytorch --output pytorch.tar --no-inputs
  build-images bundle --from quay.io/site --output site.tar

"""


class BundleOptions(SelectorOptions, TransferOptions):
    """The options of `bundle`; `output` is the folder that contains the images' folders."""

    archive: Path
    source: str | None
    key: str | None
    no_inputs: bool

    @property
    def has_inputs(self) -> bool:
        """True if the archive also holds the inputs of the images."""
        return not (self.no_inputs or self.source)


def declare(parser: Parser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES + EXIT_CODES
    parser.add_archive("archive to write")
    text = "output folder of the build (default: PROJECT/out)"
    parser.add_argument("--images", dest="output", type=a_path, metavar="DIR", help=text)
    parser.add_source("copy images and proof from a registry instead of the output folder")
    parser.add_text("--key", "sign everything with this key, as `publish` does", "KEY")
    text = "only images and proof: no bases, sources, packages or project files"
    parser.add_flag("--no-inputs", text)
    parser.add_transfer("show what the archive would contain; write nothing")


def run(options: BundleOptions) -> int:
    """Write the selected releases; refuse all of them if one is not proven."""
    if options.source and options.key:
        raise BadInput("--from copies proof unchanged: it cannot be used with --key")
    project = load_project(options.project, block_faults=block_faults)
    declared = declared_releases(project, options.selection)
    inputs = Inputs(contents=ArchiveContents())
    if options.source:
        return _written(options, _of_registry(options, options.source, declared, inputs), inputs)
    return _written(options, _of_folder(options, declared, inputs), inputs)


def _of_registry(
    options: BundleOptions, address: str, declared: Sequence[Declared], inputs: Inputs
) -> list[str]:
    """Add the releases of a registry; return their names."""
    source = namespace(address, options.plain_http, tell=Progress(level=options.level).say)
    releases = find_releases(source, declared, done="written")
    for release in releases:
        inputs.contents.add_mirrored(release, source(release.recipe))
    return [f"{release.recipe}:{release.tags[0]}" for release in releases]


def _of_folder(options: BundleOptions, declared: Sequence[Declared], inputs: Inputs) -> list[str]:
    """Add the releases of the output folder, and their inputs; return the releases' names."""
    releases, reasons = ready_releases(declared, options.out, options.project)
    if reasons:
        raise refusal(reasons, declared, done="written")
    prove = prove_with(options.key or "", releases, Processes())
    for release in releases:
        inputs.contents.add_release(release, prove)
    if options.has_inputs:
        images = [image for release in releases for image in release.images]
        gather_inputs(inputs, options.project, images, partial(_repository, options))
        index = inputs.add_index()
        proof = prove(EmptyRepository(INPUTS), index, images)
        inputs.contents.add_attached(INPUTS, proof)
    return [str(release) for release in releases]


def _repository(options: BundleOptions, reference: str) -> Source:
    return connect(
        Reference.parse(reference),
        Credentials(),
        plain_http=options.plain_http,
        tell=Progress(level=options.level).say,
    )


def _written(options: BundleOptions, names: Sequence[str], inputs: Inputs) -> int:
    """Write the archive, except in a dry run, and show its contents."""
    target, contents = options.archive, inputs.contents
    size, digest = size_of(contents, contents.index()), ""
    if not options.dry_run:
        progress = ByteProgress(Progress(level=options.level).say, size, "written")
        size, digest = write_archive(target, contents, on_bytes=progress)
    written = WrittenArchive(
        path=target,
        releases=names,
        inputs=inputs,
        size=size,
        digest=digest,
        has_inputs=options.has_inputs,
    )
    options.show(written.as_json(), written.as_text)
    return 0
