"""Runs in which nothing passed: whether the machine, and not the image, is why.

What a machine lacks says nothing of an image, so nothing is recorded of such a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from builder.build.engines import Tools
from builder.host import doctor as examination
from builder.model import FAILED, Outcome
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.verify.machine import runs_nothing
from builder.verify.runners import Container, Kind

_FULL = ("no space left on device", "disk quota exceeded")


def machines_fault(
    kind: Kind,
    container: Container,
    arch: str,
    outcomes: Iterable[Outcome],
    error: StepFailed | None = None,
) -> str:
    """Why this machine cannot run an image's checks; empty if it can, or if one of them passed.

    `error` is why the container did not start, if it did not. To find out takes some seconds.
    """
    if any(one.outcome != FAILED for one in outcomes):
        return ""
    if error and any(text in error.said() for text in _FULL):
        return f"{container.tools.home.path}: the disk is full"
    return _lacking(kind, container.tools, arch) or runs_nothing(kind, container)


def _lacking(kind: Kind, tools: Tools, arch: str) -> str:
    """What doctor finds missing for a runner."""
    home = tools.home
    diagnosis = examination.examine(tools.processes, home=home.path, search_path=home.search_path())
    lacking = examination.lacking_for(diagnosis, kind.name, arch)
    return "; ".join(f"{item.title}: {item.text}" for item in lacking)


def not_tried(identifier: str, untried: Mapping[str, str]) -> MissingPrerequisite:
    """The error of a verification for which this machine lacks something."""
    lines = [f"{identifier}: this machine lacks what its checks need. Not tried, nor recorded:"]
    lines += [f"  {name}: {reason}" for name, reason in untried.items()]
    return MissingPrerequisite(
        "\n".join(lines), hint="'build-images doctor' shows all that this machine has"
    )
