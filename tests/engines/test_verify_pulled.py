"""What a site pulled is verified there, without the folder that it was built in."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from harness import build_images, manifest_of, need, passed, sample
from junitparser import JUnitXml
from publishing import SIGNING, Pair, pull
from real_registry import real_registry

from builder.build.engines import Tools
from builder.cli.schema import schema_of

pytestmark = pytest.mark.engines

IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
POLICY = {"schema": "build-images/policy/v1"}
ALONE = ("charliecloud", "directory")  # no other program is needed for these
FORMATS = ("oci", "sif", "charliecloud", "directory")


@pytest.fixture(scope="module", name="pulled")
def pulled_images(hpc_base: dict[str, Path], out: Path, tools: Tools, pair: Pair) -> Iterator[Path]:
    """A folder with an image in each format, as `pull` leaves them."""
    need("docker-registry", "skopeo")
    selected = (f"--image={hpc_base['x86_64'].name}", "--arch=x86_64", "--output", out)
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="pulled-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        policy = folder / "policy.yaml"
        policy.write_text(json.dumps({**POLICY, "keys": [str(pair.public)]}))
        with real_registry(folder / "registry") as registry:
            to = ("--to", f"{registry.host}/site", "--key", pair.private, "-q")
            passed(build_images("publish", *selected, *to, env=SIGNING))
            reference = f"{registry.host}/site/hpc-base:1.0-debian13-openmpi5.0"
            for form in FORMATS:
                nothing = {"PATH": "/nonexistent"} if form in ALONE else {}
                passed(pull(reference, policy, form, folder / form, "--arch=x86_64", env=nothing))
        yield folder


@pytest.mark.campaign
@pytest.mark.parametrize("form", sample(["charliecloud", "oci", "sif"], 2))
def test_its_checks_pass_and_evidence_is_about_the_same_digests(
    form: str, pulled: Path, hpc_base: dict[str, Path]
) -> None:
    folder = pulled / form
    done = passed(build_images("verify", folder, "--json"))
    found, built = json.loads(done.stdout), manifest_of(hpc_base["x86_64"])
    assert (found["image"], found["outcome"], found["emulated"]) == (IMAGE, "verified", False)
    outcomes = {one["check"]: one["outcome"] for one in found["checks"][form]}
    assert outcomes.pop("formats-equal") == "skipped"
    assert outcomes.pop("harness") == "skipped", "who pulled it has no builder's scripts"
    checks = {one["name"] for one in built["in_image_checks"]}
    assert outcomes == dict.fromkeys({"environment", *checks}, "passed")
    statement = json.loads((folder / f"evidence/{form}.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    digests = {one["digest"]["sha256"] for one in statement["subject"]}
    assert built["artifacts"][form]["digest"].partition(":")[2] in digests
    assert found["tree_digest"] == built["tree_digest"]
    [suite] = list(JUnitXml.fromfile(str(folder / f"evidence/{form}.xml")))
    assert (suite.tests, suite.failures, suite.skipped) == (len(checks) + 3, 0, 2)


def test_other_programs_run_what_was_pulled(pulled: Path, tools: Tools) -> None:
    check = ["/opt/build-images/run-checks", "architecture"]
    apptainer = [tools.program("apptainer"), "exec", str(pulled / "sif/image.sif")]
    charliecloud = [tools.program("ch-run"), "--set-env", str(pulled / "directory/rootfs"), "--"]
    for words in (apptainer, charliecloud):
        done = tools.processes.capture([*words, *check], user=tools.ordinary_user, cwd=pulled)
        assert "architecture: passed - all " in done.stdout
    layout = f"oci:{pulled}/oci/image.oci"
    words = [tools.program("skopeo"), "inspect", "--format", "{{.Digest}}", layout]
    digest = json.loads((pulled / "oci/receipt.json").read_text())["digest"]
    assert tools.processes.capture(words).stdout.strip() == digest


def test_what_it_is_not_for_is_told(pulled: Path, tmp_path: Path) -> None:
    for words, said in (
        (["directory"], "pulled as a directory cannot be verified"),
        (["sif", "--bench"], "--bench: "),
        (["sif", "--launcher", "mpirun"], "name the folder in which it was built"),
        (["sif", "--runner", "charliecloud"], "it runs the charliecloud artifact"),
    ):
        done = build_images("verify", pulled / words[0], *words[1:])
        assert done.status == 2
        assert said in done.stderr
    assert build_images("verify", tmp_path).status == 2


def test_what_was_changed_since_is_not_run(pulled: Path) -> None:
    with (pulled / "sif/image.sif").open("ab") as file:
        file.write(b"\0")
    done = build_images("verify", pulled / "sif")
    assert done.status == 2
    assert "receipt.json says sha256:" in done.stderr
