"""The options of the commands for sites: `site-files`, `ci`, `catalog`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from builder.cli.arguments import Commands, a_path, command, not_empty, output, positive_number

SYSTEMS = ("github", "gitlab")
FOLDERS = {"site-files": "out/site", "catalog": "out/catalog"}  # where else than in `out`

SITE_FILES = """\
Write what a site needs to run the selected images, ready to use: for each image batch scripts for
Slurm (Apptainer, Charliecloud, and the host's mpiexec), an Lmod module, a Podman command, manifests
for OpenShift (build, pod, job) and an entry for shpc. Nothing is built and nothing is started.
"""

CI = """\
Print a pipeline that builds, verifies and publishes the selected images, for GitHub Actions or
GitLab: a job for each image, on a runner of its architecture where there is one, else emulated.
The same selection gives the same text. What it is made of is the plan: after a change of recipes
or matrix, print it again.
"""

CATALOG = """\
Write a web site of the images in a folder, as `build-images` and `build-images verify` left them:
what is in each, what is proven, how to pull and run it. It is files alone, for any web server, or
to be opened as they are.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteOptions:
    """`registry` is HOST/NAMESPACE, empty where there is none. `folder` is the images' folder on
    the site, `system` a name of SYSTEMS, `runners` maps architectures to labels of runners. With
    `keyless` pipelines sign without a key.
    """

    registry: str = ""
    folder: str = "/opt/images"
    gpus: int = 4
    system: str = ""
    runners: tuple[tuple[str, str], ...] = field(default=())
    keyless: bool = False
    images: Path | None = None


def site_options(given: argparse.Namespace) -> SiteOptions:
    """What was given; the defaults for commands that have other options."""
    return SiteOptions(
        registry=getattr(given, "registry", None) or "",
        folder=getattr(given, "folder", None) or "/opt/images",
        gpus=getattr(given, "gpus", 4),
        system=getattr(given, "system", ""),
        runners=tuple(getattr(given, "native_runner", None) or ()),
        keyless=getattr(given, "keyless", False),
        images=getattr(given, "images_in", None),
    )


def add_site_commands(
    commands: Commands, selectors: argparse.ArgumentParser, common: argparse.ArgumentParser
) -> None:
    """Declare the commands; the catalogue takes no selectors, for it shows what is there."""
    about = "write what a site needs to run the images"
    files = command(commands, "site-files", about, [selectors, common])
    files.description = SITE_FILES
    files.add_argument(
        "--registry", required=True, metavar="HOST/NAMESPACE", help="where the images are published"
    )
    files.add_argument(
        "--folder",
        type=not_empty,
        metavar="DIR",
        help="where the site's nodes have the images that were pulled (default: /opt/images)",
    )
    files.add_argument(
        "--gpus",
        type=positive_number,
        default=4,
        metavar="N",
        help="GPUs of a node, for images with CUDA (default: 4)",
    )
    output(files, f"where to write them (default: PROJECT/{FOLDERS['site-files']})")
    _images_in(files, "take the digests of images that are built from here")
    about = "print a pipeline for the images, for a CI system"
    pipeline = command(commands, "ci", about, [selectors, common])
    pipeline.description = CI
    pipeline.add_argument("system", choices=SYSTEMS, help="which CI system")
    pipeline.add_argument(
        "--native-runner",
        action="append",
        type=_runner,
        metavar="ARCH=LABEL",
        help="a runner of an architecture: its label or tag, or `none` (may be repeated)",
    )
    pipeline.add_argument(
        "--keyless",
        action="store_true",
        help="sign with the identity of the job, by cosign, and not with a key that it is given",
    )
    about = "write a web site of the images that are built"
    catalog = command(commands, "catalog", about, [common])
    catalog.description = CATALOG
    catalog.add_argument(
        "--registry",
        type=not_empty,
        metavar="HOST/NAMESPACE",
        help="where the images are published, if they are",
    )
    output(catalog, f"where to write it (default: PROJECT/{FOLDERS['catalog']})")
    _images_in(catalog, "the folder of the images' folders")


def _images_in(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--images-in", type=a_path, metavar="DIR", help=f"{text} (default: PROJECT/out)"
    )


def _runner(text: str) -> tuple[str, str]:
    arch, _, label = text.partition("=")
    if not arch or not label:
        raise argparse.ArgumentTypeError(f"{text} is not ARCH=LABEL, such as ppc64le=power9")
    return arch, label
