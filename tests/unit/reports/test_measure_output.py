"""What a measurement is shown as: text, JSON, Prometheus' format, and the plot in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from html_pages import Page
from manifest_samples import record as manifest_record
from manifest_samples import write_report
from measure_samples import PROGRAM_RUN, measured, run, speeds
from prometheus_client.parser import text_string_to_metric_families
from samples import compare_with_golden
from test_report import cell, manifest, render, why

from builder.build.run import Run
from builder.cli import main, verify
from builder.model import Artifact, LeftOut
from builder.model.manifest import Manifest, manifest_text
from builder.model.measurement import Completion, GpuUse, Measured, OneRun, PlaceFacts, Sample, Use
from builder.reports.measured import (
    as_text,
    exposition,
    exposition_of_run,
    plot_of,
    plot_of_run,
    text_of_run,
)
from builder.reports.report import refreshed
from builder.reports.templates import page_environment
from builder.verify.finished_images import OpenImage
from builder.verify.measure.rounds import record, with_measurement
from builder.verify.proof import in_folder
from builder.verify.targets import ProofTarget

OF_TWO = ("bare", "oci")
SLOW = measured(
    run("bare", speeds(1.0)), run("oci", speeds(4.0)), emulator="qemu 11.1", places=OF_TWO
)
BROKEN = replace(run("oci", {}), problem="exit status 1")
LACKING = measured(run("bare", speeds(1.0)), BROKEN, places=OF_TWO)


@pytest.mark.parametrize(
    ("name", "result"), [("sound", measured()), ("slow", SLOW), ("lacking", LACKING)]
)
def test_all_that_is_written_of_a_measurement(name: str, result: Measured) -> None:
    compare_with_golden(as_text(result) + "\n", f"measure/{name}.txt")
    compare_with_golden(exposition(result), f"measure/{name}.prom")


def test_a_busy_machine_is_shouted() -> None:
    text = as_text(replace(measured(), others=(0.9, 0.8, 0.1)))
    assert "DISTURBED: other processes kept the cores busy before the rounds: 90%, 80%, 10%" in text
    assert "DISTURBED" not in as_text(measured())


def test_gpus_that_could_not_be_asked_are_said() -> None:
    plain = run("oci", speeds(1.0))
    lost = replace(plain, use=replace(plain.use, no_gpus="GPU is lost"))
    result = measured(run("bare", speeds(1.0)), lost, places=OF_TWO)
    assert "GPUs NOT SAMPLED, or not to the end: GPU is lost\n" in as_text(result)
    assert result.as_json(with_runs=False)["no_gpus"] == "GPU is lost"
    assert "GPUs NOT SAMPLED" not in as_text(measured())
    assert measured().as_json()["no_gpus"] == ""


def test_prometheus_reads_it_whatever_labels_hold() -> None:
    odd = replace(measured(), image='hpc-bench "a\\b"\nc', others=(0.0, 0.3, 0.1))
    families = list(text_string_to_metric_families(exposition(odd)))
    assert all(family.type == "gauge" and family.documentation for family in families)
    samples = [each for family in families for each in family.samples]
    assert {each.labels["image"] for each in samples} == {odd.image}
    values = {each.name: each.value for each in samples}
    assert values["build_images_bench_others_busy_ratio"] == 0.1
    assert values["build_images_bench_finished_timestamp_seconds"] == 1767323645


def test_json_has_every_run_and_a_manifest_none() -> None:
    full = json.loads(json.dumps(measured().as_json()))
    stored = json.loads(json.dumps(measured().as_json(with_runs=False)))
    assert len(full["runs"]) == 9
    assert full["runs"][0]["use"]["samples"]
    assert "runs" not in stored
    assert stored["completions"] == full["completions"]
    assert {each["place"] for each in stored["completions"]} == {"bare", "oci", "sif"}
    assert stored["completions"][0]["seconds"] == 2.5
    assert stored["completions"][0]["gpus"] == 0.9
    assert stored["outcomes"]["oci"]["outcome"] == "passed"


def test_the_use_of_a_machine_is_summed_up_over_the_runs_of_a_program() -> None:
    def used(turn: int, seconds: float, memory: int, *busy: float | None) -> OneRun:
        gpus = tuple(GpuUse(index=at, busy=each) for at, each in enumerate(busy))
        use = Use(seconds=seconds, cpu=seconds / 10, memory_bytes=memory, gpus=gpus)
        return replace(run("bare", speeds(1.0), turn=turn), use=use)

    failed = replace(used(3, 9.0, 9, 1.0), problem="exit status 1")
    runs = (used(0, 1.0, 5, 0.0, None), used(1, 2.0, 7, 0.5), used(2, 6.0, 6), failed)
    assert measured(*runs, places=("bare",)).completions == (
        Completion(
            program="mpi-speed", place="bare", seconds=2.0, cpu=0.2, memory_bytes=7, gpus=0.25
        ),
    )
    assert measured(runs[2], places=("bare",)).completions[0].cells == (
        "6.0 s",
        "60%",
        "0.0 GB",
        "-",
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123456, "0.0123"), (9.0, "9.00"), (99.94, "99.9"), (100, "100")]
)
def test_a_figure_has_three_digits_that_count(value: float, text: str) -> None:
    row = measured(run("bare", speeds(value)), places=("bare",)).rows[0]
    assert row.text == f"{text} µs"


def test_all_that_is_written_of_a_program() -> None:
    bare = replace(PROGRAM_RUN, place=PlaceFacts(name="bare", runner="chroot"))
    times = (("oci", 2.5), ("bare", 2.0), ("bare", 2.4), ("sif", 9.0))
    like = [
        replace(bare, place=replace(bare.place, name=name), use=replace(bare.use, seconds=seconds))
        for name, seconds in times
    ]
    others = [replace(bare, argv=("x",)), replace(bare, status=1), replace(bare, content_key="x")]
    others += [replace(bare, no_gpu="x"), replace(bare, binds=())]
    others += [replace(bare, host=replace(bare.host, cores=2))]
    lost = replace(bare, emulator="qemu 11", use=replace(bare.use, gpus=(), no_gpus="GPU is lost"))
    texts = [
        text_of_run(PROGRAM_RUN, [*like, *others]),
        text_of_run(bare, like),
        text_of_run(lost),
        text_of_run(replace(bare, status=1), like),
    ]
    compare_with_golden("\n".join(texts) + "\n", "measure/program.txt")
    compare_with_golden(exposition_of_run(PROGRAM_RUN), "measure/program.prom")
    compare_with_golden(plot_of_run(PROGRAM_RUN, is_page=False), "measure/program.svg")
    short = [replace(each, use=replace(each.use, seconds=0.4)) for each in like]
    assert "against bare" not in text_of_run(PROGRAM_RUN, short)
    page = plot_of_run(replace(PROGRAM_RUN, image="<a>"), is_page=True)
    assert "<title>&lt;a&gt;, oci" in page
    assert page.endswith("</svg>\n</body>\n</html>\n")
    empty = replace(PROGRAM_RUN, use=Use(seconds=0.0, cpu=0.0, memory_bytes=0))
    assert plot_of_run(empty, is_page=False).count('points=""') == 2
    assert "), memory -\n" in text_of_run(empty)
    assert "run_memory_peak_bytes" not in exposition_of_run(empty)
    unknown = (GpuUse(index=3),)
    sample = Sample(at_s=1.0, cpu=0.5, memory_bytes=5, gpus=unknown)
    unsaid = replace(empty, use=replace(empty.use, gpus=unknown, samples=(sample,)))
    assert "\n  GPU 3: - busy, -" in text_of_run(unsaid)
    assert plot_of_run(unsaid, is_page=False).count('points=""') == 1


# The plot.


def drawn(result: Measured) -> str:
    """The figure in the report."""
    plot = plot_of(json.loads(json.dumps(result.as_json(with_runs=False))))
    text = page_environment().get_template("measured.html.j2").render(plot=plot)
    return "".join(f"{line}\n" for line in text.splitlines() if line.strip())


@pytest.mark.parametrize(("name", "result"), [("sound", measured()), ("lacking", LACKING)])
def test_marks_stand_at_their_ratio_between_slowest_and_fastest(
    name: str, result: Measured
) -> None:
    """What has no result has no mark and a reason."""
    compare_with_golden(drawn(result), f"measure/{name}.html")


def test_what_is_far_beyond_the_axis_stays_in_the_drawing_and_says_so() -> None:
    fast = measured(run("bare", speeds(9.0)), run("oci", speeds(1.0)), places=OF_TWO)
    figure = drawn(fast)
    assert '<line class="range" x1="836.0" x2="836.0"' in figure
    assert '<text class="tick" x="840.0"' in figure
    assert "oci: 9.00" in figure


def test_no_measurement_no_plot(tmp_path: Path) -> None:
    assert plot_of(None) is None
    assert "svg" not in render(tmp_path, manifest(cell())).tags


def measured_manifest(**changes: object) -> dict[str, object]:
    result = json.loads(json.dumps(measured().as_json(with_runs=False)))
    return manifest(cell(), measured={**result, **changes})


def test_the_report_shows_plot_and_table(tmp_path: Path) -> None:
    page = render(tmp_path, measured_manifest())
    assert page.tags.count("svg") == 3  # two keys of the legend, and the plot
    assert "1.00 (0.91 to 1.11)" in page.text("measured", "list")
    assert page.tags.count("script") == 1


def test_a_collapse_is_in_the_report_and_markup_is_not(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>"
    outcomes = {"oci": {"check": "collapse", "outcome": "failed", "reason": attack}}
    page = render(tmp_path, measured_manifest(outcomes=outcomes))
    assert attack in page.text("collapsed")
    assert "oci collapsed" in page.text("collapsed")
    assert page.tags.count("script") == 1
    skipped = {"oci": {"check": "collapse", "outcome": "skipped", "reason": "cannot tell"}}
    page = render(tmp_path, measured_manifest(outcomes=skipped))
    assert page.text("collapsed") == "○ oci: cannot tell"


def test_the_report_is_written_anew_and_keeps_all_else(tmp_path: Path) -> None:
    absent = LeftOut(cell=cell(mpi="mpich4.0"), reasons=why("not here: at all", "nor there"))
    other = manifest(cell("ppc64le"))
    compiled = {cell(cuda="10.1").identifier: "no registry"}
    render(tmp_path, manifest(cell()), other, left_out=(absent,), compiled=compiled)
    out = tmp_path / "out"
    before = json.loads((out / "report.json").read_text())
    report = refreshed(out, manifest_record(measured_manifest()))
    assert report
    write_report(out, report)
    after = json.loads((out / "report.json").read_text())
    assert "measured" in after["images"][0]
    assert {**after, "images": []} == {**before, "images": []}
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "maintainer: not here: at all" in page.text("absences")
    assert "svg" in page.tags
    (out / "report.json").write_text(json.dumps({**after, "schema": "other"}))
    assert refreshed(out, manifest_record(measured_manifest())) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"schema": "other"}'])
def test_where_there_is_no_report_none_is_written(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / "report.json").write_text(text)
    assert not refreshed(tmp_path, manifest_record(measured_manifest()))
    assert not (tmp_path / "report.html").exists()


def test_a_report_without_the_image_is_left_alone(tmp_path: Path) -> None:
    render(tmp_path, manifest(cell("ppc64le")))
    assert not refreshed(tmp_path / "out", manifest_record(measured_manifest()))


# The manifest.


@pytest.mark.parametrize("outcome", ["verified", "built", "failed"])
def test_a_measurement_says_nothing_of_whether_an_image_is_verified(outcome: str) -> None:
    written = manifest_record(
        {"outcome": outcome, "evidence": ["evidence/oci.json"], "measured": {"x": 1}}
    )
    for latency in (1.0, 9.0):
        result = measured(run("bare", speeds(1.0)), run("oci", speeds(latency)), places=OF_TWO)
        updated = with_measurement(
            written, result, ["evidence/oci-bench.json", "evidence/oci.json"]
        )
        assert (updated.outcome, updated.checks) == (outcome, {})
        assert updated.evidence == ("evidence/oci-bench.json", "evidence/oci.json")
        assert json.loads(manifest_text(updated))["measured"]["outcomes"]["oci"]["outcome"] == (
            "passed" if latency == 1 else "failed"
        )


@pytest.mark.parametrize(
    ("equal", "of_oci"), [(True, ["oci", "sif", "tree"]), (False, ["oci"]), (None, ["oci"])]
)
def test_evidence_is_of_the_artifact_that_ran_unless_all_are_equal(
    equal: bool | None, of_oci: list[str], tmp_path: Path
) -> None:
    artifacts = {
        name: Artifact(format=name, path=tmp_path / name, digest=f"sha256:{name}", size=1)
        for name in ("oci", "sif")
    }
    written = replace(
        manifest_record({"formats_equal": equal}),
        artifacts={
            name: replace(each, tree_digest="sha256:7e")
            for name, each in in_folder(artifacts).items()
        },
    )
    target = ProofTarget(identifier="x", arch="x86_64", environment={}, checks=())
    image = OpenImage(record=written, artifacts=artifacts, target=target, work=tmp_path)
    folder = tmp_path / "image"
    record(cast("Run", SimpleNamespace(versions={})), image, folder, measured())
    for name, expected in (("oci", of_oci), ("sif", of_oci if equal else ["sif"])):
        statement = json.loads((folder / "evidence" / f"{name}-bench.json").read_text())
        assert [each["name"].rpartition("/")[2] for each in statement["subject"]] == expected


# The command line.


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (["--repeats", "3"], "--repeats needs --bench"),
        (["--prometheus", "x.prom"], "--prometheus needs --bench"),
        (["--bench", "--repeats", "0"], "0 is not a positive number"),
    ],
)
def test_bad_usage(
    options: list[str], output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path), *options])
    assert ended.value.code == 2
    assert output in capsys.readouterr().err


@pytest.mark.parametrize(
    ("result", "code"),
    [(measured(), 0), (SLOW, 1), (replace(SLOW, others=(0.9, 0.9, 0.9)), 4)],
    ids=["sound", "slow", "cannot tell"],
)
def test_measuring_by_the_command_line(
    result: Measured,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[dict[str, object]] = []

    def measure(_: Run, folder: Path, **how: object) -> tuple[Measured, Manifest]:
        asked.append({"folder": folder, **how})
        return result, manifest_record(measured_manifest())

    monkeypatch.setattr(verify, "measure", measure)
    monkeypatch.setattr("builder.verify.preparation.versions_of", lambda *_: {})
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    render(tmp_path, manifest(cell()))
    folder = tmp_path / "out" / cell().identifier
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest_text(manifest_record(manifest(cell()))))
    assert main(["verify", str(folder), "--bench", f"--prometheus={tmp_path / 'x.prom'}"]) == code
    assert capsys.readouterr().out == f"{as_text(result)}\n"
    assert (tmp_path / "x.prom").read_text() == exposition(result)
    assert "measured" in json.loads((tmp_path / "out/report.json").read_text())["images"][0]
    once = ["--json", "--repeats=1", "--runner=podman", "--runner=podman"]
    assert main(["verify", str(folder), "--bench", *once]) == code
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.as_json()))
    assert asked == [
        {"folder": folder, "runners": (), "repeats": 5},
        {"folder": folder, "runners": ("podman",), "repeats": 1},
    ]
