"""`build-images diff`: compare two images, or an image with the build before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.artifacts.compare import ImageChanges, image_changes, previous_of
from builder.cli.options import Options, Parser, a_path, not_empty
from builder.model.errors import BadInput
from builder.model.manifest import MANIFEST


class DiffOptions(Options):
    path: str
    other: str | None
    json: bool
    policy: Path | None
    arch: str | None
    plain_http: Sequence[str]


def declare(parser: Parser) -> None:
    parser.description = """\
Compare two images: packages, files, sizes of the formats, labels and outcomes of the checks. With
one image, its last build is compared with the build before, of which the manifest, the bill of
materials and the list of files are kept in out/IDENTIFIER/previous. Two published images, which the
policy must accept, are named by references, REGISTRY/NAMESPACE/RECIPE:TAG; of their files only the
layers' digests are compared. The exit code is 0 if images are equal, 5 if one is refused, else 1.
"""
    parser.add_text("path", "an image's folder, its identifier, or a published image", "IMAGE")
    text = "the image to compare it with (default: the build before)"
    parser.add_argument("other", type=not_empty, nargs="?", metavar="OTHER", help=text)
    parser.add_output("where the image's folder is, if its identifier is given (default: out)")
    text = "of published images: the signers (default: /etc/build-images/policy.yaml)"
    parser.add_path("--policy", text)
    parser.add_text(
        "--arch", "of published images: the architecture (default: this machine's)", "ARCH"
    )
    parser.add_plain_http()
    parser.add_json("print all differences as JSON")


def run(options: DiffOptions) -> int:
    """Print the differences of two images; return 1 if there are any."""
    names = [options.path, *([options.other] if options.other else [])]
    if published := [name for name in names if _is_reference(name)]:
        if published != names or not options.other:
            raise BadInput(
                f"{published[0]}: a published image is compared with another published one",
                hint="pull it first, or name two references",
            )
        changes = _of_published(options, *names)
    else:
        folders = [options.image_folder(a_path(name), MANIFEST) for name in names]
        earlier = folders[0] if options.other else previous_of(folders[0])
        changes = image_changes(earlier, folders[-1])
    options.show(changes.as_json(), changes.as_text)
    return 0 if changes.is_equal else 1


def _is_reference(name: str) -> bool:
    """Return whether a name is REGISTRY/...:TAG or ...@DIGEST, and no path."""
    last = name.rpartition("/")[2]
    return "/" in name and (":" in last or "@" in last) and not Path(name).exists()


def _of_published(options: DiffOptions, before: str, after: str) -> ImageChanges:
    from builder.distribute.pull.images import Puller  # noqa: PLC0415 - slow to import
    from builder.distribute.pull.request import references_of, request_of  # noqa: PLC0415

    policy, arch = options.policy, options.arch or ""
    requests = [
        request_of(references_of([name])[0], "oci", policy=policy, arch=arch, emulated=False)
        for name in (before, after)
    ]
    puller = Puller(plain_http=options.plain_http, say=lambda _: None)
    return puller.changes(*requests)
