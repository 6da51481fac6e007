"""From values to texts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from builder.reports.sites.values import SiteImage, kubernetes_name

# The files of each image, by template. Scripts end in .sh.
_BY_CH_RUN = "slurm-charliecloud.sh"  # which binds folders, and Cray MPICH needs single files, too
_SCRIPTS = ("slurm-apptainer.sh", _BY_CH_RUN, "podman.sh")
_MPIEXEC = "mpiexec-charliecloud.sh"
_MANIFESTS = ("openshift-build.yaml", "openshift-pod.yaml", "openshift-job.yaml")


def site_files(images: Sequence[SiteImage]) -> dict[str, str]:
    """The text of every file, by its path below the output folder, in order.

    Each image has a folder; the modules are together in `modulefiles/`, and the entries of shpc in
    `shpc/ARCHITECTURE/`, as their programs want it. An image without a digest has no such entry.
    """
    environment = _environment()
    files: dict[str, str] = {}
    for image in images:
        for name in _names(image):
            files[f"{image.identifier}/{name}"] = _text(environment, name, image=image)
        module = f"modulefiles/{image.recipe}/{image.tag}-{image.arch}.lua"
        files[module] = _text(environment, "module.lua", image=image)
    for path, group in _by_repository(images).items():
        files[path] = _text(environment, "container.yaml", image=group[-1], images=group)
    return files


def _names(image: SiteImage) -> tuple[str, ...]:
    by_mpiexec = (_MPIEXEC,) if image.starter.mpiexec else ()
    scripts = tuple(name for name in _SCRIPTS if not (image.binds_cray and name == _BY_CH_RUN))
    return (*scripts, *by_mpiexec, *_MANIFESTS)


def _by_repository(images: Sequence[SiteImage]) -> Mapping[str, list[SiteImage]]:
    """Images that have a digest, by the path of shpc's file for them."""
    groups: dict[str, list[SiteImage]] = {}
    for image in images:
        if image.digest:
            path = f"shpc/{image.arch}/{image.repository.replace(':', '_')}/container.yaml"
            groups.setdefault(path, []).append(image)
    return groups


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # noqa: S701 - no HTML: each value goes through the filter of its language
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        shell=shlex.quote, quoted=quoted, lua=lua, line=line, kube=kubernetes_name
    )
    return environment


def _text(environment: jinja2.Environment, name: str, **values: object) -> str:
    return environment.get_template(f"{name}.j2").render(**values)


def quoted(text: str) -> str:
    """A string of YAML, in JSON's spelling."""
    return json.dumps(text, ensure_ascii=True)


def lua(text: str) -> str:
    """A string of Lua. What it has no escape for in all versions is left as it is, as UTF-8."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


def line(text: str) -> str:
    """A text for a comment: one line."""
    return " ".join(text.split())
