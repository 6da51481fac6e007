"""`build-images doctor`: report what this machine can do, and the health of its GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from builder.artifacts.manifests import read_manifest, why_none
from builder.build.engines.storage import try_storage
from builder.build.native import is_lent
from builder.cli.options import Options, Parser, a_path
from builder.host.doctor import FOLDERS, as_json, as_text, examine, gpus
from builder.load.facts import known_facts
from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import in_colour


class DoctorOptions(Options):
    path: Path | None
    gpu: bool
    json: bool


def declare(parser: Parser) -> None:
    text = (
        "show the health of the driver and each GPU; exit code 0 if they are reliable, "
        "1 if not, 4 if there is no GPU"
    )
    parser.add_flag("--gpu", text)
    text = "with --gpu: an image's folder; show the cause of its failed GPU checks"
    parser.add_argument("path", type=a_path, metavar="IMAGE", nargs="?", help=text)
    parser.add_json()


def run(options: DoctorOptions) -> int:
    """Print what this machine has and can do; return 4 if no folder is usable."""
    if options.gpu:
        return _gpu_health(options)
    if options.path:
        raise BadInput(
            f"{options.path}: an image needs --gpu", hint="build-images doctor --gpu IMAGE"
        )
    home = Home.of_environment()
    diagnosis = examine(
        Processes(),
        home=home.path,
        search_path=home.search_path(),
        try_storage=try_storage,
        is_lent=is_lent,
    )
    options.show(as_json(diagnosis), lambda: as_text(diagnosis, colour=in_colour()))
    usable = all(diagnosis.items[key].ok for key in FOLDERS)
    return 0 if usable else MissingPrerequisite.exit_code


def _gpu_health(options: DoctorOptions) -> int:
    manifest = None
    if options.path and (manifest := read_manifest(options.path)) is None:
        raise BadInput(
            why_none(options.path), hint="name an image's folder, such as out/IDENTIFIER"
        )
    health = gpus.examine(
        Processes(),
        releases=dict(known_facts(options.project).cuda),
        search_path=os.environ.get("PATH", os.defpath),
        manifest=manifest,
    )
    options.show(gpus.as_json(health), lambda: gpus.as_text(health, colour=in_colour()))
    return health.exit_code
