"""`build-images bundle`: proven images, and what they are built from, as one archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from builder.cli.publishing import namespace, prove_with, refusal
from builder.compile.spec import block_faults
from builder.distribute.bundle import INPUTS, Contents, write_archive
from builder.distribute.bundle.contents import Nothing
from builder.distribute.bundle.gathering import inputs_of
from builder.distribute.bundle.inputs import Inputs, add_inputs, add_proof
from builder.distribute.bundle.writing import size_of
from builder.distribute.publish import Prove, Release, found_release
from builder.distribute.publish.mirroring import Mirrored
from builder.distribute.publish.selection import Declared, declared_releases, ready_releases
from builder.load.project import load_project
from builder.model.errors import BadInput, counted
from builder.registry import Credentials, Reference, Source, connect
from builder.system.process import Processes
from builder.system.progress import Progress, Told

if TYPE_CHECKING:
    from builder.cli.options import Options

_FIRST_HINT = "publish them there first"


def bundle(options: Options) -> int:
    """Write the selected releases; refuse all of them if one is not proven."""
    if options.source and options.key:
        raise BadInput("--from copies proof as it is: it takes no --key")
    project = load_project(options.project, block_faults=block_faults)
    declared = declared_releases(project, options.selection)
    contents, inputs = Contents(), Inputs()
    if options.source:
        releases: Sequence[Release | Mirrored] = _of_registry(options, declared, contents)
    else:
        releases = _of_folder(options, declared, contents, inputs)
    return _written(options, releases, contents, inputs)


def _of_registry(
    options: Options, declared: Sequence[Declared], contents: Contents
) -> list[Mirrored]:
    source = namespace(options.source, options.plain_http, tell=Progress(level=options.level).say)
    found = [
        found_release(source(one.recipe), one.recipe, (one.tag, *one.floating), one.architectures)
        for one in declared
    ]
    if reasons := [reason for _, some in found for reason in some]:
        raise refusal(reasons, declared, hint=_FIRST_HINT, done="written")
    releases = [release for release, _ in found if release]
    for one in releases:
        contents.add_mirrored(one, source(one.recipe))
    return releases


def _of_folder(
    options: Options, declared: Sequence[Declared], contents: Contents, inputs: Inputs
) -> list[Release]:
    assert options.bundle is not None
    releases, reasons = ready_releases(declared, options.out, options.project)
    if reasons:
        raise refusal(reasons, declared, done="written")
    prove = prove_with(options, releases, Processes())
    for one in releases:
        contents.add_release(one, prove)
    if options.bundle.inputs:
        planned = [image for one in declared for image in one.images]
        images = [image for one in releases for image in one.images]
        pairs = tuple(zip(planned, images, strict=True))
        inputs_of(options.project, pairs, inputs, partial(_repository, options))
        _sign(contents, prove, releases, inputs)
    return releases


def _repository(options: Options, reference: str) -> Source:
    return connect(
        Reference.parse(reference),
        Credentials(),
        plain_http=options.plain_http,
        tell=Progress(level=options.level).say,
    )


def _sign(contents: Contents, prove: Prove, releases: Sequence[Release], inputs: Inputs) -> None:
    """Add the inputs; without a key nobody has signed them."""
    images = [image for one in releases for image in one.images]
    index = add_inputs(contents, inputs)
    add_proof(contents, prove(Nothing(INPUTS), index, images))


def _written(
    options: Options, releases: Sequence[Release | Mirrored], contents: Contents, inputs: Inputs
) -> int:
    assert options.bundle is not None
    target = options.bundle.archive
    names = [f"{one.recipe}:{_tag(one)}" for one in releases]
    report: dict[str, Any] = {
        "archive": str(target),
        "releases": names,
        "inputs": {
            "bases": len(inputs.bases) + len(inputs.registry_bases),
            "sources": len(inputs.sources),
            "builds": len(inputs.builds),
            "packages": len({one.file for b in inputs.builds.values() for one in b.given}),
            "project": len(inputs.project),
        },
        "registry_bases": [
            {"name": one.name, "arch": one.arch, "bytes": one.size}
            for _, one in sorted(inputs.registry_bases.items())
        ],
        "native_tools": [
            {"name": one.tools.name, "digest": digest, "bytes": one.size}
            for digest, one in sorted(inputs.native.items())
        ],
        "blobs": len(contents.blobs),
        "bytes": size_of(contents, contents.index()),
    }
    if not options.dry_run:
        told = Told(Progress(level=options.level).say, report["bytes"], "written")
        report["bytes"], report["digest"] = write_archive(target, contents, on_bytes=told)
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    for name in names:
        print(name)
    if options.bundle.inputs:
        some = {"bases": "base", "sources": "source", "packages": "package"}
        parts = [counted(report["inputs"][key], word) for key, word in some.items()]
        print(f"  built from {', '.join(parts)}")
    for one in report["registry_bases"]:
        print(f"  {one['name']}  {one['arch']}  {one['bytes'] / 1e6:.1f} MB")
    for one in report["native_tools"]:
        print(f"  native tools {one['name']}  {one['bytes'] / 1e6:.1f} MB")
    size = f"{counted(len(contents.blobs), 'blob')}, {report['bytes'] / 1e6:.1f} MB"
    if options.dry_run:
        print(f"dry run, nothing was written: {size}")
    else:
        print(f"{target}  {size}  {report['digest']}")
    return 0


def _tag(release: Release | Mirrored) -> str:
    return release.tag if isinstance(release, Release) else release.tags[0]
