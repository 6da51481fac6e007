"""`build-images site-files`: write scripts, modules and manifests for a site."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.build.planning import load_images
from builder.cli.options import Parser, SelectorOptions, not_empty
from builder.model import PlannedImage
from builder.model.errors import counted
from builder.reports.sites import SiteImage, SitePlace, site_files
from builder.system.files import write_atomically

_DESCRIPTION = """\
Write the files that a site needs to run the selected images: for each image, batch scripts for
Slurm (Apptainer, Charliecloud, and the host's mpiexec), an Lmod module, a Podman command, manifests
for OpenShift (build, pod, job) and an entry for shpc. Nothing is built and nothing is started.
"""


class SiteFilesOptions(SelectorOptions):
    registry: str
    folder: str
    gpus: int
    images_in: Path | None


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--registry", required=True, metavar="HOST/NAMESPACE", help="where the images are published"
    )
    parser.add_argument(
        "--folder",
        type=not_empty,
        metavar="DIR",
        default="/opt/images",
        help="folder of the pulled images on the site's nodes (default: /opt/images)",
    )
    parser.add_number("--gpus", "GPUs per node, for images with CUDA (default: 4)", default=4)
    parser.add_output("where to write them (default: PROJECT/out/site)")
    parser.add_images_in("read the digests of built images from this folder")


def run(options: SiteFilesOptions) -> int:
    """Write the files of the selected images, and print the folder of each."""
    place = SitePlace(registry=options.registry, folder=options.folder, gpus=options.gpus)
    images = load_images(options.project, options.selection)
    digests = _digests(images, options.images_in or options.project / "out")
    folder = options.output or options.project / "out/site"
    texts = site_files(
        [
            SiteImage(planned=image, place=place, digest=digests.get(image.identifier, ""))
            for image in images
        ]
    )
    for name, text in texts.items():
        _write(folder / name, text)
    if rest := len(images) - len(digests):
        note = f"{counted(rest, 'image')} not built here: named by tag, and without an shpc entry"
        print(note, file=sys.stderr)
    print("\n".join(str(folder / image.identifier) for image in images))
    return 0


def _digests(images: Iterable[PlannedImage], folder: Path) -> dict[str, str]:
    """Return the OCI manifest's digest of each image that was built from the current inputs."""
    digests = {}
    for image in images:
        manifest = read_manifest(folder / image.identifier)
        if manifest and manifest.content_key == image.content_key:
            digests[image.identifier] = manifest.artifacts["oci"].digest
    return digests


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)  # for users, whatever the umask
