"""`build-images ci`: a pipeline for a CI system, printed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from builder.cli.commands import load_plan
from builder.facts import ARCHITECTURES, architecture
from builder.model.errors import BadInput
from builder.reports import pipelines
from builder.reports.pipelines import github, gitlab
from builder.reports.pipelines.github import RUNNERS as GITHUB
from builder.reports.pipelines.gitlab import RUNNERS as GITLAB
from builder.reports.pipelines.jobs import KEYLESS, SECRET_KEY, words_of

if TYPE_CHECKING:
    from builder.cli.options import Options

_SYSTEMS = {"github": (github, GITHUB), "gitlab": (gitlab, GITLAB)}


def print_pipeline(options: Options) -> int:
    """Print the pipeline of the selected images."""
    system = options.site.system
    make, runners = _SYSTEMS[system]
    given = {_architecture(arch): label for arch, label in options.site.runners}
    words = ["build-images", "ci", system, *words_of(options.selection)]
    words += [f"--native-runner={arch}={label}" for arch, label in given.items()]
    words += ["--keyless"] if options.site.keyless else []
    made = pipelines.pipeline_of(
        load_plan(options).images,
        {**runners, **given},
        command=shlex.join(words),
        key=KEYLESS if options.site.keyless else SECRET_KEY,
    )
    print(make(made), end="")
    return 0


def _architecture(name: str) -> str:
    found = architecture(name)
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise BadInput(f"--native-runner: unknown architecture {name}; architectures: {known}")
    return found.name
