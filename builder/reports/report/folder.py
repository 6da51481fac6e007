"""The report over an output folder: all images in it, of this run and of earlier ones."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder import __version__
from builder.model import Plan
from builder.model.manifest import Manifest
from builder.reports.report import write_report
from builder.reports.report.view import BuildRun


def report_folder(
    out: Path,
    manifests: Sequence[Manifest],
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: BuildRun,
) -> None:
    """Write the report over an output folder: what is in it, and what is not, with the reasons.

    `manifests` are those of all images in it. `failures` and `compiled` are as in `write_report`;
    `run` says when, for how long, and on which host.
    """
    command = shlex.join(["build-images", *sys.argv[1:]])
    build = replace(run, tool_version=__version__, command=command)
    write_report(manifests, plan.left_out, failures, out=out, build=build, compiled=compiled)
