"""What a site pulled is verified there, without the folder that it was built in."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from harness import LONG, PROJECT, build_images, manifest_of, need, passed
from junitparser import JUnitXml
from publishing import SIGNING, Pair, pull
from real_registry import real_registry

from builder.build.engines import Tools
from builder.cli.schema import schema_of

pytestmark = pytest.mark.engines

CHECK, FINDING = ("architecture", "all ") if LONG else ("numbers", "the numbers are there")
POLICY = {"schema": "build-images/policy/v1"}
ALONE = ("charliecloud", "directory")  # no other program is needed for these
FORMATS = ("oci", "sif", "charliecloud", "directory")


@pytest.fixture(scope="module", name="built")
def built_image(request: pytest.FixtureRequest) -> Path:
    """The folder of a small image; in `make test-long` that of `hpc-base`, which checks its MPI."""
    if not LONG:
        return Path(request.getfixturevalue("lean"))
    return Path(request.getfixturevalue("hpc_base")["x86_64"])


@pytest.fixture(scope="module", name="pulled")
def pulled_images(built: Path, tools: Tools, pair: Pair) -> Iterator[Path]:
    """A folder with an image in each format, as `pull` leaves them."""
    need("docker-registry", "skopeo")
    project = PROJECT if LONG else built.parents[1]
    selected = ("--project", project, f"--image={built.name}", "--output", built.parent)
    name, tag = re.split(r"-(?=\d)", built.name.removesuffix("-x86_64"), maxsplit=1)
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="pulled-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        policy = folder / "policy.yaml"
        policy.write_text(json.dumps({**POLICY, "keys": [str(pair.public)]}))
        with real_registry(folder / "registry") as registry:
            to = ("--to", f"{registry.host}/site", "--key", pair.private, "-q")
            passed(build_images("publish", *selected, *to, env=SIGNING))
            reference = f"{registry.host}/site/{name}:{tag}"
            for form in FORMATS:
                nothing = {"PATH": "/nonexistent"} if form in ALONE else {}
                passed(pull(reference, policy, form, folder / form, "--arch=x86_64", env=nothing))
        yield folder


@pytest.mark.campaign
@pytest.mark.parametrize("form", ["charliecloud", "oci", "sif"])
def test_its_checks_pass_and_evidence_is_about_the_same_digests(
    form: str, pulled: Path, built: Path
) -> None:
    folder = pulled / form
    done = passed(build_images("verify", folder, "--json"))
    found, manifest = json.loads(done.stdout), manifest_of(built)
    assert (found["image"], found["outcome"], found["emulated"]) == (built.name, "verified", False)
    outcomes = {one["check"]: one["outcome"] for one in found["checks"][form]}
    assert outcomes.pop("formats-equal") == "skipped"
    assert outcomes.pop("harness") == "skipped", "who pulled it has no builder's scripts"
    checks = {one["name"] for one in manifest["in_image_checks"]}
    assert outcomes == dict.fromkeys({"environment", *checks}, "passed")
    statement = json.loads((folder / f"evidence/{form}.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    digests = {one["digest"]["sha256"] for one in statement["subject"]}
    assert manifest["artifacts"][form]["digest"].partition(":")[2] in digests
    assert found["tree_digest"] == manifest["tree_digest"]
    [suite] = list(JUnitXml.fromfile(str(folder / f"evidence/{form}.xml")))
    assert (suite.tests, suite.failures, suite.skipped) == (len(checks) + 3, 0, 2)


def test_other_programs_run_what_was_pulled(pulled: Path, tools: Tools) -> None:
    check = ["/opt/build-images/run-checks", CHECK]
    apptainer = [tools.program("apptainer"), "exec", str(pulled / "sif/image.sif")]
    charliecloud = [tools.program("ch-run"), "--set-env", str(pulled / "directory/rootfs"), "--"]
    for words in (apptainer, charliecloud):
        done = tools.processes.capture([*words, *check], user=tools.ordinary_user, cwd=pulled)
        assert f"{CHECK}: passed - {FINDING}" in done.stdout
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
