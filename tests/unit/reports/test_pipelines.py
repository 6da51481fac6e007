"""Pipelines: what is kept is what is printed, and each job does what its name says."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from samples import ROOT, compare_with_golden, shipped_images, shipped_project

from builder.cli import build, main
from builder.cli.commands import ABOUT as COMMANDS
from builder.cli.commands import parse
from builder.compile.spec import COMPILER
from builder.model import Plan, Selection
from builder.model.errors import BadInput
from builder.plan import make_plan
from builder.reports.pipelines import RUNNERS, SECRET_KEY, pipeline_of, pipeline_text

SYSTEMS = tuple(RUNNERS)
PROJECT = f"--project={ROOT}"
GITLABS_OWN = {"stages", "workflow", "default"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))


@functools.cache
def planned(*flavours: str) -> Plan:
    selection = Selection(
        patterns={"recipe": ("hpc-base",), "base": ("debian13",), "mpi": ("openmpi5",)},
        flavours=flavours or ("runtime",),
    )
    return make_plan(shipped_project(), selection, compiler=COMPILER)


def text_of(system: str, plan: Plan, *, key: str = SECRET_KEY, **runners: str) -> str:
    labels = {**RUNNERS[system], **runners}
    return pipeline_text(system, pipeline_of(plan.images, labels, command="sample", key=key))


def document(system: str, plan: Plan, **runners: str) -> Any:
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # `on` is a word
    return yaml.load(text_of(system, plan, **runners), Loader=loader)


def jobs(system: str, plan: Plan, **runners: str) -> dict[str, Any]:
    """The jobs of a pipeline by what they are shown as."""
    parsed = document(system, plan, **runners)
    if system == "gitlab":
        return {name: job for name, job in parsed.items() if name not in GITLABS_OWN}
    return {job["name"]: job for job in parsed["jobs"].values()}


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_a_key_the_job_that_publishes_shows_who_it_is(system: str) -> None:
    parsed = text_of(system, planned(), key="keyless")
    assert "COSIGN" not in parsed.replace("cosign", "")
    assert parsed.count("--key keyless") == parsed.count("ci/setup images --with-cosign") == 1
    token = {"github": "id-token: write", "gitlab": "SIGSTORE_ID_TOKEN"}[system]
    assert parsed.count(token) == 1
    assert token not in text_of(system, planned())


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_pipeline_as_it_is_written(system: str) -> None:
    text = text_of(system, planned(), key="env://COSIGN_KEY")
    compare_with_golden(text, f"pipelines/{system}.yaml")


def commands(job: Any) -> Iterator[str]:
    yield from job.get("script", ())
    yield from (step["run"] for step in job.get("steps", ()) if "run" in step)


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_kept_is_what_is_printed(system: str, capsys: pytest.CaptureFixture[str]) -> None:
    stored = (ROOT / "ci" / f"{system}.yml").read_text()
    assert main(["ci", system, PROJECT]) == 0
    assert capsys.readouterr().out == stored, f"build-images ci {system} > ci/{system}.yml"
    parsed = re.match(r"# Made by: build-images (.*)\n", stored)
    assert parsed
    assert main([*shlex.split(parsed.group(1)), PROJECT]) == 0
    assert capsys.readouterr().out == stored


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_head_has_the_command_with_all_that_decided(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--recipe=hpc-base --arch=ppc64le --base=debian13 --mpi=openmpi"
    options += " --flavour=development --all --native-runner=ppc64le=power9"
    assert main(["ci", system, PROJECT, *options.split()]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"# Made by: build-images ci {system} {options}\n")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("flavour", ["runtime", "development"])
def test_each_job_builds_the_image_of_its_name(system: str, flavour: str) -> None:
    plan = planned(flavour)
    by_name = jobs(system, plan)
    assert len(plan.images) == 3
    for image in plan.images:
        job = next(each for name, each in by_name.items() if name.startswith(image.identifier))
        words = shlex.split(list(commands(job))[-1].replace("${REFRESH:+--refresh}", "--refresh"))
        assert words[:2] == ["ci/retry", ".venv/bin/build-images"]
        options = parse(words[2:])
        assert isinstance(options, build.BuildOptions)
        selected = make_plan(shipped_project(), options.selection, compiler=COMPILER)
        assert [each.identifier for each in selected.images] == [image.identifier]
        assert options.refresh
        assert not options.no_verify


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_command_is_one_that_there_is(system: str) -> None:
    for job in jobs(system, planned()).values():
        for command in commands(job):
            words = shlex.split(command.replace("${REFRESH:+--refresh}", ""))
            assert words.pop(0) == "ci/retry"
            if words[0] == "ci/setup":
                assert words == ["ci/setup", "images"]
            elif words[1] in COMMANDS or words[1].startswith("--"):
                parse(words[1:])


@pytest.mark.parametrize("system", SYSTEMS)
def test_native_where_there_is_a_runner_else_emulated(system: str) -> None:
    label = {"github": "runs-on", "gitlab": "tags"}[system]
    known = RUNNERS[system]
    by_arch = {name.split(" ")[0].rpartition("-")[2]: each for name, each in runs(system).items()}
    assert by_arch["x86_64"][label] in (known["x86_64"], [known["x86_64"]])
    assert by_arch["aarch64"][label] in (known["aarch64"], [known["aarch64"]])
    assert by_arch["ppc64le"][label] in (known["x86_64"], [known["x86_64"]])
    power = runs(system, ppc64le="power9")
    (own,) = (each for name, each in power.items() if "ppc64le" in name)
    assert own[label] in ("power9", ["power9"])
    without = runs(system, aarch64="none")
    (other,) = (each for name, each in without.items() if "aarch64" in name)
    assert other[label] in (known["x86_64"], [known["x86_64"]])


def runs(system: str, **runners: str) -> dict[str, Any]:
    by_name = jobs(system, planned(), **runners)
    return {name: each for name, each in by_name.items() if not name.startswith("publish")}


@pytest.mark.parametrize("label", ["own: x # y", "on", "[a]", "'"])
def test_a_label_is_a_text_whatever_it_holds(label: str) -> None:
    assert {job["runs-on"] for job in runs("github", x86_64=label, aarch64=label).values()} == {
        label
    }
    tags = [job["tags"] for job in runs("gitlab", x86_64=label, aarch64=label).values()]
    assert tags == [[label]] * len(tags)


def test_no_runner_to_emulate_on_is_refused() -> None:
    with pytest.raises(BadInput, match="no runner for x86_64") as refused:
        pipeline_of(planned().images, {**RUNNERS["github"], "x86_64": "none"}, command="")
    assert refused.value.hint == "--native-runner x86_64=LABEL"


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_architectures_of_an_image_are_published_together(system: str) -> None:
    by_name = jobs(system, planned())
    (publish,) = (each for name, each in by_name.items() if name.startswith("publish "))
    assert len(publish["needs"]) == 3
    known = set(document(system, planned()).get("jobs", by_name))
    assert set(publish["needs"]) <= known
    (command,) = (each for each in commands(publish) if " publish " in each)
    for image in planned().images:
        assert f"--image {image.identifier}" in command
        assert f"--arch {image.cell.arch}" in command
    words = shlex.split(command.partition(" publish ")[2].partition(" --to ")[0])
    options = parse(words)
    assert isinstance(options, build.BuildOptions)
    selected = make_plan(shipped_project(), options.selection, compiler=COMPILER)
    assert {each.identifier for each in selected.images} == {
        each.identifier for each in planned().images
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_whole_matrix_has_one_job_for_each_image(system: str) -> None:
    plan = Plan(images=shipped_images(), left_out=())
    by_name = jobs(system, plan)
    groups = {each.identifier.removesuffix(each.cell.arch) for each in plan.images}
    assert len(by_name) == len(plan.images) + len(groups)
    assert text_of(system, plan) == text_of(system, plan)


def test_secrets_are_in_the_environment_of_the_publishing_step_alone() -> None:
    text = (ROOT / "ci/github.yml").read_text()
    for job in jobs("github", planned()).values():
        for step in job["steps"]:
            held = "secrets." in str(step)
            assert held == (step.get("name") == "Publish")
            assert "secrets." not in step.get("run", "")
            assert "${{" not in step.get("run", ""), "text of others must not become a script"
    assert "password" not in text.lower().replace("_password", "")


def test_actions_are_named_by_commit() -> None:
    uses = re.findall(r"uses: (\S+)(.*)", (ROOT / "ci/github.yml").read_text())
    assert uses
    for action, version in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", version)


@pytest.mark.parametrize("runner", ["ppc64le", "=x", "ppc64le=", "vax=old"])
def test_what_is_no_runner_is_refused(runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(["ci", "github", PROJECT, "--native-runner", runner])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert "--native-runner" in capsys.readouterr().err


# ci/retry


def retried(tmp_path: Path, *outputs: tuple[int, str]) -> tuple[int, int]:
    """The exit code of ci/retry, and how often it ran a command that says and ends so in turn."""
    script = tmp_path / "command"
    cases = [
        f"{n}) echo {shlex.quote(text)} >&2; exit {code};;"
        for n, (code, text) in enumerate(outputs)
    ]
    script.write_text(
        f"#!/bin/bash\nn=$(cat {tmp_path}/n 2>/dev/null || echo 0)\n"
        f"echo $((n + 1)) >{tmp_path}/n\ncase $n in\n" + "\n".join(cases) + "\nesac\n"
    )
    script.chmod(0o755)
    done = subprocess.run(
        [ROOT / "ci/retry", script],
        env={"PATH": "/usr/bin:/bin", "RETRY_WAIT": "0 0"},
        capture_output=True,
        check=False,
    )
    return done.returncode, int((tmp_path / "n").read_text())


@pytest.mark.parametrize(
    "text",
    [
        "E: Failed to fetch http://example.org/x  503  Service Unavailable",
        "Err:1 Temporary failure resolving 'example.org'",
        "Read timed out. (read timeout=60)",
        "429 Too Many Requests",
        "E: Hash Sum mismatch",
    ],
)
def test_what_passes_by_itself_is_tried_again(tmp_path: Path, text: str) -> None:
    text = re.sub(" +", " ", text)
    assert retried(tmp_path, (1, text), (4, text), (0, "done")) == (0, 3)


def test_it_is_given_up_after_three_times(tmp_path: Path) -> None:
    text = "Connection timed out"
    assert retried(tmp_path, (1, text), (1, text), (1, text), (0, "")) == (1, 3)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "check mpi failed: rank 0 of 1"),
        (1, "404 Not Found"),
        (1, "401 Unauthorized"),
        (2, "Connection timed out"),
        (3, "Connection timed out"),
        (5, "503 Service Unavailable"),
        (0, "503 Service Unavailable"),
        (130, "Connection reset by peer"),
    ],
)
def test_what_does_not_pass_is_told_at_once(tmp_path: Path, code: int, text: str) -> None:
    assert retried(tmp_path, (code, text), (0, "")) == (code, 1)
