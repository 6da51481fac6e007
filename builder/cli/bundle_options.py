"""The options of `bundle` and `load`, and the value that they become."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from builder.cli.arguments import (
    Commands,
    a_path,
    command,
    common_options,
    not_empty,
    positive_number,
    progress_options,
    selectors_options,
)
from builder.cli.help import EXIT_CODES
from builder.cli.pull_options import FORMATS, POLICY

BUNDLE = """\
Write the selected images into one archive, to be carried to where no network is: OCI images with
their indexes, SIFs and tarballs, all proof, and what the images are built from: the project's
files, base images, locked sources, native tools, and the packages that each build was given. It is
an OCI image layout in a tar, which skopeo reads as oci-archive:, too. An image that is not proven
is refused, as `publish` does it. With --from, images and proof come from a registry, as they are
there.

The same images and the same key give the same bytes. The archive has its name when it is whole.
"""
BUNDLE_EXAMPLES = """\
examples:
  build-images bundle --output site.tar --key site.key
  build-images bundle --recipe pytorch --output pytorch.tar --no-inputs
  build-images bundle --from quay.io/site --output site.tar

"""
LOAD = """\
Take images from an archive that `bundle` wrote, if they are proven: by the same policy as `pull`,
with the same rules. Every blob is read against its digest; what is damaged, missing or has no place
in such an archive is refused.

With --to, a registry is filled, with the proof; whether an image runs on a host is asked of those
who pull from there. With --output, images are unpacked into a folder, as `pull` does it. With
--home, bases, sources, native tools and packages go where builds look for them, if a key of the
policy signed them: then build-images --offline builds the images again, and with the same engine
they come out the same.
"""
LOAD_CODES = """\
exit codes:
  0  all of it is there, whole
  1  a registry goes on failing
  2  bad input or bad usage: no such archive or policy; something else is at that place
  4  no registry can be reached, it does not let us, or there is no space
  5  refused: the archive is damaged, or an image in it is not proven; a line for each reason

examples:
  build-images load site.tar --policy policy.yaml --to registry.site.example/hpc
  build-images load site.tar --policy policy.yaml --output images --format sif
  build-images load site.tar --policy policy.yaml --home --checkout project
  build-images load site.tar --policy policy.yaml --to registry.site.example/hpc --dry-run
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleOptions:
    """What was asked of `bundle` or `load`. `archive` is what is written, or read."""

    archive: Path
    inputs: bool = True
    policy: Path | None = None
    folder: Path | None = None
    format: str = ""
    arch: str = ""
    home: bool = False
    checkout: Path | None = None
    explain: bool = False


def declare(commands: Commands) -> None:
    """The two commands."""
    _declare_bundle(commands)
    _declare_load(commands)


def _declare_bundle(commands: Commands) -> None:
    parents = [selectors_options(), common_options(), progress_options()]
    bundle = command(commands, "bundle", "write proven images into an archive", parents)
    bundle.description, bundle.epilog = BUNDLE, BUNDLE_EXAMPLES + EXIT_CODES
    bundle.add_argument(
        "--output",
        "-o",
        dest="archive",
        type=a_path,
        metavar="FILE",
        required=True,
        help="the archive",
    )
    bundle.add_argument(
        "--images",
        dest="output",
        type=a_path,
        metavar="DIR",
        help="where the images' folders are (default: PROJECT/out)",
    )
    bundle.add_argument(
        "--from",
        dest="source",
        type=not_empty,
        metavar="REGISTRY/NAMESPACE",
        help="take images and proof from a registry, in the place of the output folder",
    )
    bundle.add_argument(
        "--key",
        type=not_empty,
        metavar="KEY",
        help="sign all of it with this key, as `publish` does",
    )
    bundle.add_argument(
        "--no-inputs",
        action="store_true",
        help="images and proof alone: no bases, sources, packages and files of the project",
    )
    _shared(bundle, "say what the archive would hold, and write nothing")


def _declare_load(commands: Commands) -> None:
    about = "take images from an archive, if they are proven"
    load = command(commands, "load", about, [common_options(), progress_options()])
    load.description, load.epilog = LOAD, LOAD_CODES
    load.add_argument("archive", type=a_path, metavar="ARCHIVE", help="what `bundle` wrote")
    where = load.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=not_empty, metavar="REGISTRY/NAMESPACE", help="fill a registry")
    where.add_argument(
        "--output",
        "-o",
        type=a_path,
        metavar="DIR",
        help="a folder for each image in this one",
    )
    where.add_argument(
        "--home", action="store_true", help="fill the builder's home, to build again offline"
    )
    load.add_argument("--policy", type=a_path, metavar="FILE", help=f"default: {POLICY}")
    load.add_argument(
        "--format", dest="load_format", choices=FORMATS, help="with --output: what is to be on disk"
    )
    load.add_argument(
        "--arch",
        type=not_empty,
        help="with --output: the images of this one (default: that of the host)",
    )
    load.add_argument(
        "--checkout",
        type=a_path,
        metavar="DIR",
        help="with --home: the folder that is made of the project",
    )
    load.add_argument(
        "--host",
        type=a_path,
        metavar="FILE",
        help="judge for the host of a record (check-host --record)",
    )
    load.add_argument("--explain", action="store_true", help="show the outcome of every rule")
    _shared(load, "read and judge all of it, and bring nothing")


def _shared(parser: argparse.ArgumentParser, dry_run: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument(
        "--plain-http",
        metavar="HOST",
        action="append",
        help="ask this registry without TLS (may be repeated; loopback is, where it has none)",
    )
    parser.add_argument(
        "--jobs", type=positive_number, default=4, metavar="N", help="blobs at once (default: 4)"
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def bundle_options(
    parser: argparse.ArgumentParser, given: argparse.Namespace
) -> BundleOptions | None:
    """The value of what was parsed; None for other commands."""
    if given.command == "bundle":
        return BundleOptions(archive=given.archive, inputs=not (given.no_inputs or given.source))
    if given.command != "load":
        return None
    for name, goes_with in (("load_format", "output"), ("arch", "output"), ("checkout", "home")):
        if getattr(given, name) and not getattr(given, goes_with):
            parser.error(f"--{name.removeprefix('load_')} goes with --{goes_with}")
    if given.output and not given.load_format:
        parser.error(f"--output needs --format: one of {', '.join(FORMATS)}")
    return BundleOptions(
        archive=given.archive,
        policy=given.policy,
        folder=given.output,
        format=given.load_format or "",
        arch=given.arch or "",
        home=given.home,
        checkout=given.checkout,
        explain=given.explain,
    )
