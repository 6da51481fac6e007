"""What an image runs: entry point and command, the same in all formats."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from samples import EVERYTHING, block, project, recipe

from builder.compile.lint import own_findings
from builder.compile.lint.findings import RULES
from builder.compile.lint.reading import read
from builder.compile.spec import compile_spec
from builder.compile.spec.image_scripts import RUN
from builder.model import Spec
from builder.plan import make_plan

PARENT = recipe(
    "core", development=(block("shell", commands=["true"]),), entrypoint=("env", "A=b c")
)
CHILD = recipe("app", parent="core", command=("printf", "%s", "two words"))


def specs(root: Path, *recipes: object) -> dict[str, Spec]:
    made = make_plan(project(root, recipes=recipes), EVERYTHING, compiler="")  # type: ignore[arg-type]
    return {
        image.cell.recipe: compile_spec(image, run_checks="#!/bin/sh\n") for image in made.images
    }


def test_both_texts_run_the_same(tmp_path: Path) -> None:
    """A child has its own command behind its ancestor's entry point."""
    app = specs(tmp_path, PARENT, CHILD)["app"]
    assert 'ENTRYPOINT ["env", "A=b c"]\n' in app.dockerfile
    assert 'CMD ["printf", "%s", "two words"]' in app.dockerfile
    assert f'%runscript\n    exec {RUN} "$@"' in app.singularity
    for text in (app.dockerfile, app.singularity):
        assert f"files/run {RUN}" in text
    assert {problem.rule for problem in own_findings(read(app, locked=False))} <= {
        rule.name for rule in RULES if rule.level == "warning"
    }


def test_an_entry_point_alone_has_no_shell_behind_it(tmp_path: Path) -> None:
    core = specs(tmp_path, PARENT)["core"]
    assert 'ENTRYPOINT ["env", "A=b c"]\n\nCMD []' in core.dockerfile
    assert core.files["files/run"].endswith("else exec env 'A=b c'; fi\n")


def test_without_either_nothing_changes(tmp_path: Path) -> None:
    plain = specs(tmp_path, recipe("core"))["core"]
    assert 'CMD ["/bin/bash"]' in plain.dockerfile
    assert "ENTRYPOINT" not in plain.dockerfile
    assert "files/run" not in plain.files
    assert "else exec /bin/bash; fi" in plain.singularity


@pytest.mark.parametrize(
    ("given", "output"),
    [((), "two words"), (("printf", "%s", "$A"), "$A"), (("sh", "-c", 'printf "$A"'), "b c")],
)
def test_the_script_runs_what_it_is_given(
    given: tuple[str, ...], output: str, tmp_path: Path
) -> None:
    script = tmp_path / "run"
    script.write_text(specs(tmp_path, PARENT, CHILD)["app"].files["files/run"])
    shell = shutil.which("sh")
    assert shell is not None
    done = subprocess.run(
        [shell, script, *given], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == output


def test_a_changed_command_is_another_image(tmp_path: Path) -> None:
    def key(*command: str) -> str:
        made = recipe("core", command=command)
        return (
            make_plan(project(tmp_path, recipes=[made]), EVERYTHING, compiler="")
            .images[0]
            .content_key
        )

    assert len({key(), key("a"), key("b"), key("a", "b")}) == 4
