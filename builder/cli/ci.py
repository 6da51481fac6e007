"""`build-images ci`: print a pipeline for a CI system."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from builder.build.planning import load_images
from builder.cli.options import Parser, SelectorOptions
from builder.model.architectures import ARCHITECTURES, architecture
from builder.reports import pipelines

_DESCRIPTION = """\
Print a pipeline that builds, verifies and publishes the selected images, for GitHub Actions or
GitLab: a job for each image, on a runner of its architecture where there is one, else emulated.
The same selection gives the same text. The pipeline is made from the plan: after a change of
recipes or matrix, print it again.
"""


class CiOptions(SelectorOptions):
    system: str
    native_runner: Sequence[tuple[str, str]]
    keyless: bool


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("system", choices=tuple(pipelines.RUNNERS), help="which CI system")
    text = "label or tag of an architecture's runner, or `none` (may be repeated)"
    parser.add_list("--native-runner", text, "ARCH=LABEL", convert=_runner)
    parser.add_flag("--keyless", "sign with cosign and the job's identity, without a key")


def run(options: CiOptions) -> int:
    """Print the pipeline of the selected images."""
    system = options.system
    own_runners = dict(options.native_runner)
    argv = ["build-images", "ci", system, *pipelines.selectors_of(options.selection)]
    argv += [f"--native-runner={arch}={label}" for arch, label in own_runners.items()]
    argv += ["--keyless"] if options.keyless else []
    pipeline = pipelines.pipeline_of(
        load_images(options.project, options.selection),
        {**pipelines.RUNNERS[system], **own_runners},
        command=shlex.join(argv),
        key=pipelines.KEYLESS if options.keyless else pipelines.SECRET_KEY,
        has_scripts=(options.project / "ci/setup").exists(),
    )
    print(pipelines.pipeline_text(system, pipeline), end="")
    return 0


def _runner(text: str) -> tuple[str, str]:
    name, _, label = text.partition("=")
    arch = architecture(name)
    if arch is None or not label:
        known = ", ".join(ARCHITECTURES)
        problem = f"{text} is not ARCH=LABEL, such as ppc64le=power9; architectures: {known}"
        raise argparse.ArgumentTypeError(problem)
    return arch.name, label
