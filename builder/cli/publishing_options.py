"""The options of `build-images publish`."""

from __future__ import annotations

from builder.cli.arguments import (
    Commands,
    command,
    common_options,
    not_empty,
    output,
    positive_number,
    progress_options,
    selectors_options,
)
from builder.cli.help import EXIT_CODES

ABOUT = """\
Publish the selected images with their proof: one repository a recipe, one tag a cell without its
architecture, an index of all architectures that the matrix declares for it. Blobs go first, then
images by digest, then SIF, tarball and proof, which refer to them; tags are set when all of that is
there. An image that is not built, not verified, or whose evidence is of other digests is refused,
with its tag. What failed on a machine makes no published image worse, unless --attach-failures says
so. What a registry has is not sent again: after any failure, run the same command again.

Credentials come from the files of podman login and docker login, from credential helpers, or from
BUILD_IMAGES_REGISTRY_USER and BUILD_IMAGES_REGISTRY_PASSWORD. With --from nothing of this machine
is published: releases are copied from another registry, with all proof.
"""

EXAMPLES = """\
examples:
  build-images publish --to quay.io/site --key cosign.key
  build-images publish --recipe pytorch --to quay.io/site --dry-run
  build-images publish --to mirror.site.example/hpc --from quay.io/site

"""


def declare(commands: Commands) -> None:
    """The command's options."""
    parents = [selectors_options(), common_options(), progress_options()]
    publish = command(commands, "publish", "send proven images to a registry", parents)
    publish.description, publish.epilog = ABOUT, EXAMPLES + EXIT_CODES
    publish.add_argument(
        "--to", required=True, metavar="REGISTRY/NAMESPACE", help="where the repositories are"
    )
    publish.add_argument(
        "--from",
        dest="source",
        type=not_empty,
        metavar="REGISTRY/NAMESPACE",
        help="copy from another registry, in the place of the output folder",
    )
    publish.add_argument(
        "--key",
        type=not_empty,
        metavar="KEY",
        help="sign all of it with this key: a file, env://NAME, or, through cosign, pkcs11:, "
        "awskms://, ...; keyless for the identity of a CI job (default: proof is not signed)",
    )
    output(publish, "where the images' folders are (default: PROJECT/out)")
    publish.add_argument(
        "--dry-run", action="store_true", help="say what would be sent and tagged, and do nothing"
    )
    publish.add_argument(
        "--attach-failures",
        action="store_true",
        help="attach evidence of checks that failed to those images that the registry has: "
        "policies refuse them then, until a later pass is published",
    )
    publish.add_argument(
        "--plain-http",
        action="append",
        metavar="HOST",
        help="ask this registry without TLS (may be repeated; one of this machine is, if it has "
        "none)",
    )
    publish.add_argument(
        "--jobs", type=positive_number, default=8, metavar="N", help="requests at once (default: 8)"
    )
    publish.add_argument("--json", action="store_true", help="print what was published as JSON")
