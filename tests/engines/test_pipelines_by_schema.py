"""The kept pipelines, and one of many images, by the vendors' schemas and by actionlint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from command_line import build_images_here
from harness import PROJECT, Ended, passed, run_program, tool_of_tests

SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}


KEYLESS = {"key": [], "keyless": ["--keyless"]}


@pytest.fixture(name="printed", params=[(one, key) for one in SCHEMAS for key in KEYLESS])
def _printed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A CI system, and the pipeline of every image of a recipe."""
    system, key = request.param
    words = ("--recipe=hpc-base", "--native-runner=ppc64le=power9", *KEYLESS[key])
    env = {"BUILD_IMAGES_HOME": str(tmp_path / "home")}
    path = tmp_path / f"{system}.yml"
    path.write_text(passed(build_images_here("ci", system, *words, env=env)).stdout)
    return system, path


def by_schema(system: str, path: Path) -> Ended:
    pytest.importorskip("check_jsonschema", reason="missing on this machine: check-jsonschema")
    words = ("-m", "check_jsonschema", "--builtin-schema", SCHEMAS[system], path)
    return run_program(sys.executable, *words)


def actionlint(path: Path) -> Ended:
    config = path.parent / "actionlint.yaml"
    config.write_text("self-hosted-runner:\n  labels: [power9]\n")
    return run_program(tool_of_tests("actionlint"), "-no-color", "-config-file", config, path)


@pytest.mark.parametrize("system", SCHEMAS)
def test_kept_pipelines_are_what_the_vendors_schemas_want(system: str) -> None:
    passed(by_schema(system, PROJECT / "ci" / f"{system}.yml"))


def test_one_of_many_images_is_what_the_vendors_schemas_want(printed: tuple[str, Path]) -> None:
    passed(by_schema(*printed))


@pytest.mark.parametrize("system", SCHEMAS)
def test_the_schemas_do_not_take_everything(system: str, tmp_path: Path) -> None:
    text = (PROJECT / "ci" / f"{system}.yml").read_text()
    broken = text.replace("    runs-on:", "    run-on:").replace("  script:", "  scripd:")
    assert broken != text
    (tmp_path / "broken.yml").write_text(broken)
    assert by_schema(system, tmp_path / "broken.yml").status == 1


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    path = shutil.copy(PROJECT / "ci/github.yml", tmp_path)
    done = actionlint(Path(path))
    assert (done.status, done.stdout) == (0, ""), done.stdout + done.stderr


def test_actionlint_finds_nothing_in_one_of_many_images(printed: tuple[str, Path]) -> None:
    system, path = printed
    if system == "github":
        done = actionlint(path)
        assert (done.status, done.stdout) == (0, ""), done.stdout + done.stderr


def test_actionlint_does_not_take_everything(tmp_path: Path) -> None:
    text = (PROJECT / "ci/github.yml").read_text()
    (tmp_path / "broken.yml").write_text(text.replace("github.event_name", "github.event_nane"))
    assert "event_nane" in actionlint(tmp_path / "broken.yml").stdout
