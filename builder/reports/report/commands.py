"""The commands that run an image, as a site would type them: from a folder, or from a registry."""

from __future__ import annotations

import shlex

from builder.facts.runtimes import RUNTIMES
from builder.model import NONE, Cell
from builder.model.architectures import ARCHITECTURES
from builder.model.manifest import Manifest

_RUN_CHECKS = "/opt/build-images/run-checks"
_AGAIN, _IN_IT = "run the checks in it again", "run the checks in it"
_BY_HOST = "an MPI program, started by the host's MPI"

# A container runtime, and its commands: what a line does, and the line for a terminal.
Recipe = tuple[str, tuple[tuple[str, str], ...]]


def recipes_of(manifest: Manifest, *, folder: str) -> tuple[Recipe, ...]:
    """Return how to run each artifact of an image, from the folder that holds `folder`."""
    image, mpi = manifest.image, manifest.cell.mpi
    launch = "mpiexec -n 4" if "mpich" in mpi else "mpirun -np 4"
    paths = {
        name: shlex.quote(f"{folder}/{image}/{artifact.path}")
        for name, artifact in manifest.artifacts.items()
    }
    sif, tar, oci = (paths.get(name, "") for name in ("sif", "charliecloud", "oci"))
    root = shlex.quote(f"/var/tmp/{image}")  # noqa: S108 - where a site unpacks, not this program
    recipes = {
        "Apptainer": (
            (_AGAIN, f"apptainer exec {sif} {_RUN_CHECKS}"),
            ("the same, through %test", f"apptainer test {sif}"),
            (_BY_HOST, f"{launch} apptainer exec {sif} ./program"),
        ),
        "Charliecloud": (
            ("unpack", f"ch-convert -i tar -o dir {tar} {root}"),
            ("or with tar alone", f"mkdir -p {root} && tar -xzf {tar} -C {root}"),
            (_AGAIN, f"ch-run --set-env -w {root} -- {_RUN_CHECKS}"),
            (_BY_HOST, f"{launch} ch-run --set-env -w {root} -- ./program"),
        ),
        "Podman": (
            (_AGAIN, f"podman run --rm oci:{oci} {_RUN_CHECKS}"),
            (
                "an MPI program, started by the image's MPI",
                f"podman run --rm -v .:/work -w /work oci:{oci} {launch} ./program",
            ),
        ),
    }
    return tuple(
        (runtime, commands[:-1] if mpi == NONE else commands)
        for (runtime, commands), path in zip(recipes.items(), (sif, tar, oci), strict=True)
        if path
    )


def pull_recipes(image: str, cell: Cell, *, registry: str, digest: str) -> tuple[Recipe, ...]:
    """Return the commands for an image at HOST/NAMESPACE; other programs take it by digest.

    `build-images pull` checks the proof; none of the others does.
    """
    repository = f"{registry}/{cell.recipe}"
    ours, pinned = shlex.quote(f"{repository}:{cell.tag}"), shlex.quote(f"{repository}@{digest}")
    pull = f"build-images pull {ours} --arch {cell.arch} --format"
    arch = ARCHITECTURES[cell.arch].oci
    # ch-image(1), --arch: it has names with the variant alone where there are variants.
    ch_arch = {"arm64": "arm64/v8"}.get(arch, arch)
    name, sif, folder = map(shlex.quote, (image.lower(), f"{image}.sif", f"./{image}"))
    sif_source = shlex.quote(f"docker://{repository}@{digest}")
    has_gpu = cell.cuda != NONE
    nv, cdi, gpus = (
        f" {RUNTIMES[runtime].gpu}" if has_gpu else ""
        for runtime in ("apptainer", "podman", "docker")
    )
    driver = ("bring the driver's libraries in", f"ch-fromhost --nvidia {folder}")
    docker_run = f"docker run --rm --platform=linux/{arch}{gpus}"
    return (
        (
            "build-images, which looks at the proof",
            (("as SIF", f"{pull} sif"), ("for Charliecloud", f"{pull} charliecloud")),
        ),
        (
            "Apptainer",
            (
                ("pull", f"apptainer pull --arch {arch} {sif} {sif_source}"),
                (_IN_IT, f"apptainer exec{nv} {sif} {_RUN_CHECKS}"),
            ),
        ),
        (
            "Charliecloud",
            (
                ("pull", f"ch-image pull --arch={ch_arch} {pinned} {name}"),
                ("unpack", f"ch-convert {name} {folder}"),
                *((driver,) if has_gpu else ()),
                (_IN_IT, f"ch-run --set-env {folder} -- {_RUN_CHECKS}"),
            ),
        ),
        (
            "Podman",
            (
                ("pull", f"podman pull --arch={arch} {pinned}"),
                (_IN_IT, f"podman run --rm --arch={arch}{cdi} {pinned} {_RUN_CHECKS}"),
            ),
        ),
        (
            "Docker",
            (
                ("pull", f"docker pull --platform=linux/{arch} {pinned}"),
                (_IN_IT, f"{docker_run} {pinned} {_RUN_CHECKS}"),
            ),
        ),
    )
