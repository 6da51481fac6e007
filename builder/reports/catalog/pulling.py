"""How an image is pulled and started by each runtime, as a site types it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from builder import facts
from builder.facts.runtimes import RUNTIMES
from builder.reports.report.commands import RUN_CHECKS, Command, Recipe


def pull_recipes(
    image: str, cell: Mapping[str, str], *, registry: str, tag: str, digest: str, gpu: bool
) -> tuple[Recipe, ...]:
    """The commands for an image at HOST/NAMESPACE; other programs than ours take it by digest.

    `build-images pull` looks at the proof; none of the others does.
    """
    repository = f"{registry}/{cell['recipe']}"
    ours, pinned = shlex.quote(f"{repository}:{tag}"), shlex.quote(f"{repository}@{digest}")
    arch = facts.ARCHITECTURES[cell["arch"]].oci
    # ch-image(1), --arch: it has names with the variant alone where there are variants.
    ch_arch = {"arm64": "arm64/v8"}.get(arch, arch)
    sif, folder = shlex.quote(f"{image}.sif"), shlex.quote(f"./{image}")
    sif_source = shlex.quote(f"docker://{repository}@{digest}")
    nv = f" {RUNTIMES['apptainer'].gpu}" if gpu else ""
    cdi = f" {RUNTIMES['podman'].gpu}" if gpu else ""
    gpus = f" {RUNTIMES['docker'].gpu}" if gpu else ""
    driver = [("bring the driver's libraries in", f"ch-fromhost --nvidia {folder}")] if gpu else []
    return (
        _recipe(
            "build-images, which looks at the proof",
            ("as SIF", f"build-images pull {ours} --arch {cell['arch']} --format sif"),
            (
                "for Charliecloud",
                f"build-images pull {ours} --arch {cell['arch']} --format charliecloud",
            ),
        ),
        _recipe(
            "Apptainer",
            ("pull", f"apptainer pull --arch {arch} {sif} {sif_source}"),
            ("run the checks in it", f"apptainer exec{nv} {sif} {RUN_CHECKS}"),
        ),
        _recipe(
            "Charliecloud",
            ("pull", f"ch-image pull --arch={ch_arch} {pinned} {shlex.quote(image.lower())}"),
            ("unpack", f"ch-convert {shlex.quote(image.lower())} {folder}"),
            *driver,
            ("run the checks in it", f"ch-run --set-env {folder} -- {RUN_CHECKS}"),
        ),
        _recipe(
            "Podman",
            ("pull", f"podman pull --arch={arch} {pinned}"),
            ("run the checks in it", f"podman run --rm --arch={arch}{cdi} {pinned} {RUN_CHECKS}"),
        ),
        _recipe(
            "Docker",
            ("pull", f"docker pull --platform=linux/{arch} {pinned}"),
            (
                "run the checks in it",
                f"docker run --rm --platform=linux/{arch}{gpus} {pinned} {RUN_CHECKS}",
            ),
        ),
    )


def _recipe(runtime: str, *commands: tuple[str, str]) -> Recipe:
    lines = tuple(Command(about=about, line=line) for about, line in commands)
    return Recipe(runtime=runtime, commands=lines)
