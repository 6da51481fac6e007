"""Manifest, evidence and artifacts contradict each other: main job, report and publish see it."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from made_releases import images_of, make_images, make_project
from manifest_samples import write_report
from samples import compare_with_golden

from builder.artifacts.manifests import ImageGoal, judged_manifests, read_statements
from builder.distribute.publish.releases import ready
from builder.model import PlannedImage
from builder.model.agreement import CHECK, as_judged, checked_outcomes, faults_of, run_faults
from builder.model.manifest import Outcome, manifest_from
from builder.model.planned import environment_text
from builder.model.predicates import result_of
from builder.reports.report import BuildRun, report_of_run
from builder.verify.finished_images import proven_state

Json = dict[str, Any]
NAME = "evidence/sif.json"


@pytest.fixture(scope="module", name="made")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = make_project(tmp_path_factory.mktemp("made") / "project", recipes=["tools"])
    make_images(project, size=2000)
    return project


@pytest.fixture(name="project")
def own_project(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "project"))


def image_of(project: Path, arch: str) -> PlannedImage:
    return next(one for one in images_of(project) if one.cell.arch == arch)


@dataclass
class Forged:
    """A manifest and its evidence by file, to be changed."""

    manifest: Json
    statements: dict[str, Any]


def loaded(folder: Path) -> tuple[Json, dict[str, Any]]:
    manifest = json.loads((folder / "manifest.json").read_text())
    return manifest, dict(read_statements(folder, manifest_from(manifest)))


def predicate(forged: Forged) -> Json:
    found: Json = forged.statements[NAME]["predicate"]
    return found


def run_of(forged: Forged) -> Json:
    found: Json = predicate(forged)["configuration"][0]["annotations"]
    return found


def detail(forged: Forged) -> Json:
    found: Json = predicate(forged)["configuration"][-1]["annotations"]
    return found


def empty(forged: Forged) -> None:
    forged.manifest |= {"checks": {}, "evidence": [], "in_image_checks": [], "emulated": False}
    forged.statements.clear()


def drop_check(forged: Forged) -> None:
    """From every place, so that nothing but the required checks tells."""
    for outcomes in forged.manifest["checks"].values():
        outcomes[:] = [one for one in outcomes if one["check"] != "environment"]
    for one in forged.statements.values():
        said = one["predicate"]
        said["passedTests"].remove("environment")
        said["configuration"] = [c for c in said["configuration"] if c["name"] != "environment"]


def times(year: str) -> dict[str, str]:
    return {"started": f"{year}-01-01T00:00:00+00:00", "finished": f"{year}-01-01T00:00:01+00:00"}


FORGED: dict[str, tuple[Callable[[Forged], object], str]] = {
    "failed inside": (
        lambda f: detail(f).update(outcome="failed"),
        "architecture is passed in its lists, but failed in its details",
    ),
    "failed on the list alone": (
        lambda f: predicate(f)["failedTests"].append("architecture"),
        "its result is PASSED, but its worst outcome is failed",
    ),
    "a failed outcome in the manifest": (
        lambda f: f.manifest["checks"]["sif"][0].update(outcome="failed"),
        "marked as verified, but formats-equal failed in sif",
    ),
    "other outcomes": (
        lambda f: f.manifest["checks"]["sif"][0].update(outcome="skipped"),
        f"{NAME}: the manifest has different outcomes for formats-equal",
    ),
    "formats that are not equal": (
        lambda f: f.manifest.update(formats_equal=False),
        "its formats are not equal",
    ),
    "of 2001": (lambda f: run_of(f).update(times("2001")), "impossible times: it ran from 2001"),
    "of 2099": (lambda f: run_of(f).update(times("2099")), "impossible times: it ran from 2099"),
    "before the build": (
        lambda f: run_of(f).update(times("2024")),
        "before the image was built",
    ),
    "the end first": (
        lambda f: run_of(f).update(finished="2025-12-31T23:59:59+00:00"),
        "before it began",
    ),
    "another tree": (
        lambda f: f.manifest["artifacts"]["sif"].update(tree_digest="sha256:" + "0" * 64),
        "its formats have 2 different tree digests",
    ),
    "another digest": (
        lambda f: f.manifest["artifacts"]["sif"].update(digest="sha256:" + "0" * 64),
        f"expected sha256:{'0' * 64}",
    ),
    "no subjects": (
        lambda f: f.statements[NAME].update(subject=[]),
        f"{NAME}: its subject sif is missing, expected sha256:",
    ),
    "no subject of a tree": (
        lambda f: f.statements[NAME]["subject"].pop(),
        f"{NAME}: its tree of sif is missing, expected sha256:",
    ),
    "a check dropped": (drop_check, "missing outcomes: environment"),
    "the checks emptied": (lambda f: f.manifest["checks"].clear(), "different outcomes for"),
    "a declared check that was not run": (
        lambda f: f.manifest["in_image_checks"].append(
            {"name": "ucx", "script": "/ucx", "needs": [], "timeout_s": 1}
        ),
        "missing outcomes: ucx",
    ),
    "an MPI without its check": (
        lambda f: f.manifest["cell"].update(mpi="openmpi5.0"),
        "missing outcomes: mpi",
    ),
    "everything emptied": (empty, "marked as verified, but its checks did not run as oci"),
    "no evidence": (lambda f: f.statements.pop(NAME), "sif: evidence of this run is missing"),
    "evidence that is none": (
        lambda f: f.statements.update({NAME: None}),
        "missing, or cannot be read",
    ),
    "emulated told as native": (
        lambda f: run_of(f).update(emulated=not run_of(f)["emulated"]),
        "is marked as",
    ),
    "another list of emulated runs": (
        lambda f: f.manifest.update(emulated_runs=[] if f.manifest["emulated"] else ["sif"]),
        "emulated runs according to the evidence",
    ),
    "newer package indices": (
        lambda f: run_of(f).update(indices=[{"suite": "trixie", "date": "2026-01-01"}]),
        "its package index states differ from those in the manifest",
    ),
    "ranks of one number": (
        lambda f: detail(f).update(data={"ranks": 2, "rank_numbers": [0, 0]}),
        "architecture passed, but its ranks are numbered [0, 0]",
    ),
    "of the first day": (lambda f: run_of(f).update(times("2023")), "before the image was built"),
    "two days before the build": (
        lambda f: f.manifest.update(started="2026-01-02T12:00:00+00:00"),
        "before the image was built",
    ),
    "in no list": (
        lambda f: predicate(f)["passedTests"].remove("architecture"),
        "architecture is missing in its lists, but passed in its details",
    ),
    "in no detail": (
        lambda f: predicate(f)["configuration"].pop(),
        "architecture is passed in its lists, but missing in its details",
    ),
    "no check at all": (
        lambda f: predicate(f).update(
            passedTests=[], configuration=predicate(f)["configuration"][:1]
        ),
        "missing outcomes: ",
    ),
    "at one moment": (lambda f: run_of(f).update(finished=run_of(f)["started"]), ""),
    "no package indices": (lambda f: run_of(f).pop("indices", None), ""),
    "another architecture was seen": (
        lambda f: detail(f).update(data={"uname": "s390x"}),
        "architecture saw s390x",
    ),
}


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
@pytest.mark.parametrize("case", FORGED)
def test_what_contradicts_the_details_is_named(case: str, arch: str, made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, arch).identifier)
    assert faults_of(manifest_from(manifest), statements) == []
    forge, reason = FORGED[case]
    forged = Forged(copy.deepcopy(manifest), copy.deepcopy(statements))
    forge(forged)
    assert reason in "; ".join(faults_of(manifest_from(forged.manifest), forged.statements))


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
def test_all_that_is_told_of_forgeries(arch: str, made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, arch).identifier)
    lines = []
    for case, (forge, _) in FORGED.items():
        forged = Forged(copy.deepcopy(manifest), copy.deepcopy(statements))
        forge(forged)
        lines += [f"# {case}", *faults_of(manifest_from(forged.manifest), forged.statements)]
    text = re.sub(r"sha256:[0-9a-f]{64}", "DIGEST", "\n".join([*lines, ""]))
    text = re.sub(r"\b20\d\d-\d\d-\d\dT[\d:.+]+", "TIME", text)
    compare_with_golden(text, f"forged-{arch}.txt")
    result = result_of(statements[NAME])  # also where the image's architecture is not known
    assert run_faults(result) == run_faults(result, arch=arch) == []


def test_ranks_that_were_not_started_were_not_emulated(made: Path) -> None:
    forged = Forged(*loaded(made / "out" / image_of(made, "ppc64le").identifier))
    name, annotations = "mpi-hybrid-srun", {"outcome": "skipped"}
    ranks = copy.deepcopy(forged.statements[NAME])
    [run, *_] = ranks["predicate"]["configuration"]
    ranks["predicate"].update(
        {"passedTests": [], "warnedTests": [name], "result": "WARNED"},
        configuration=[run, {"name": name, "annotations": annotations}],
    )
    forged.statements[f"evidence/sif-{name}.json"] = ranks
    forged.manifest["emulated_runs"] = ["charliecloud", "oci", "sif"]
    outcome = {"check": name, "outcome": "skipped", "reason": "", "duration_s": 0.0}
    forged.manifest["launched"] = {"sif": [{**outcome, "data": {}, "output": ""}]}
    assert faults_of(manifest_from(forged.manifest), forged.statements) == []


def edit(file: Path, change: Callable[[Json], object]) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def test_all_that_believes_a_manifest_asks_its_evidence(project: Path) -> None:
    image, out = image_of(project, "x86_64"), project / "out"
    folder = out / image.identifier
    edit(
        folder / NAME,
        lambda one: one["predicate"]["configuration"][-1]["annotations"].update(outcome="failed"),
    )
    assert proven_state(out, image, ImageGoal(), {}).work == "verify"
    manifest, _ = loaded(folder)
    assert "failed in its details" in "; ".join(ready(image, folder, manifest_from(manifest))[1])
    write_report(
        out, report_of_run(judged_manifests(out), images_plan(project), {}, {}, BuildRun())
    )
    told = json.loads((out / "report.json").read_text())
    [found] = [one for one in told["images"] if one["image"] == image.identifier]
    assert found["outcome"] == "failed"
    assert found["checks"]["sif"][-1]["check"] == CHECK


def test_no_path_of_a_manifest_leads_out_of_its_folder(project: Path) -> None:
    image, out = image_of(project, "x86_64"), project / "out"
    folder = out / image.identifier
    (folder / "image.sif").rename(out / "image.sif")
    edit(folder / "manifest.json", lambda one: one["artifacts"]["sif"].update(path="../image.sif"))
    manifest, _ = loaded(folder)
    *_, reason = ready(image, folder, manifest_from(manifest))[1]
    assert reason.startswith("it is incomplete: ")
    assert "image.sif" in reason


def images_plan(project: Path) -> Any:
    from builder.load.project import load_project  # noqa: PLC0415
    from builder.model import Selection  # noqa: PLC0415
    from builder.plan import make_plan  # noqa: PLC0415

    return make_plan(load_project(project), Selection(everything=True), compiler="hpccm 1")


@pytest.mark.parametrize("file", ["image.sif", "image.tar.gz", "sbom.cdx.json", "a layer"])
def test_one_flipped_bit_is_not_unchanged(file: str, project: Path) -> None:
    image, out = image_of(project, "x86_64"), project / "out"
    folder = out / image.identifier
    path = folder / file
    if file == "a layer":
        path = max(
            (folder / "image.oci/blobs/sha256").iterdir(), key=lambda one: one.stat().st_size
        )
    edit(folder / "manifest.json", lambda one: one["inputs"].update(native_tools=""))
    assert proven_state(out, image, ImageGoal(), {}).work == "none"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    state = proven_state(out, image, ImageGoal(), {})
    assert (state.work, state.text.endswith("changed after the build")) == ("build", True)


def test_evidence_of_other_bytes_is_not_unchanged(project: Path) -> None:
    image, out = image_of(project, "x86_64"), project / "out"
    folder = out / image.identifier
    edit(folder / "manifest.json", lambda one: one["inputs"].update(native_tools=""))
    (folder / NAME).write_bytes((folder / NAME).read_bytes() + b"\n")
    state = proven_state(out, image, ImageGoal(), {})
    assert state.work == "verify"
    assert state.text.endswith(f"{NAME}: its digest differs from manifest.json")
    edit(folder / "manifest.json", lambda one: one.update(outcome="failed"))
    state = proven_state(out, image, ImageGoal(), {})  # what the manifest says comes first
    assert (state.work, state.text) == ("verify", "to verify: failed")


def test_a_project_demands_its_own_checks(made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    found = faults_of(manifest_from(manifest), statements, required=["mpi"])
    assert {fault.partition(": ")[2] for fault in found} == {"missing outcomes: mpi"}


MORE = {"checks/20-a": "6" * 64, "checks/30-b": "7" * 64}
HARNESS = {"run-checks": "1" * 64, "checks/10-mpi": "2" * 64, **MORE}


@pytest.mark.parametrize(
    ("noted", "fault"),
    [
        (HARNESS | {"bin/mpi": "3" * 64}, ""),
        (HARNESS | {"checks/10-mpi": "4" * 64}, "differ from the builder's: checks/10-mpi"),
        ({"run-checks": "1" * 64, **MORE}, "differ from the builder's: checks/10-mpi"),
        ({"x": "1"}, "builder's: checks/10-mpi, checks/20-a, checks/30-b; evidence/"),
        (None, "it does not say which scripts ran the checks"),
    ],
)
def test_it_has_to_be_the_builders_scripts_that_ran(
    noted: Json | None, fault: str, made: Path
) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    for statement in statements.values():
        assert statement is not None
        for check in statement["predicate"]["configuration"][1:]:
            check["annotations"]["data"] = {"harness": noted} if noted else {}
    found = faults_of(manifest_from(manifest), statements, harness=HARNESS)
    assert fault in "; ".join(found)
    assert bool(found) is bool(fault)
    manifest["inputs"]["programs"] = {"files/bin/mpi": f"sha256:{'5' * 64}"}
    assert (
        "builder's: bin/mpi" in "; ".join(faults_of(manifest_from(manifest), statements))
        or not noted
    )


def test_proven_on_a_gpu_is_not_believed(made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    manifest["in_image_checks"] = [
        {"name": "architecture", "script": "/s", "needs": ["gpu"], "timeout_s": 1}
    ]
    manifest["proven_on_gpu"] = True
    assert faults_of(manifest_from(manifest), statements) == []
    manifest["in_image_checks"][0]["name"] = "gpu-found"
    found = "; ".join(faults_of(manifest_from(manifest), statements))
    assert "marked as proven on a GPU, but gpu-found did not pass" in found


def test_a_measurement_has_no_outcomes_in_the_manifest(made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    statements["evidence/sif-bench.json"] = copy.deepcopy(statements[NAME])
    assert faults_of(manifest_from(manifest), statements) == []
    statements["evidence/sif-bench.json"]["subject"][0]["digest"]["sha256"] = "0" * 64
    [fault] = faults_of(manifest_from(manifest), statements)
    assert "its subject" in fault
    del statements["evidence/sif-bench.json"]
    statements["evidence/sif-other.json"] = copy.deepcopy(statements[NAME])
    assert (
        "evidence/sif-other.json: the manifest has different"
        in faults_of(manifest_from(manifest), statements)[0]
    )


def test_without_faults_a_manifest_is_as_it_was(made: Path) -> None:
    manifest, _ = loaded(made / "out" / image_of(made, "x86_64").identifier)
    found = manifest_from(manifest)
    assert as_judged(found, []) == found
    judged = as_judged(as_judged(found, ["c"]), ["a", "b"])
    failure = Outcome(check=CHECK, outcome="failed", reason="a; b")
    assert judged.checks == {run: (*own, failure) for run, own in found.checks.items()}


@pytest.mark.parametrize(
    ("word", "result", "listed"),
    [("failed", "FAILED", "failedTests"), ("skipped", "WARNED", "warnedTests")],
)
def test_what_says_the_same_everywhere_is_believed(
    word: str, result: str, listed: str, made: Path
) -> None:
    forged = Forged(*loaded(made / "out" / image_of(made, "x86_64").identifier))
    predicate(forged)["passedTests"].remove("architecture")
    predicate(forged)[listed].append("architecture")
    predicate(forged)["result"] = result
    detail(forged).update(outcome=word)
    forged.manifest["outcome"] = "failed"
    for outcome in forged.manifest["checks"]["sif"]:
        outcome.update({"outcome": word} if outcome["check"] == "architecture" else {})
    assert faults_of(manifest_from(forged.manifest), forged.statements) == []


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
@pytest.mark.parametrize("lists_runs", [True, False])
def test_the_outcomes_of_one_run_are_judged_by_its_own_evidence(
    arch: str, lists_runs: bool, made: Path
) -> None:
    """A forged statement of one run says nothing against another; earlier manifests list none."""
    manifest, statements = loaded(made / "out" / image_of(made, arch).identifier)
    if not lists_runs:
        manifest.pop("emulated_runs", None)
    forged = Forged(copy.deepcopy(manifest), copy.deepcopy(statements))
    predicate(forged)["failedTests"].append("architecture")
    for run in ("oci", "sif", "charliecloud"):
        judged = checked_outcomes(manifest_from(manifest), run, statements)
        assert judged == manifest_from(manifest).checks[run]
        believed = checked_outcomes(manifest_from(forged.manifest), run, forged.statements)
        assert (believed[-1].check == CHECK) is (run == "sif")
    forged.statements[NAME] = {**statements[NAME], "predicateType": "other"}
    [*_, fault] = checked_outcomes(manifest_from(manifest), "sif", forged.statements)
    assert fault.reason == f"{NAME}: not a test result"


def test_a_second_engine_s_run_is_of_the_same_format(made: Path) -> None:
    """`oci-podman` is a run of the OCI artifact, with subjects of that alone."""
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    manifest["checks"]["oci-podman"] = manifest["checks"]["oci"]
    evidence = {"evidence/oci-podman.json": statements["evidence/oci.json"]}
    judged = checked_outcomes(manifest_from(manifest), "oci-podman", evidence)
    assert judged == manifest_from(manifest).checks["oci"]
    del manifest["artifacts"]["oci"]["tree_digest"]
    manifest["artifacts"]["oci"]["digest"] = "sha256:" + "0" * 64
    [*_, fault] = checked_outcomes(manifest_from(manifest), "oci-podman", evidence)
    assert "expected sha256:000" in fault.reason


def test_a_gpu_check_that_does_not_apply_leaves_the_image_proven(made: Path) -> None:
    manifest, statements = loaded(made / "out" / image_of(made, "x86_64").identifier)
    manifest["in_image_checks"] = [
        {"name": "gpu-peers", "script": "/s", "needs": ["gpu"], "timeout_s": 1}
    ]
    manifest["proven_on_gpu"] = True
    skipped = {"check": "gpu-peers", "outcome": "skipped", "reason": "one GPU"}
    for outcomes in manifest["checks"].values():
        outcomes.append({**skipped, "data": {"applies": False}})
    text = "did not pass"
    assert text not in "; ".join(faults_of(manifest_from(manifest), statements))
    for outcomes in manifest["checks"].values():
        outcomes[-1] = skipped
    assert text in "; ".join(faults_of(manifest_from(manifest), statements))


@pytest.mark.parametrize(
    ("value", "line"), [("plain", "plain"), ("'quoted'", "''quoted''"), ("'", "'"), ("'a", "'a")]
)
def test_single_quotes_around_a_variable_are_doubled_for_ch_run(value: str, line: str) -> None:
    assert environment_text({"NAME": value}) == f"NAME={line}\n"
