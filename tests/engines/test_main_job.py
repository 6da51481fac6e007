"""The main job for real: built, packed three ways, and proven on both architectures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from harness import ARCHITECTURES, FORMATS, Ended, build_images, manifest_of, passed, run_program
from junitparser import JUnitXml

from builder.build.engines import Tools
from builder.build.engines.apptainer import environment as apptainer_environment
from builder.cli.schema import schema_of

pytestmark = pytest.mark.engines
CHECKS = (
    *("formats-equal", "environment", "architecture", "mpi", "libraries"),
    *("python3", "verbs", "host-contract"),
)


def outcomes(manifest: dict[str, Any], artifact_format: str) -> dict[str, str]:
    return {one["check"]: one["outcome"] for one in manifest["checks"][artifact_format]}


def evidence(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"evidence/{name}.json").read_text())
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
class TestDefaultSelection:
    def test_is_verified_in_three_equal_formats(self, hpc_base: dict[str, Path], arch: str) -> None:
        manifest = manifest_of(hpc_base[arch])
        assert manifest["outcome"] == "verified"
        assert manifest["formats_equal"] is True
        digests = {one["tree_digest"] for one in manifest["artifacts"].values()}
        assert digests == {manifest["tree_digest"]}
        assert set(manifest["artifacts"]) == set(FORMATS)
        for name in FORMATS:
            assert outcomes(manifest, name) == dict.fromkeys(CHECKS, "passed")

    def test_emulated_is_said(self, hpc_base: dict[str, Path], arch: str) -> None:
        emulated = arch != os.uname().machine
        assert manifest_of(hpc_base[arch])["emulated"] is emulated
        predicate = evidence(hpc_base[arch], "sif")["predicate"]
        run = predicate["configuration"][0]["annotations"]
        assert run["emulated"] is emulated
        assert run["emulator"].startswith("qemu ") is emulated
        assert predicate["result"] == "PASSED"

    def test_evidence_is_bound_to_every_artifact(
        self, hpc_base: dict[str, Path], arch: str
    ) -> None:
        manifest = manifest_of(hpc_base[arch])
        expected = {one["digest"].partition(":")[2] for one in manifest["artifacts"].values()}
        for name in FORMATS:
            statement = evidence(hpc_base[arch], name)
            found = {subject["digest"]["sha256"] for subject in statement["subject"]}
            assert found == {*expected, manifest["tree_digest"].partition(":")[2]}

    def test_evidence_is_valid_and_names_the_scripts_that_were_run(
        self, hpc_base: dict[str, Path], arch: str
    ) -> None:
        scripts = {
            f"sha256:{one['digest']['sha256']}"
            for name in FORMATS
            for one in evidence(hpc_base[arch], name)["predicate"]["configuration"]
            if "digest" in one
        }
        specs = manifest_of(hpc_base[arch])["inputs"]["specs"]
        assert scripts == {text for file, text in specs.items() if file.startswith("files/checks/")}
        checks = len(manifest_of(hpc_base[arch])["in_image_checks"]) + len(("trees", "environment"))
        for name in FORMATS:
            jsonschema.validate(evidence(hpc_base[arch], name), schema_of("evidence"))
            [suite] = list(JUnitXml.fromfile(str(hpc_base[arch] / f"evidence/{name}.xml")))
            assert (suite.tests, suite.failures, suite.skipped) == (checks, 0, 0)

    def test_the_output_folder_is_the_designs(self, hpc_base: dict[str, Path], arch: str) -> None:
        names = {path.name for path in hpc_base[arch].iterdir()}
        assert names >= {
            *("Dockerfile", "Singularity.def", "image.oci", "image.sif", "image.tar.gz"),
            *("manifest.json", "sbom.cdx.json", "evidence", "build.log"),
        }
        components = json.loads((hpc_base[arch] / "sbom.cdx.json").read_text())["components"]
        assert {"openmpi-bin", "python3", "libucx0"} <= {one["name"] for one in components}

    def test_an_independent_client_sees_the_architecture(
        self, hpc_base: dict[str, Path], arch: str, tools: Tools
    ) -> None:
        layout = f"oci:{hpc_base[arch]}/image.oci:latest"
        done = passed(run_program(tools.program("skopeo"), "inspect", layout))
        architecture = json.loads(done.stdout)["Architecture"]
        assert architecture == {"x86_64": "amd64", "ppc64le": "ppc64le"}[arch]


@pytest.mark.parametrize(
    "arch",
    [
        "x86_64",
        pytest.param(
            "ppc64le",
            marks=pytest.mark.long(reason="runs under emulation what the main job's checks ran"),
        ),
    ],
)
def test_apptainer_test_runs_the_checks(
    hpc_base: dict[str, Path], arch: str, tools: Tools, shared_folder: Path
) -> None:
    sif = shared_folder / "image.sif"
    os.link(hpc_base[arch] / "image.sif", sif)
    done = tools.processes.capture(
        [tools.program("apptainer"), "test", "--cleanenv", "--no-home", str(sif)],
        env={**tools.environment, **apptainer_environment(shared_folder)},
        user=tools.ordinary_user,
        cwd=shared_folder,
        timeout_s=300,
    )
    assert "architecture: passed" in done.stdout
    assert "mpi: passed" in done.stdout


def test_the_report_holds_both_images(hpc_base: dict[str, Path], out: Path) -> None:
    html = (out / "report.html").read_text()
    report = json.loads((out / "report.json").read_text())
    for folder in hpc_base.values():
        assert folder.name in html
        assert folder.name in json.dumps(report)
        jsonschema.validate(manifest_of(folder), schema_of("manifest"))
    jsonschema.validate(report, schema_of("report"))
    plan = passed(build_images("plan", "--json")).stdout
    jsonschema.validate(json.loads(plan), schema_of("plan"))


def test_the_closing_table_is_on_standard_output(main_job: Ended, out: Path) -> None:
    assert main_job.stdout.count("three formats equal") == 2
    assert "report: " in main_job.stdout
    assert "report.html" in main_job.stdout
    assert (out / "report.html").exists()


def test_what_is_done_and_unchanged_is_not_built_again(
    hpc_base: dict[str, Path], out: Path
) -> None:
    before = {arch: (folder / "manifest.json").stat() for arch, folder in hpc_base.items()}
    done = passed(build_images("--output", out))
    assert done.stderr.count("unchanged") == 2
    for arch, folder in hpc_base.items():
        assert (folder / "manifest.json").stat().st_mtime_ns == before[arch].st_mtime_ns


@pytest.mark.long(reason="builds NumPy's image for both architectures, minutes")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_child_recipe_inherits_checks_and_adds_its_own(
    python_mpi: dict[str, Path], arch: str
) -> None:
    found = outcomes(manifest_of(python_mpi[arch]), "oci")
    assert found["mpi4py"] == found["mpi"] == found["architecture"] == "passed"
